"""Kernels of a release's experts compile for sm_90 without spills, with wide loads, and for any number of
tokens."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from vtcore_qwen3_5_moe.ops.sparse_moe import plan, triton

from vtcore.layers.linear import StackedLinear
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording
from vtcore.testing.kernel_compile import check_compiled

HIDDEN, INNER, EXPERTS, TOP_K = 2048, 512, 256, 8
SHAPE = plan.Shape(
    dtype="bfloat16", hidden=HIDDEN, inner=INNER, experts=EXPERTS, top_k=TOP_K, has_shared=True
)
TOKENS = (1, 2, 8, 9, 64, 65, 256, 257, 513, 2049, 4096, 8192)
ALL = {
    "route_kernel",
    "row_in_kernel",
    "row_out_kernel",
    "count_kernel",
    "place_kernel",
    "tile_kernel",
    "sum_kernel",
}


def record(
    tokens: int, op: Callable[..., Tensor], dtype: torch.dtype = torch.bfloat16, *, is_odd: bool = False
) -> list[Launch]:
    """Launches of a release's shape, or of one that no tile divides."""

    def meta(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    hidden, inner, experts = (1000, 104, 60) if is_odd else (HIDDEN, INNER, EXPERTS)
    groups = experts if is_odd else experts + 1
    found: list[Launch] = []
    with recording(found.append):
        op(
            meta(tokens, hidden),
            meta(tokens, experts + 1),
            StackedLinear(meta(groups, 2 * inner, hidden)),
            StackedLinear(meta(groups, hidden, inner)),
            TOP_K,
            meta(tokens, hidden) if is_odd else None,
        )
    return found


def is_warpgroup(launch: Launch) -> bool:
    """Whether a kernel promises a warpgroup's instructions, which compute no ieee float32."""
    return launch.kernel.__name__ == "tile_kernel" and launch.constants["PRECISION"] is None


@pytest.mark.parametrize("is_odd", [False, True], ids=["released shape", "odd shape"])
def test_kernels_neither_spill_nor_overflow(is_odd: bool) -> None:
    launches = [
        launch
        for op in (triton.sparse_moe, triton.sparse_moe_batch_invariant)
        for tokens in TOKENS
        for launch in record(tokens, op, is_odd=is_odd)
    ]
    reports = check_compiled(launches, wgmma=is_warpgroup)
    assert {report.kernel for report in reports} == ALL


def test_float32_kernels_neither_spill_nor_overflow() -> None:
    launches = [
        launch
        for tokens in (1, 9, 4096)
        for launch in record(tokens, triton.sparse_moe, torch.float32)
        + record(tokens, triton.sparse_moe_batch_invariant, torch.float32)
    ]
    assert {report.kernel for report in check_compiled(launches)} == ALL


def test_weights_are_loaded_16_bytes_at_a_time_and_tiles_ahead() -> None:
    tiles = [
        launch
        for tokens in TOKENS
        for launch in record(tokens, triton.sparse_moe)
        if launch.kernel.__name__ == "tile_kernel"
    ]
    for _, kernel in compile_launches(tiles, target="sm_90").kernels:
        widths = set(re.findall(r"cp\.async\.\w+\.shared\.global\S* .*?\], (0x\w+)", kernel.asm["ptx"]))
        assert widths == {"0x10"}
    rows = [launch for launch in record(1, triton.sparse_moe) if launch.kernel.__name__.startswith("row_")]
    for launch, kernel in compile_launches(rows, target="sm_90").kernels:
        width, depth = (2 * INNER, HIDDEN) if launch.kernel.__name__ == "row_in_kernel" else (HIDDEN, INNER)
        columns, warps = launch.constants["COLUMNS"], launch.constants["num_warps"]
        each = columns * 2 * depth if width == 2 * INNER else columns * depth * launch.constants["CHOICES"]
        # 8 numbers of bfloat16 in a load of a thread.
        assert len(re.findall(r"ld\.global\S*\.v4\.b32", kernel.asm["ptx"])) >= each // (8 * 32 * warps)


def test_programs_of_one_token_fill_the_gpu() -> None:
    grids = {launch.kernel.__name__: launch.grid[0] for launch in record(1, triton.sparse_moe)}
    # An H200 has 132 multiprocessors.
    assert grids["row_in_kernel"] >= 2 * 132
    assert grids["row_out_kernel"] >= 1.9 * 132


def test_batch_invariant_products_differ_in_rows_alone() -> None:
    seen = [
        [
            (launch.kernel, launch.args[5:], launch.constants)
            for launch in record(tokens, triton.sparse_moe_batch_invariant)
            if launch.kernel.__name__ in ("route_kernel", "tile_kernel", "sum_kernel")
        ]
        for tokens in TOKENS
    ]
    assert len(seen[0]) == 4
    assert all(one == seen[0] for one in seen)


def test_variants_depend_on_the_tokens_of_a_warmup_alone() -> None:
    """Powers of two and one token more are what a start compiles; nothing between needs another kernel."""

    def variants(*tokens: int) -> set[str]:
        launches = [launch for count in tokens for launch in record(count, triton.sparse_moe)]
        return {f"{launch.kernel.__name__} {sorted(launch.constants.items())}" for launch in launches}

    warmed = variants(*(1 << i for i in range(13)), *((1 << i) + 1 for i in range(12)))
    assert variants(*range(1, 700), *range(700, 4096, 61)) <= warmed
