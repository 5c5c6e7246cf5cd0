"""Measure the kernels of the experts of Qwen3.5 on this GPU and write the tuned file that the engine reads.

For every measured number of tokens: the rule's plan and each candidate, as a captured graph of whole calls
whose tokens go to other experts each time, evenly drawn. The tiles of the two products are chosen one after
the other. Each plan that is taken is compared with the op's reference first.
Does not: change clocks, or run where there is no GPU.

    python tools/tune_sparse_moe.py MODEL --output FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen
from torch import Tensor
from tune_linear import measure_bandwidth, timed, write_tuned
from vtcore_qwen3_5_moe.config import parse_moe_config
from vtcore_qwen3_5_moe.ops.sparse_moe import naive
from vtcore_qwen3_5_moe.ops.sparse_moe.plan import (
    OP,
    TOKENS,
    ByRow,
    ByTile,
    Plan,
    RowTile,
    Shape,
    Tile,
    rule,
)
from vtcore_qwen3_5_moe.ops.sparse_moe.triton import route, run_experts

from vtcore.errors import VtcoreError
from vtcore.layers.linear import StackedLinear
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording

_MARGIN = 0.97
"""A plan must take less than this share of the rule's time."""
_BOUND = 0.02
"""Relative L2 distance of bfloat16 results that differ in the order of sums and in what is rounded."""
_MOST_BY_ROW = 32
_DRAWS = 8
"""Routings of a graph up to `_FEW` tokens, whose experts the L2 cache must not hold; two beyond."""
_FEW = 256
_SHARED_BYTES = 220 << 10
"""Of a block's tiles; an H200 has 227 KiB."""
_BY_ROW = ((4, 512, 4), (8, 512, 4), (16, 512, 4), (4, 1024, 4), (8, 1024, 8), (8, 256, 2), (4, 512, 2))
"""Columns, depth and warps."""
_BY_TILE: dict[int, tuple[tuple[int, int, bool, int, int], ...]] = {
    16: (
        (64, 128, True, 4, 4),
        (64, 128, False, 4, 4),
        (64, 256, True, 4, 3),
        (128, 64, True, 4, 4),
        (128, 128, True, 4, 3),
        (128, 128, False, 4, 3),
        (128, 128, True, 8, 4),
        (32, 256, False, 4, 4),
    ),
    32: (
        (64, 128, True, 4, 4),
        (128, 64, True, 4, 4),
        (128, 128, True, 4, 3),
        (128, 128, False, 8, 3),
        (256, 64, True, 8, 3),
    ),
    64: (
        (64, 128, False, 4, 3),
        (128, 64, False, 4, 4),
        (128, 64, True, 4, 4),
        (128, 64, False, 8, 4),
        (256, 64, False, 8, 3),
    ),
    128: (
        (128, 64, False, 8, 4),
        (128, 64, True, 8, 4),
        (256, 64, False, 8, 3),
        (256, 64, False, 8, 4),
    ),
}
"""Rows -> columns, depth, swap, warps and stages."""


@frozen
class Experts:
    """One layer's experts, and what a call takes beside its tokens."""

    shape: Shape
    in_proj: StackedLinear
    out_proj: StackedLinear

    @property
    def bytes_each(self) -> int:
        """Bytes of one expert's matrices in bfloat16."""
        return 6 * self.shape.hidden * self.shape.inner

    def call(self, x: Tensor, gates: Tensor, plan: Plan) -> Tensor:
        """The op by that plan."""
        experts, weights = route(gates, self.shape.top_k, self.shape.has_shared)
        shared = None if self.shape.has_shared else x
        return run_experts(x, experts, weights, self.in_proj, self.out_proj, shared, plan)


def main(args: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="checkpoint directory; config.json is enough")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--tokens", type=int, nargs="+", choices=TOKENS, default=list(TOKENS), metavar="T")
    given = parser.parse_args(args)
    if not torch.cuda.is_available():
        print("tune_sparse_moe measures on a GPU, and torch sees none here", file=sys.stderr)
        return 1
    try:
        shape = shape_of(given.model)
    except (OSError, ValueError, VtcoreError) as error:
        print(error, file=sys.stderr)
        return 1
    # All at once: the first call of each kernel would compile them one by one.
    compile_launches(launches_of(shape, given.tokens))
    bandwidth = measure_bandwidth()
    experts = make_experts(shape, "cuda")
    entries = [tune(experts, tokens, bandwidth) for tokens in given.tokens]
    write_tuned(given.output, OP, entries, bandwidth)
    return 0


def shape_of(model: Path) -> Shape:
    """What the plans of a checkpoint follow."""
    config = parse_moe_config(json.loads((model / "config.json").read_text("utf-8")))
    return Shape(
        dtype="bfloat16",
        hidden=config.text.hidden_size,
        inner=config.expert_size,
        experts=config.num_experts,
        top_k=config.experts_per_token,
        has_shared=config.shared_is_group,
    )


def make_experts(shape: Shape, device: str) -> Experts:
    """Random weights, or none on the device "meta"."""
    groups = shape.experts + shape.has_shared

    def normal(*sizes: int) -> StackedLinear:
        weight = torch.empty(sizes, device=device, dtype=torch.bfloat16)
        return StackedLinear(weight.normal_(std=sizes[-1] ** -0.5))

    return Experts(
        shape,
        normal(groups, 2 * shape.inner, shape.hidden),
        normal(groups, shape.hidden, shape.inner),
    )


def row_tiles() -> Iterator[RowTile]:
    """Tiles worth a measurement for rows by themselves."""
    for columns, depth, warps in _BY_ROW:
        yield RowTile(columns=columns, depth=depth, num_warps=warps)


def tiles(rows: int) -> Iterator[Tile]:
    """Tiles of so many rows worth a measurement; each fits in shared memory."""
    for columns, depth, swap, warps, stages in _BY_TILE[rows]:
        if (rows + columns) * depth * 2 * stages <= _SHARED_BYTES:
            yield Tile(rows=rows, columns=columns, depth=depth, swap=swap, num_warps=warps, num_stages=stages)


def families(num_tokens: int, shape: Shape) -> Iterator[list[Plan]]:
    """Plans that differ in their tiles alone, both products alike."""
    if num_tokens <= _MOST_BY_ROW:
        yield [ByRow(tile, tile) for tile in row_tiles()]
    mean = num_tokens * shape.top_k / shape.experts
    for rows in _BY_TILE:
        # Tiles far larger or smaller than an expert's rows are never the best.
        if rows <= max(16, 4 * mean) and rows * 16 >= mean:
            yield [ByTile(tile, tile) for tile in tiles(rows)]


def tune(experts: Experts, num_tokens: int, bandwidth: float) -> dict[str, Any]:
    """The best plan for so many tokens, as an entry.

    Args:
        bandwidth: Bytes in a microsecond.
    """
    shape = experts.shape
    draws = _DRAWS if num_tokens <= _FEW else 2
    inputs = [
        (
            torch.randn(num_tokens, shape.hidden, device="cuda", dtype=torch.bfloat16),
            torch.randn(num_tokens, shape.experts + 1, device="cuda", dtype=torch.bfloat16),
        )
        for _ in range(draws)
    ]

    def us(plan: Plan) -> float:
        return measure([lambda x=x, g=g: experts.call(x, g, plan) for x, g in inputs])  # type: ignore[misc]

    best: Plan = rule(num_tokens, shape)
    rule_us = best_us = us(best)
    for family in families(num_tokens, shape):
        times = {plan: us(plan) for plan in family}
        first = min(times, key=lambda plan: times[plan])
        times |= {plan: us(plan) for plan in (_with_second(first, other) for other in family)}
        found = min(times, key=lambda plan: times[plan])
        if times[found] < min(best_us, rule_us * _MARGIN):
            best, best_us = found, times[found]
    x, gates = inputs[0]
    wanted = naive.sparse_moe(
        x, gates, experts.in_proj, experts.out_proj, shape.top_k, None if shape.has_shared else x
    )
    distance = float((experts.call(x, gates, best) - wanted).float().norm() / wanted.float().norm())
    if not distance < _BOUND:
        raise AssertionError(f"{best} for {num_tokens} tokens is {distance:.3f} off the reference")
    entry = {
        **asdict(shape),
        "tokens": num_tokens,
        "kernel": "rows" if isinstance(best, ByRow) else "tiles",
        "first": asdict(best.first),
        "second": asdict(best.second),
        "us": round(best_us, 2),
        "rule_us": round(rule_us, 2),
    }
    distinct = [route(g, shape.top_k, shape.has_shared)[0].unique().numel() for _, g in inputs]
    least_us = sum(distinct) / len(distinct) * experts.bytes_each / bandwidth
    figures = {"of_memory": round(least_us / best_us, 3), "off": round(distance, 5)}
    print(json.dumps(entry | figures), flush=True)
    return entry


def _with_second(plan: Plan, other: Plan) -> Plan:
    return type(plan)(plan.first, other.second)  # type: ignore[arg-type]


def measure(calls: Sequence[Callable[[], Tensor]]) -> float:
    """Microseconds of a call, the least of a few replays."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return timed(graph.replay) / len(calls)


def launches_of(shape: Shape, counts: Sequence[int]) -> list[Launch]:
    """The kernels of every plan that is measured, recorded and not run."""
    experts = make_experts(shape, "meta")
    launches: list[Launch] = []
    with recording(launches.append):
        for num_tokens in counts:
            x = torch.empty(num_tokens, shape.hidden, device="meta", dtype=torch.bfloat16)
            gates = torch.empty(num_tokens, shape.experts + 1, device="meta", dtype=torch.bfloat16)
            plans = [plan for family in families(num_tokens, shape) for plan in family]
            for plan in (rule(num_tokens, shape), *plans):
                experts.call(x, gates, plan)
    return launches


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
