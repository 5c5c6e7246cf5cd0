"""Measure the kernels of the op `linear` on this GPU and write the tuned file that the engine reads.

For every matrix of the given models and every measured row count: the library's product and each candidate,
as a captured graph over copies of the weight that the L2 cache cannot hold. A kernel is taken where it is
faster by a margin; none is tried where the library is near what the memory allows.
Does not: change clocks, or run where there is no GPU.

    python tools/tune_linear.py MODEL [MODEL ...] --output FILE
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from attrs import asdict
from torch import Tensor

from vtcore.config.options import UserOptions
from vtcore.errors import VtcoreError
from vtcore.loader import plan_core
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording
from vtcore.ops.linear.plan import OP, ROWS, ByRow, ByTile, Plan
from vtcore.ops.linear.triton import multiply

_COLD_BYTES = 256 << 20
"""Copies of a weight together; four times the L2 cache of an H200."""
_MOST_COPIES = 512
_LEAST_WIDTH = 64
"""Narrower matrices are no projections: taps of a convolution."""
_MARGIN = 0.95
"""A kernel must take less than this share of the library's time."""
_REPEATS = 5
_SHARED_BYTES = 220 << 10
"""Of a block's tiles; an H200 has 227 KiB."""
_MOST_PROGRAMS = 528
"""Parts make at most that many, four on each multiprocessor, which hide each other's waits."""
_BY_ROW = ((4, 512, 4), (4, 1024, 4), (8, 512, 4), (2, 1024, 2), (2, 1024, 8), (8, 1024, 8), (16, 256, 4))
"""Columns, depth and warps."""
_BY_TILE = (
    (8, 512, 4, 4),
    (16, 256, 4, 5),
    (32, 128, 4, 6),
    (32, 256, 4, 4),
    (64, 128, 4, 5),
    (64, 128, 8, 4),
)
"""Columns, depth, warps and stages; loads under way on a multiprocessor must cover the memory's latency."""
_PARTS = (1, 2, 4, 8)


def main(args: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="checkpoint directories; config.json is enough")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args(args)
    if not torch.cuda.is_available():
        print("tune_linear measures on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    try:
        shapes = sorted({shape for model in given.models for shape in matrices(model)})
    except VtcoreError as error:
        print(error, file=sys.stderr)
        return 1
    # All at once: the first call of each kernel would compile them one by one.
    compile_launches(launches_of(shapes))
    bandwidth = measure_bandwidth()
    entries = [entry for width, depth in shapes for entry in tune(width, depth, bandwidth)]
    write_tuned(given.output, OP, entries, bandwidth)
    return 0


def matrices(model: str) -> Iterator[tuple[int, int]]:
    """N and K of every projection of a model."""
    planned = plan_core(UserOptions(model=model, load_format="dummy", device="cpu", max_model_len=64))
    for rule in planned.arch.param_rules(()):
        if len(rule.shape) == 2 and rule.num_groups is None and min(rule.shape) >= _LEAST_WIDTH:
            yield rule.shape[0], rule.shape[1]


def candidates(num_rows: int, width: int, depth: int) -> Iterator[Plan]:
    """Plans worth a measurement for so many rows; each fits in registers and shared memory."""
    for columns, step, warps in _BY_ROW:
        # Sums of a thread: more than 128 leave no registers for what it loads.
        if columns * step * num_rows <= 128 * 32 * warps and num_rows <= 8:
            yield ByRow(columns=columns, depth=step, num_warps=warps)
    rows = max(16, num_rows)
    for columns, step, warps, stages in _BY_TILE:
        if (rows + columns) * step * 2 * stages > _SHARED_BYTES:
            continue
        for parts in _PARTS:
            programs = -(-width // columns) * parts
            if parts == 1 or (depth // parts >= 2 * step and programs <= _MOST_PROGRAMS):
                yield ByTile(
                    rows=rows, columns=columns, depth=step, parts=parts, num_warps=warps, num_stages=stages
                )


def tune(width: int, depth: int, bandwidth: float) -> Iterator[dict[str, Any]]:
    """The best plan of each row count for one matrix.

    Args:
        bandwidth: Bytes in a microsecond.
    """
    num_copies = min(_MOST_COPIES, max(2, -(-_COLD_BYTES // (width * depth * 2))))
    weights = [torch.randn(width, depth, device="cuda", dtype=torch.bfloat16) for _ in range(num_copies)]
    for num_rows in ROWS:
        x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
        library = measure(x, weights, None)
        best, best_us = None, library * _MARGIN
        least_us = 2 * (width * depth + num_rows * (width + depth)) / bandwidth
        for plan in candidates(num_rows, width, depth) if best_us > least_us else ():
            if (us := measure(x, weights, plan)) < best_us:
                best, best_us = plan, us
        entry: dict[str, Any] = {
            "dtype": "bfloat16",
            "n": width,
            "k": depth,
            "m": num_rows,
            "kernel": "library",
        }
        if best is not None:
            entry["kernel"] = "rows" if isinstance(best, ByRow) else "tiles"
            entry["config"] = asdict(best)
        entry |= {"us": round(library if best is None else best_us, 2), "library_us": round(library, 2)}
        print(json.dumps(entry), flush=True)
        yield entry


def measure(x: Tensor, weights: Sequence[Tensor], plan: Plan) -> float:
    """Microseconds of one product, the least of a few replays."""
    calls: list[Callable[[], Tensor]] = [lambda w=w: multiply(x, w, plan) for w in weights]  # type: ignore[misc]
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return timed(graph.replay) / len(calls)


def timed(run: Callable[[], object]) -> float:
    """Microseconds of a call's work on the GPU, the least of a few."""
    times = []
    for _ in range(_REPEATS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return float(min(times))


def measure_bandwidth() -> float:
    """Bytes that the memory reads in a microsecond, by a sum; reads alone are a little faster than copies."""
    numbers = torch.ones(1 << 30, device="cuda", dtype=torch.float32)
    return float(numbers.nbytes / timed(numbers.sum))


def launches_of(shapes: Sequence[tuple[int, int]]) -> list[Launch]:
    """The kernels of every candidate, recorded and not run."""
    launches: list[Launch] = []
    with recording(launches.append):
        for width, depth in shapes:
            weight = torch.empty(width, depth, dtype=torch.bfloat16, device="meta")
            for num_rows in ROWS:
                x = torch.empty(num_rows, depth, dtype=torch.bfloat16, device="meta")
                for plan in candidates(num_rows, width, depth):
                    multiply(x, weight, plan)
    return launches


def write_tuned(output: Path, op: str, entries: Sequence[dict[str, Any]], bandwidth: float) -> None:
    """Write what was measured on this GPU; the file's folder is made.

    Args:
        bandwidth: Bytes in a microsecond.
    """
    made = {**made_on(), "read_tb_s": round(bandwidth / 1e6, 2)}
    written = {"device": torch.cuda.get_device_name(), "made": made, "entries": {op: entries}}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(shown(written, op), "utf-8")


def shown(written: dict[str, Any], op: str) -> str:
    """The file's text, a line for each entry."""
    entries = ",\n".join(f"   {json.dumps(entry)}" for entry in written["entries"][op])
    return (
        f'{{\n "device": {json.dumps(written["device"])},\n "made": {json.dumps(written["made"])},\n'
        f' "entries": {{\n  {json.dumps(op)}: [\n{entries}\n  ]\n }}\n}}\n'
    )


def made_on() -> dict[str, str]:
    """Versions and clocks, for the reader of a tuned file."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,driver_version", "--format=csv,noheader"]
    clocks = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return {"torch": torch.__version__, "triton": triton.__version__, "clocks": clocks[0] if clocks else ""}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
