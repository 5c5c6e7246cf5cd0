"""Gated DeltaNet's kernels compile for sm_90 at the shapes of Qwen3.5, and keep to what a block has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_net.triton import gated_delta_net, gated_delta_net_batch_invariant
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import build_delta_rule_shape

from vtcore.interfaces.step import LayerCache, PrefillSpan, SlotPool, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.ops.launch import Launch, recording
from vtcore.testing.kernel_compile import check_compiled

KEY_HEADS, WIDTH, TAPS = 16, 128, 4
VALUE_HEADS = (16, 32, 48)
"""Of 0.8B and 2B, of 4B, 9B and 35B-A3B, of 27B."""
CHUNKED = {"prepare_kernel", "solve_kernel", "scan_kernel", "output_kernel"}


def meta(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def record(
    value_heads: int,
    *,
    uniform: int = 0,
    query: int = 1,
    prefill: Sequence[int] = (),
    dtype: torch.dtype = torch.bfloat16,
    op: Callable[..., Tensor] = gated_delta_net,
) -> list[Launch]:
    """Launches of one step; a uniform row has a write slot for each query token."""
    channels, values = (2 * KEY_HEADS + value_heads) * WIDTH, value_heads * WIDTH
    split = (channels, values, value_heads, value_heads)
    rows, tokens = uniform + len(prefill), uniform * query + sum(prefill)
    acc = torch.float32
    layer = DeltaNetLayer(
        conv_WC=meta(TAPS, channels, dtype=acc),
        decay_rate_G=meta(value_heads, dtype=acc),
        dt_bias_G=meta(value_heads, dtype=acc),
        norm=build_rms_weight(meta(WIDTH, dtype=acc), 1e-6),
        shape=build_delta_rule_shape(
            key_heads=KEY_HEADS,
            value_heads=value_heads,
            key_width=WIDTH,
            value_width=WIDTH,
            dtype=acc,
            device="meta",
        ),
        split=split,
        activation="silu",
        acc_dtype=acc,
    )
    spans, offset = [], uniform * query
    for index, length in enumerate(prefill, uniform):
        spans.append(PrefillSpan(index, offset, length, 0))
        offset += length
    step = StepInputs(
        ids=meta(tokens),
        positions=meta(tokens),
        num_uniform=uniform,
        query_len=query,
        prefill=tuple(spans),
        computed=meta(rows),
        query_lens=meta(rows),
        query_start=meta(rows + 1),
        query_len_min=query,
        context_max=1,
        pools=(SlotPool(meta(rows), meta(rows, query)),),
    )
    tensors = {
        "conv": meta(4, TAPS - 1, channels, dtype=dtype),
        "state": meta(4, value_heads, WIDTH, WIDTH, dtype=acc),
    }
    found: list[Launch] = []
    with recording(found.append):
        op(meta(tokens, sum(split), dtype=dtype), layer, LayerCache(0, tensors), step)
    return found


def has_wgmma(launch: Launch) -> bool:
    """Where a chunk meets a state; a warpgroup's instructions compute no ieee float32."""
    is_tall = launch.kernel.__name__ in ("scan_kernel", "output_kernel")
    return is_tall and launch.constants["PRECISION"] is None


def is_solve(launch: Launch) -> bool:
    """With two warps it spills, and still takes two thirds of the time that it takes with four and without
    spills (bench/notes.md)."""
    return launch.kernel.__name__ == "solve_kernel"


@pytest.mark.parametrize("value_heads", VALUE_HEADS)
def test_steps_of_a_release(value_heads: int) -> None:
    sizes = [(1, 1), (256, 1), (8, 2), (8, 4)]
    launches = [launch for rows, query in sizes for launch in record(value_heads, uniform=rows, query=query)]
    reports = check_compiled(launches)
    assert {report.kernel for report in reports} == {"step_kernel", "tail_kernel"}
    columns = {r.launch.constants["BV"] for r in reports if r.kernel == "step_kernel"}
    assert columns == {64, 128}, "few and many rows have steps of their own"


@pytest.mark.parametrize("value_heads", VALUE_HEADS)
def test_chunks_of_a_release(value_heads: int) -> None:
    launches = [launch for rows in (1, 8) for launch in record(value_heads, prefill=[1024] * rows)]
    reports = check_compiled(launches, wgmma=has_wgmma, may_spill=is_solve)
    assert {report.kernel for report in reports} == CHUNKED | {"tail_kernel"}
    widths = {r.launch.constants["BV"] for r in reports if r.kernel == "scan_kernel"}
    assert widths == {32, 64}, "few and many rows have scans of their own"


def test_float32_fits_a_block() -> None:
    """Exact float32 is for comparisons only: tiles and products sized for bfloat16 may spill."""
    launches = record(16, uniform=2, prefill=[100], dtype=torch.float32)
    reports = check_compiled(launches, may_spill=lambda launch: launch.kernel.__name__ in CHUNKED)
    assert {report.kernel for report in reports} == CHUNKED | {"step_kernel", "tail_kernel"}


def test_batch_invariant_launches_differ_in_rows_alone() -> None:
    seen = []
    for uniform, prefill in ((1, [1]), (24, [64, 1000]), (256, [4096] * 8)):
        launches = record(16, uniform=uniform, prefill=prefill, op=gated_delta_net_batch_invariant)
        seen.append([(launch.kernel, launch.grid[1:2], launch.constants) for launch in launches])
    assert len(seen[0]) == len(CHUNKED) + 2
    assert all(one == seen[0] for one in seen)
