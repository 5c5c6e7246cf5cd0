"""Copies tensors to a device through a few pinned buffers, so that reading a file and sending overlap.

A large tensor travels in pieces, small ones share a buffer.
Does not: read files, or know what the tensors are.
"""

from __future__ import annotations

import torch

DEFAULT_BUFFER_BYTES = 64 << 20
_NUM_BUFFERS = 2
"""One is filled while the other is sent; more would wait as long for the slower of the two."""
_ALIGNMENT = 16
"""Bytes; pieces begin on a multiple, which suits every dtype."""


class StagedCopy:
    """Buffers for copies to one device, in the order of its current stream.

    On torch's CPU device the same pieces go through the same buffers, unpinned.

    Args:
        device: torch device string.
        buffer_bytes: Of each buffer; at least 16.
    """

    def __init__(self, device: str, buffer_bytes: int = DEFAULT_BUFFER_BYTES) -> None:
        self._device = torch.device(device)
        self._is_cuda = self._device.type == "cuda"
        self._size = buffer_bytes // _ALIGNMENT * _ALIGNMENT
        self._buffers = [
            torch.empty(self._size, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(_NUM_BUFFERS)
        ]
        self._sent: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._unconverted: torch.Tensor | None = None
        self._current = self._used = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy, and convert on the device where the dtypes differ.

        The source may be freed or unmapped as soon as this returns. The target is complete for whatever is
        launched on the current stream afterwards.

        Args:
            target: Contiguous, on the device.
            source: The same shape, on the CPU or on the device.
        """
        if source.device.type != "cpu":
            target.copy_(source)
            return
        # A view of a transposed or cut tensor is made contiguous here, once, as a copy would do anyway.
        flat, wanted, done = source.contiguous().view(-1), target.view(-1), 0
        while done < flat.numel():
            num = min((self._size - self._used) // flat.itemsize, flat.numel() - done)
            if num == 0:
                self._change_buffer()
                continue
            self._send(wanted[done : done + num], flat[done : done + num])
            done += num

    def finish(self) -> None:
        """Wait until everything has arrived, and let go of the buffers."""
        if self._is_cuda:
            torch.cuda.current_stream(self._device).synchronize()
        self._buffers.clear()
        self._unconverted = None

    def _send(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """One piece, which fits into what is left of the current buffer."""
        place = slice(self._used, self._used + source.numel() * source.itemsize)
        self._used = min(self._size, -(-place.stop // _ALIGNMENT) * _ALIGNMENT)
        staged = self._buffers[self._current][place].view(source.dtype)
        staged.copy_(source)
        if source.dtype != target.dtype:
            # Pieces follow each other on one stream, so one such buffer serves both pinned ones.
            if self._unconverted is None:
                self._unconverted = torch.empty(self._size, dtype=torch.uint8, device=self._device)
            sent = self._unconverted[place].view(source.dtype)
            staged = sent.copy_(staged, non_blocking=True)
        target.copy_(staged, non_blocking=True)

    def _change_buffer(self) -> None:
        """Go on with the next buffer, once what it held has been sent."""
        if self._is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._sent[self._current] = event
        self._current, self._used = (self._current + 1) % _NUM_BUFFERS, 0
        before = self._sent[self._current]
        if before is not None:
            before.synchronize()
