"""The one door through which every Triton kernel is launched.

Does not: choose configurations or own kernels. While a recorder is set nothing runs: each launch is handed to
it instead, so that a model run on torch's meta device says which kernels it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen


@frozen
class Launch:
    """One kernel launch.

    Args:
        kernel: The jitted function.
        grid: Programs along x, y, z; one to three numbers.
        args: Tensors and numbers, in the kernel's order.
        constants: constexpr arguments, and Triton's num_warps, num_stages.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]


_recorder: Callable[[Launch], None] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a kernel on the current stream.

    Args:
        kernel: A function under `triton.jit`.
        grid: Programs along x, y, z; a launch without programs is skipped, but recorded.
        args, constants: As in `Launch`.
    """
    if _recorder is not None:
        _recorder(Launch(kernel, grid, args, constants))
    elif all(grid):
        kernel[grid](*args, **constants)


@contextmanager
def recording(recorder: Callable[[Launch], None]) -> Iterator[None]:
    """Hand every launch to `recorder` instead of running it."""
    global _recorder
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before
