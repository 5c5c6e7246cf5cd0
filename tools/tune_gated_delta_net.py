"""Measure the recurrent kernels of Qwen3.5 on this GPU and write the tuned file that the engine reads.

For every measured number of rows: the rule's tile and each candidate, as a captured graph of whole calls over
states that the L2 cache cannot hold. A tile is taken where it is faster by a margin, and compared with the
op's reference first.
Does not: change clocks, or run where there is no GPU.

    python tools/tune_gated_delta_net.py MODEL [MODEL ...] --output FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen
from torch import Tensor
from tune_linear import measure_bandwidth, timed, write_tuned
from vtcore_qwen3_5_dense.config import read_count, text_section
from vtcore_qwen3_5_dense.ops.gated_delta_net import naive
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_net.plan import (
    OP,
    SCAN_ROWS,
    STEP_ROWS,
    Shape,
    Tile,
    invariant_scan,
    invariant_step,
    scan_rule,
    step_rule,
)
from vtcore_qwen3_5_dense.ops.gated_delta_net.triton import run
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import build_delta_rule_shape

from vtcore.errors import VtcoreError
from vtcore.interfaces.step import LayerCache, PrefillSpan, SlotPool, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording

_TAPS = 4
_PROMPT = 1024
"""Tokens of a prefill row."""
_COLD_BYTES = 256 << 20
"""States together; four times the L2 cache of an H200."""
_MOST_CALLS = 64
_MARGIN = 0.97
"""A tile must take less than this share of the rule's time."""
_BOUND = 0.02
"""Relative distance from the reference, which rounds to bfloat16 elsewhere."""
_STEPS = ((128, 4, 1), (128, 8, 1), (64, 4, 1), (64, 2, 1), (32, 4, 1), (32, 2, 1), (16, 1, 1))
_SCANS = (
    (16, 4, 3),
    (32, 2, 3),
    (32, 4, 2),
    (32, 4, 3),
    (32, 4, 4),
    (64, 4, 2),
    (64, 4, 3),
    (64, 8, 3),
    (128, 8, 2),
)
"""Columns, warps and stages."""


@frozen
class Case:
    """A layer and steps over different states of one pool.

    Args:
        steps: Each over slots of its own.
    """

    shape: Shape
    projected: Tensor
    layer: DeltaNetLayer
    cache: LayerCache
    steps: Sequence[StepInputs]

    def call(self, step: StepInputs, kernel: str, tile: Tile) -> Tensor:
        """The op with that tile for one kernel."""
        step_tile = tile if kernel == "step" else invariant_step(self.shape)
        scan_tile = tile if kernel == "scan" else invariant_scan(self.shape)
        return run(self.projected, self.layer, self.cache, step, step_tile, scan_tile)


def main(args: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="checkpoint directories; config.json is enough")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args(args)
    if not torch.cuda.is_available():
        print("tune_gated_delta_net measures on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    try:
        shapes = sorted({shape_of(model) for model in given.models}, key=lambda shape: shape.value_heads)
    except (OSError, ValueError, VtcoreError) as error:
        print(error, file=sys.stderr)
        return 1
    # All at once: the first call of each kernel would compile them one by one.
    compile_launches(launches_of(shapes))
    bandwidth = measure_bandwidth()
    entries = [tune(shape, kernel, rows, bandwidth) for shape in shapes for kernel, rows in kinds()]
    write_tuned(given.output, OP, entries, bandwidth)
    return 0


def shape_of(model: Path) -> Shape:
    """What the plans of a checkpoint follow."""
    text = text_section(json.loads((model / "config.json").read_text("utf-8")))
    return Shape(
        dtype="bfloat16",
        key_heads=read_count(text, "linear_num_key_heads", 16),
        value_heads=read_count(text, "linear_num_value_heads", 32),
        key_width=read_count(text, "linear_key_head_dim", 128),
        value_width=read_count(text, "linear_value_head_dim", 128),
    )


def kinds() -> Iterator[tuple[str, int]]:
    """Every kernel with every number of rows that has a plan."""
    for rows in STEP_ROWS:
        yield "step", rows
    for rows in SCAN_ROWS:
        yield "scan", rows


def candidates(kernel: str, shape: Shape) -> Iterator[Tile]:
    """Tiles worth a measurement."""
    for columns, warps, stages in _STEPS if kernel == "step" else _SCANS:
        if columns <= shape.value_width:
            yield Tile(columns, num_warps=warps, num_stages=stages)


def make_case(shape: Shape, kernel: str, rows: int, device: str) -> Case:
    """A layer with random weights and states, or with none on the device "meta"."""
    channels = 2 * shape.key_heads * shape.key_width + shape.value_heads * shape.value_width
    values = shape.value_heads * shape.value_width
    split = (channels, values, shape.value_heads, shape.value_heads)
    tokens = rows if kernel == "step" else rows * _PROMPT
    each = rows * shape.value_heads * shape.key_width * shape.value_width * 4
    num_steps = max(1, min(_MOST_CALLS, -(-_COLD_BYTES // each))) if kernel == "step" else 1

    def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(sizes, device=device, dtype=dtype).normal_()

    layer = DeltaNetLayer(
        conv_WC=0.5 * normal(_TAPS, channels),
        decay_rate_G=-normal(shape.value_heads).exp(),
        dt_bias_G=normal(shape.value_heads),
        norm=build_rms_weight(normal(shape.value_width), 1e-6),
        shape=build_delta_rule_shape(
            key_heads=shape.key_heads,
            value_heads=shape.value_heads,
            key_width=shape.key_width,
            value_width=shape.value_width,
            dtype=torch.float32,
            device=device,
        ),
        split=split,
        activation="silu",
        acc_dtype=torch.float32,
    )
    num_slots = 1 + num_steps * rows
    tensors = {
        "conv": normal(num_slots, _TAPS - 1, channels, dtype=torch.bfloat16),
        "state": 0.1 * normal(num_slots, shape.value_heads, shape.key_width, shape.value_width),
    }
    projected = normal(tokens, sum(split), dtype=torch.bfloat16)
    steps = [make_step(kernel, rows, 1 + index * rows, device) for index in range(num_steps)]
    return Case(shape, projected, layer, LayerCache(0, tensors), steps)


def make_step(kernel: str, rows: int, first_slot: int, device: str) -> StepInputs:
    """A step of uniform rows, or of prompts, over slots from `first_slot` on."""
    is_step = kernel == "step"
    length = 1 if is_step else _PROMPT
    slots = torch.arange(first_slot, first_slot + rows).to(device)
    numbers = torch.zeros(rows * length, dtype=torch.int64, device=device)
    spans = () if is_step else tuple(PrefillSpan(row, row * length, length, 0) for row in range(rows))
    return StepInputs(
        ids=numbers,
        positions=numbers,
        num_uniform=rows if is_step else 0,
        query_len=1,
        prefill=spans,
        computed=torch.zeros(rows, dtype=torch.int64, device=device),
        query_lens=torch.full((rows,), length, device=device),
        query_start=(torch.arange(rows + 1) * length).to(device),
        query_len_min=1,
        context_max=1,
        pools=(SlotPool(slots, slots.unsqueeze(1)),),
    )


def tune(shape: Shape, kernel: str, rows: int, bandwidth: float) -> dict[str, Any]:
    """The best tile of a kernel for so many rows, as an entry.

    Args:
        bandwidth: Bytes in a microsecond.
    """
    case = make_case(shape, kernel, rows, "cuda")
    best = step_rule(rows, shape) if kernel == "step" else scan_rule(rows, shape)
    rule_us = best_us = measure(case, kernel, best)
    for tile in candidates(kernel, shape):
        us = measure(case, kernel, tile)
        if us < min(best_us, rule_us * _MARGIN):
            best, best_us = tile, us
    distance = off(case, kernel, best)
    if not distance < _BOUND:
        raise AssertionError(f"{best} for {kernel} of {rows} rows is {distance:.3f} off the reference")
    entry = {
        **asdict(shape),
        "kernel": kernel,
        "rows": rows,
        **asdict(best),
        "us": round(best_us, 2),
        "rule_us": round(rule_us, 2),
    }
    moved = 2 * rows * case.cache["state"][0].nbytes
    figures = {"of_memory": round(moved / bandwidth / best_us, 3), "off": round(distance, 5)}
    print(json.dumps(entry | figures), flush=True)
    return entry


def measure(case: Case, kernel: str, tile: Tile) -> float:
    """Microseconds of a call of the whole op, the least of a few replays."""
    case.call(case.steps[0], kernel, tile)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in case.steps:
            case.call(step, kernel, tile)
    return timed(graph.replay) / len(case.steps)


def off(case: Case, kernel: str, tile: Tile) -> float:
    """Relative distance of the op's output from the reference's, over equal states."""
    step = case.steps[0]
    tensors = {name: tensor.clone() for name, tensor in case.cache.tensors.items()}
    wanted = naive.gated_delta_net(case.projected, case.layer, LayerCache(0, tensors), step)
    found = case.call(step, kernel, tile)
    return float((found - wanted).float().norm() / wanted.float().norm())


def launches_of(shapes: Sequence[Shape]) -> list[Launch]:
    """The kernels of every tile that is measured, recorded and not run."""
    launches: list[Launch] = []
    with recording(launches.append):
        for shape in shapes:
            for kernel, rows in kinds():
                case = make_case(shape, kernel, rows, "meta")
                rule = step_rule(rows, shape) if kernel == "step" else scan_rule(rows, shape)
                for tile in (rule, *candidates(kernel, shape)):
                    case.call(case.steps[0], kernel, tile)
    return launches


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
