"""Compiles recorded launches ahead of their first use, many at a time, on a GPU or for one that is elsewhere.

Does not: record (`launch.recording` does), choose configurations, or launch.

Source for what Triton keys a variant by: triton 3.6, runtime/jit.py (JITFunction.run, native_specialize_impl)
and runtime/cache.py (get_cache_key).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from attrs import field, frozen

from vtcore.errors import EngineError, HostError
from vtcore.ops.compile_count import num_built, start_counting
from vtcore.ops.compile_target import compiling_for
from vtcore.ops.launch import Launch

_ALIGNMENT = 16
"""Bytes; Triton has one variant for pointers on such an address, and one for others."""
_MAX_THREADS = 16
"""Of a pool. Most of a compile is ptxas, a process of its own, so more threads than cores gain nothing."""


@frozen
class Compiled:
    """What became of recorded launches.

    Args:
        kernels: Launch -> Triton's CompiledKernel; one launch for each variant.
        num_built: Variants compiled from source.
        num_cached: Variants found on disk or in this process.
        elapsed_s: Seconds that all took.
        directory: Where Triton keeps them.
    """

    kernels: tuple[tuple[Launch, Any], ...] = field(repr=False)
    num_built: int
    num_cached: int
    elapsed_s: float
    directory: str


def unique_launches(launches: Iterable[Launch]) -> list[Launch]:
    """One launch for each set of arguments that Triton could tell apart, in the order they came.

    Grids, addresses and the contents of tensors do not count; values of numbers do only where the kernel
    specialises on them.
    """
    found: dict[tuple[Any, ...], Launch] = {}
    for launch in launches:
        found.setdefault(_key(launch), launch)
    return list(found.values())


def compile_launches(
    launches: Iterable[Launch], *, target: str | None = None, num_threads: int | None = None
) -> Compiled:
    """Compile every variant, so that its first real launch finds it in memory, or after a restart on disk.

    Args:
        launches: As recorded; tensors may be on any device, meta too: only dtype and alignment count.
        target: One of `compile_target.TARGETS`; None compiles for this machine's current GPU and loads the
            kernels there.
        num_threads: Compiles at the same time; None chooses by the cores this process may use.

    Raises:
        ConfigError: No such target.
        HostError: Triton's interpreter is on, which compiles nothing.
        EngineError: A kernel does not compile; all that do not are named.
        KeyboardInterrupt: Ctrl-C; compiles that had begun have ended, and its text says how many kernels are
            kept, and where.
    """
    from triton import knobs

    if knobs.runtime.interpret:
        raise HostError("TRITON_INTERPRET=1 interprets kernels, so none can be compiled; unset it")
    start_counting()
    began, built = time.monotonic(), num_built()
    unique = unique_launches(launches)
    num_threads = num_threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    kernels: dict[str, tuple[Launch, Any]] = {}
    problems: list[str] = []
    futures: list[tuple[Launch, Any]] = []
    pool = ThreadPoolExecutor(num_threads)
    with nullcontext() if target is None else compiling_for(target):
        try:
            with _collected(problems, target), _submitting_to(pool):
                for launch in unique:
                    with _collected(problems, target, launch):
                        futures.append((launch, _submit(launch)))
            for launch, future in futures:
                with _collected(problems, target, launch):
                    kernel = future.result() if _is_future(future) else future
                    kernels.setdefault(kernel.hash, (launch, kernel))
            if problems:
                raise EngineError("; ".join(problems))
            if target is None:
                device = torch.cuda.current_device()
                for loaded in [pool.submit(_load, kernel, device) for _, kernel in kernels.values()]:
                    loaded.result()
        except KeyboardInterrupt as interrupt:
            pool.shutdown(cancel_futures=True)
            raise KeyboardInterrupt(_kept(unique, futures)) from interrupt
        finally:
            pool.shutdown(cancel_futures=True)
    built = num_built() - built
    return Compiled(
        kernels=tuple(kernels.values()),
        num_built=built,
        num_cached=len(kernels) - built,
        elapsed_s=time.monotonic() - began,
        directory=str(knobs.cache.dir),
    )


@contextmanager
def _collected(problems: list[str], target: str | None, launch: Launch | None = None) -> Iterator[None]:
    """Keep what goes wrong inside as a sentence."""
    try:
        yield
    except Exception as error:
        name = "a kernel" if launch is None else f"kernel {launch.kernel.__name__}"
        problems.append(f"{name} does not compile for {target or 'this GPU'}: {error}")


@contextmanager
def _submitting_to(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Inside, what Triton would compile it hands to the pool instead; nothing waits for it at the end.

    Triton's own exit waits for every compile, also for those that will not come any more.
    """
    from triton.runtime._async_compile import AsyncCompileMode, active_mode

    before = active_mode.set(AsyncCompileMode(pool))
    try:
        yield
    finally:
        active_mode.reset(before)


def _is_future(found: Any) -> bool:
    """Whether Triton answered with a compile that goes on, and not with a kernel."""
    return callable(getattr(found, "result", None))


def _kept(unique: Sequence[Launch], futures: Sequence[tuple[Launch, Any]]) -> str:
    """How far an interrupted compilation got; launches of one variant share its future."""
    from triton import knobs

    submitted = {id(found): found for _, found in futures}
    done = sum(not _is_future(found) or _is_compiled(found.future) for found in submitted.values())
    wanted = len(submitted) + len(unique) - len(futures)
    return f"{done} of {wanted} kernels are compiled and kept in {knobs.cache.dir}"


def _is_compiled(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _submit(launch: Launch) -> Any:
    """Hand a launch to the pool; a variant that this process has is returned at once."""
    return launch.kernel.warmup(*map(_address, launch.args), grid=launch.grid, **_addresses(launch.constants))


def _load(kernel: Any, device: int) -> None:
    # The C launcher of a signature is built at the first touch; it would hold up the first step otherwise.
    torch.cuda.set_device(device)
    _ = kernel.run


@frozen
class _Address:
    """A pointer argument: what Triton reads of a tensor, without memory behind it.

    Args:
        dtype: torch's.
        offset: Bytes from the start of the allocation. Meta views would all say that they start at 0.
    """

    dtype: torch.dtype
    offset: int

    def data_ptr(self) -> int:
        """An address of the same alignment: allocators hand out multiples of far more than 16."""
        return self.offset


def _address(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Address(value.dtype, _offset(value))
    if isinstance(value, tuple):
        return tuple(map(_address, value))
    return value


def _addresses(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _address(value) for name, value in values.items()}


def _offset(tensor: torch.Tensor) -> int:
    if tensor.is_meta:
        return int(tensor.storage_offset()) * tensor.itemsize
    return tensor.data_ptr()


def _key(launch: Launch) -> tuple[Any, ...]:
    params = launch.kernel.params
    named = {param.name: param for param in params}
    args = [
        _class_of(value, param.do_not_specialize) for param, value in zip(params, launch.args, strict=False)
    ]
    for name, value in sorted(launch.constants.items()):
        param = named.get(name)
        if param is None or param.is_constexpr:
            args.append((name, value))
        else:
            args.append((name, _class_of(value, param.do_not_specialize)))
    return (launch.kernel.fn, *args)


def _class_of(value: Any, is_plain: bool) -> Any:
    """What tells this argument from others; never coarser than what Triton does, in a few cases finer."""
    if isinstance(value, torch.Tensor):
        return value.dtype, _offset(value) % _ALIGNMENT
    if isinstance(value, tuple):
        return tuple(_class_of(item, is_plain) for item in value)
    if isinstance(value, float):
        return float
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value), value
    width = 32 if -(2**31) <= value < 2**31 else 64 if value < 2**63 else -64
    return (width,) if is_plain else (width, value == 1, value % _ALIGNMENT == 0)
