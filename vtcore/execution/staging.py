"""Host arrays to the device and results back, without waiting for what the device is still computing.

Does not: know what the numbers mean. On the CPU, and on torch's meta device, nothing is staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Int64s = NDArray[np.int64]

_NUM_BUFFERS = 4
"""Pinned buffers in turn; steps in flight are two at most, and a step sends up to twice."""
_LEAST_NUMBERS = 1024
_NUMBERS_ALIGNED = 2
"""Of int64: 16 bytes."""


def aligned_starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arrays begin in one buffer of int64, each on 16 bytes, and the buffer's length.

    Triton has another variant of a kernel for a pointer that lies otherwise, and would compile it while
    serving.
    """
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size + size % _NUMBERS_ALIGNED
    return starts, total


class Upload:
    """Arrays that travel together, in one copy.

    Args:
        staging: Sends them.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._arrays: list[Int64s] = []

    def add(self, values: Int64s | Sequence[int]) -> int:
        """Take an array along.

        Returns:
            Its index in what `send` returns.
        """
        self._arrays.append(np.asarray(values, np.int64).reshape(-1))
        return len(self._arrays) - 1

    def send(self) -> list[Tensor]:
        """[len] int64 tensors on the device, valid for whatever is launched afterwards."""
        return self._staging.send(self._arrays)


class Staging:
    """One device's pinned buffers.

    Args:
        device: torch device string.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._is_cuda = self._device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._done: list[torch.cuda.Event] = []
        self._next = 0

    def begin(self) -> Upload:
        """Start collecting."""
        return Upload(self)

    def send(self, arrays: Sequence[Int64s]) -> list[Tensor]:
        """As `Upload.send`."""
        if not arrays:
            return []
        if not self._is_cuda:
            return [torch.from_numpy(a).to(self._device) for a in arrays]
        starts, total = aligned_starts([len(a) for a in arrays])
        buffer, done = self._buffer(total)
        numbers = buffer.numpy()
        for start, array in zip(starts, arrays, strict=True):
            numbers[start : start + len(array)] = array
        sent = torch.empty(total, dtype=torch.int64, device=self._device)
        sent.copy_(buffer[:total], non_blocking=True)
        done.record()
        return [sent[start : start + len(array)] for start, array in zip(starts, arrays, strict=True)]

    def _buffer(self, total: int) -> tuple[Tensor, torch.cuda.Event]:
        """The next buffer in turn, once its last copy has been made; grown to hold `total` numbers."""
        index, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        if index == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.int64))
            self._done.append(torch.cuda.Event())
        self._done[index].synchronize()
        if len(self._buffers[index]) < total:
            size = max(_LEAST_NUMBERS, 1 << (total - 1).bit_length())
            self._buffers[index] = torch.empty(size, dtype=torch.int64, pin_memory=True)
        return self._buffers[index], self._done[index]


class Results:
    """Int64 tensors on their way to the host.

    Args:
        tensors: On one device; read in stream order, so later launches may overwrite them.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tuple(t.shape) for t in tensors]
        self._event: torch.cuda.Event | None = None
        if tensors and tensors[0].is_cuda:
            flat = torch.cat([t.reshape(-1) for t in tensors])
            self._host = torch.empty(len(flat), dtype=torch.int64, pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = torch.cat([t.reshape(-1) for t in tensors]) if tensors else torch.empty(0)

    def wait(self) -> list[Int64s]:
        """The tensors as arrays, once the device has written them."""
        if self._event is not None:
            self._event.synchronize()
        numbers = self._host.numpy()
        arrays, start = [], 0
        for shape in self._shapes:
            end = start + prod(shape)
            arrays.append(numbers[start:end].reshape(shape))
            start = end
        return arrays
