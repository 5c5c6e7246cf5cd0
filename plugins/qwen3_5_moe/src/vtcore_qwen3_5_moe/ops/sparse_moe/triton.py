"""A mixture-of-experts feed-forward as Triton kernels, from router logits on.

Few tokens: router, first product row by row, second product with the sum: three launches. Else: router, rows
put in the order of their experts, the two products in tiles, the sum. Grids follow from the number of tokens
alone: programs past what the routing needs leave at once.
Does not: compute the logits; take float64.

Shape letters: as in `naive`; M pairs of token and choice, N output width, D inner width of a product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import GroupedLinear
from vtcore.ops.launch import launch
from vtcore.ops.tuned import device_name
from vtcore_qwen3_5_moe.ops.sparse_moe.plan import (
    CHUNK,
    ByRow,
    Plan,
    Shape,
    Tile,
    choose_plan,
    invariant_plan,
    max_tiles,
)
from vtcore_qwen3_5_moe.ops.sparse_moe.route_kernel import route_kernel
from vtcore_qwen3_5_moe.ops.sparse_moe.row_kernel import row_in_kernel, row_out_kernel
from vtcore_qwen3_5_moe.ops.sparse_moe.sort_kernel import count_kernel, place_kernel
from vtcore_qwen3_5_moe.ops.sparse_moe.sum_kernel import sum_kernel
from vtcore_qwen3_5_moe.ops.sparse_moe.tile_kernel import tile_kernel

_MAPPED = 32
"""Tiles that one program describes."""
_SLICE = 16
"""Chunks whose counts are read together."""
_SUM_BLOCK = 1024


def sparse_moe(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """See `naive.sparse_moe`.

    Raises:
        EngineError: The experts' matrices are not stacked.
    """
    plan = choose_plan(device_name(), x_TH.shape[0], shape_of(x_TH, gates_TX, out_proj, top_k, shared_TH))
    experts_TC, weights_TX = route(gates_TX, top_k, shared_TH is None)
    return run_experts(x_TH, experts_TC, weights_TX, in_proj, out_proj, shared_TH, plan)


def sparse_moe_batch_invariant(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """As `sparse_moe`, each row's result the same bits in any batch.

    Raises:
        EngineError: The experts' matrices are not stacked.
    """
    plan = invariant_plan(_dtype_name(x_TH))
    experts_TC, weights_TX = route(gates_TX, top_k, shared_TH is None)
    return run_experts(x_TH, experts_TC, weights_TX, in_proj, out_proj, shared_TH, plan)


def shape_of(
    x_TH: Tensor, gates_TX: Tensor, out_proj: GroupedLinear, top_k: int, shared_TH: Tensor | None
) -> Shape:
    """What the plan of such a call follows.

    Raises:
        EngineError: The experts' matrices are not stacked.
    """
    return Shape(
        dtype=_dtype_name(x_TH),
        hidden=x_TH.shape[1],
        inner=_stacked(out_proj).shape[2],
        experts=gates_TX.shape[1] - 1,
        top_k=top_k,
        has_shared=shared_TH is None,
    )


def route(gates_TX: Tensor, top_k: int, has_shared: bool) -> tuple[Tensor, Tensor]:
    """A token's experts and their weights, in float32 whatever the logits are.

    Returns:
        Experts [T, C] int32, likeliest first, of equal logits the lower number first, with `has_shared` then
        E; and weights [T, K + 1] float32: those of the routed experts, then that of the shared one.
    """
    num_tokens, num_experts = gates_TX.shape[0], gates_TX.shape[1] - 1
    gates_TX = gates_TX if gates_TX.stride(1) == 1 else gates_TX.contiguous()
    choices = top_k + has_shared
    experts_TC = torch.empty(num_tokens, choices, dtype=torch.int32, device=gates_TX.device)
    weights_TX = torch.empty(num_tokens, top_k + 1, dtype=torch.float32, device=gates_TX.device)
    launch(
        route_kernel,
        (num_tokens,),
        gates_TX,
        experts_TC,
        weights_TX,
        STRIDE=gates_TX.stride(0) if num_tokens > 1 else num_experts + 1,
        NUM_EXPERTS=num_experts,
        TOP_K=top_k,
        CHOICES=choices,
        BLOCK=_power_of_two(num_experts),
        PLACES=_power_of_two(top_k + 1),
        num_warps=1,
    )
    return experts_TC, weights_TX


def run_experts(
    x_TH: Tensor,
    experts_TC: Tensor,
    weights_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    shared_TH: Tensor | None,
    plan: Plan,
) -> Tensor:
    """The weighted sum of the experts that `route` chose, by `plan`.

    Raises:
        EngineError: The experts' matrices are not stacked.
    """
    in_GND, out_GND = _stacked(in_proj), _stacked(out_proj)
    x_TH = x_TH.contiguous()
    if isinstance(plan, ByRow):
        return _by_row(x_TH, experts_TC, weights_TX, in_GND, out_GND, shared_TH, plan)
    num_tokens, hidden = x_TH.shape
    choices, top_k = experts_TC.shape[1], weights_TX.shape[1] - 1
    order_M, tiles_L3 = _order_rows(experts_TC, top_k, in_GND.shape[0], plan.first.rows)
    inner_MI = x_TH.new_empty(num_tokens * choices, out_GND.shape[2])
    _multiply(x_TH, in_GND, inner_MI, order_M, tiles_L3, choices, True, plan.first)
    y_MH = x_TH.new_empty(num_tokens * choices, hidden)
    _multiply(inner_MI, out_GND, y_MH, order_M, tiles_L3, choices, False, plan.second)
    out_TH = torch.empty_like(x_TH)
    block = min(_SUM_BLOCK, _power_of_two(hidden))
    launch(
        sum_kernel,
        (num_tokens, -(-hidden // block)),
        y_MH,
        weights_TX,
        x_TH if shared_TH is None else shared_TH.contiguous(),
        out_TH,
        H=hidden,
        TOP_K=top_k,
        CHOICES=choices,
        BLOCK=block,
        num_warps=4,
    )
    return out_TH


def _by_row(
    x_TH: Tensor,
    experts_TC: Tensor,
    weights_TX: Tensor,
    in_GND: Tensor,
    out_GND: Tensor,
    shared_TH: Tensor | None,
    plan: ByRow,
) -> Tensor:
    row_in, row_out = plan.first, plan.second
    num_tokens, hidden = x_TH.shape
    choices, inner = experts_TC.shape[1], out_GND.shape[2]
    num_rows = num_tokens * choices
    inner_MI = x_TH.new_empty(num_rows, inner)
    launch(
        row_in_kernel,
        (num_rows * -(-inner // row_in.columns),),
        x_TH,
        in_GND,
        experts_TC,
        inner_MI,
        num_rows,
        N=inner,
        K=hidden,
        CHOICES=choices,
        COLUMNS=row_in.columns,
        DEPTH=min(row_in.depth, _power_of_two(hidden)),
        num_warps=row_in.num_warps,
    )
    out_TH = torch.empty_like(x_TH)
    launch(
        row_out_kernel,
        (num_tokens * -(-hidden // row_out.columns),),
        inner_MI,
        out_GND,
        experts_TC,
        weights_TX,
        x_TH if shared_TH is None else shared_TH.contiguous(),
        out_TH,
        num_tokens,
        N=hidden,
        K=inner,
        TOP_K=weights_TX.shape[1] - 1,
        CHOICES=choices,
        COLUMNS=row_out.columns,
        DEPTH=min(row_out.depth, _power_of_two(inner)),
        num_warps=row_out.num_warps,
    )
    return out_TH


def _order_rows(experts_TC: Tensor, top_k: int, num_groups: int, rows: int) -> tuple[Tensor, Tensor]:
    """Pairs of token and choice by expert [M] int32, and tiles [L, 3] int32: expert or -1, first, end."""
    num_tokens, choices = experts_TC.shape
    num_experts = num_groups - (choices > top_k)
    num_chunks = -(-num_tokens * top_k // CHUNK)
    num_tiles = max_tiles(num_tokens, num_experts, top_k, choices > top_k, rows)
    bins = _power_of_two(num_experts)
    device = experts_TC.device
    counts = torch.empty(num_chunks, bins, dtype=torch.int32, device=device)
    order_M = torch.empty(num_tokens * choices, dtype=torch.int32, device=device)
    tiles_L3 = torch.empty(num_tiles, 3, dtype=torch.int32, device=device)
    is_counted = num_chunks > 1
    shape = {"TOP_K": top_k, "CHOICES": choices, "CHUNK": CHUNK, "BINS": bins}
    if is_counted:
        launch(count_kernel, (num_chunks,), experts_TC, counts, num_tokens * top_k, **shape, num_warps=4)
    launch(
        place_kernel,
        (num_chunks + -(-num_tiles // _MAPPED),),
        experts_TC,
        counts,
        order_M,
        tiles_L3,
        num_tokens,
        num_chunks,
        num_tiles,
        NUM_EXPERTS=num_experts,
        ROWS=rows,
        TILES=_MAPPED,
        SLICE=_SLICE,
        COUNTED=is_counted,
        **shape,
        num_warps=8,
    )
    return order_M, tiles_L3


def _multiply(
    x_MD: Tensor,
    weight_GND: Tensor,
    out_MN: Tensor,
    order_M: Tensor,
    tiles_L3: Tensor,
    choices: int,
    is_first: bool,
    tile: Tile,
) -> None:
    _, width, depth = weight_GND.shape
    num_columns = -(-width // tile.columns)
    launch(
        tile_kernel,
        (tiles_L3.shape[0] * num_columns,),
        x_MD,
        weight_GND,
        out_MN,
        order_M,
        tiles_L3,
        num_columns,
        N=width,
        K=depth,
        CHOICES=choices,
        IS_FIRST=is_first,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        SWAP=tile.swap,
        PRECISION="ieee" if x_MD.itemsize == 4 else None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _stacked(products: GroupedLinear) -> Tensor:
    if products.weight_GNK is None:
        raise EngineError("the experts' matrices are not stacked, which the kernels of sparse_moe read")
    return products.weight_GNK


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
