"""What this device reaches on a copy and on a large matrix product, measured where and when a benchmark runs.

Does not: keep the buffers, or change a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from attrs import frozen

from vtcore.benchmark.machine import read_clocks
from vtcore.benchmark.roofline import Ceilings

GPU_COPY_BYTES = 1 << 30
"""Of each buffer; far beyond any cache, so both are read and written in memory."""
GPU_MATMUL_SIZE = 8192
CPU_COPY_BYTES = 1 << 26
CPU_MATMUL_SIZE = 512
_RUNS = 7
_WARM_SECONDS = 1.0
"""Clocks of an idle GPU take so long to rise. Source: seen on an H200, 345 to 1,980 MHz."""

Timed = Callable[[Callable[[], object]], float]
"""Runs something and says how many seconds it took."""


@frozen(kw_only=True)
class MeasuredCeilings:
    """The ceilings and how they were found.

    Args:
        copy_bytes: Of each buffer of the copy.
        matmul_size: N of the N x N x N product.
        dtype: Of the product.
        clocks: Of the GPU while it multiplied; empty where unknown.
    """

    ceilings: Ceilings
    copy_bytes: int
    matmul_size: int
    dtype: str
    clocks: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "copy_tb_per_s": round(self.ceilings.bytes_per_s / 1e12, 4),
            "matmul_tflop_per_s": round(self.ceilings.flops_per_s / 1e12, 3),
            "copy_buffer_bytes": self.copy_bytes,
            "matmul_size": self.matmul_size,
            "matmul_dtype": self.dtype,
            "clocks_under_load": dict(self.clocks),
        }


def measure_ceilings(device: str, dtype: torch.dtype) -> MeasuredCeilings:
    """Measure both; on a GPU in about three seconds and 2.5 GiB, on a CPU in less.

    Args:
        device: torch device string.
        dtype: Of the product on a CPU, unless float32 is faster there; a GPU multiplies bfloat16.
    """
    if torch.device(device).type == "cpu":
        # Without instructions for bfloat16 its large products are slow, and a model's small ones are not.
        return max(
            (
                _measure(device, one, CPU_COPY_BYTES, CPU_MATMUL_SIZE, _wall_seconds, {})
                for one in dict.fromkeys((dtype, torch.float32))
            ),
            key=lambda measured: measured.ceilings.flops_per_s,
        )
    return _measure(device, torch.bfloat16, GPU_COPY_BYTES, GPU_MATMUL_SIZE, _event_seconds, None)


def _measure(
    device: str,
    dtype: torch.dtype,
    copy_bytes: int,
    size: int,
    timed: Timed,
    clocks: Mapping[str, str] | None,
) -> MeasuredCeilings:
    flops_per_s, clocks = _matmul_rate(device, dtype, size, timed, clocks)
    bytes_per_s = _copy_rate(device, copy_bytes, timed)
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return MeasuredCeilings(
        ceilings=Ceilings(bytes_per_s, flops_per_s),
        copy_bytes=copy_bytes,
        matmul_size=size,
        dtype=str(dtype).removeprefix("torch."),
        clocks=clocks,
    )


def _matmul_rate(
    device: str, dtype: torch.dtype, size: int, timed: Timed, clocks: Mapping[str, str] | None
) -> tuple[float, Mapping[str, str]]:
    # Random data: products of zeros are faster than any real ones.
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=out)

    if clocks is None:
        clocks = _warm_up(multiply)
    return 2 * size**3 / median(timed(multiply) for _ in range(_RUNS)), clocks


def _copy_rate(device: str, num_bytes: int, timed: Timed) -> float:
    source = torch.randint(0, 2**31, (num_bytes // 8,), device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median(timed(lambda: target.copy_(source)) for _ in range(_RUNS))


def _warm_up(multiply: Callable[[], None]) -> Mapping[str, str]:
    """Keep the GPU busy until its clocks have risen; returns them as they are then."""
    started, clocks = time.monotonic(), {}
    while time.monotonic() - started < _WARM_SECONDS:
        for _ in range(200):
            multiply()
        clocks = read_clocks()
        torch.cuda.synchronize()
    return clocks


def _event_seconds(run: Callable[[], object]) -> float:
    """Of one call among eight in a row, so that launching is hidden."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begun.record()
    for _ in range(8):
        run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 8e3


def _wall_seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return max(1e-9, time.perf_counter() - started)
