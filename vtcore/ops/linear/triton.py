"""Matrix products over loaded weights on a GPU: the library's, or kernels of our own where those are faster.

Does not: load weights.

Shape letters: M rows, N output width, K input width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.ops.launch import launch
from vtcore.ops.linear import naive
from vtcore.ops.linear.kernels import rows_kernel, sum_parts_kernel, tiles_kernel
from vtcore.ops.linear.plan import ROWS, ByRow, ByTile, Plan, bucket, plans
from vtcore.ops.tuned import device_name

_SUM_BLOCK = 1024
INVARIANT = {
    torch.bfloat16: ByTile(rows=64, columns=128, depth=64, parts=1, num_warps=4, num_stages=4),
    torch.float32: ByTile(rows=32, columns=64, depth=32, parts=1, num_warps=4, num_stages=3),
}
"""The same tiles for any number of rows, so that a row's sums never change their order."""


def linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """See `naive.linear`."""
    num_rows = x_MK.shape[0]
    rows = bucket(num_rows) if num_rows <= ROWS[-1] else None
    if rows is None or x_MK.dtype not in INVARIANT:
        return naive.linear(x_MK, weight_NK)
    width, depth = weight_NK.shape
    plan = plans(device_name(), str(x_MK.dtype).removeprefix("torch."), width, depth)[rows]
    return multiply(x_MK, weight_NK, plan)


def linear_batch_invariant(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """As `linear`, each row's result the same bits among any other rows."""
    return multiply(x_MK, weight_NK, INVARIANT[x_MK.dtype])


def multiply(x_MK: Tensor, weight_NK: Tensor, plan: Plan) -> Tensor:
    """x W^T by a given plan."""
    if plan is None or not x_MK.shape[0]:
        return naive.linear(x_MK, weight_NK)
    if x_MK.stride(1) != 1:
        x_MK = x_MK.contiguous()
    y_MN = torch.empty((x_MK.shape[0], weight_NK.shape[0]), dtype=x_MK.dtype, device=x_MK.device)
    multiply_into(y_MN, x_MK, weight_NK, plan)
    return y_MN


def multiply_into(y_MN: Tensor, x_MK: Tensor, weight_NK: Tensor, plan: ByRow | ByTile) -> None:
    """x W^T by a kernel; y and W are contiguous, x's rows are."""
    if isinstance(plan, ByRow):
        _by_row(x_MK, weight_NK, y_MN, plan)
    else:
        _by_tile(x_MK, weight_NK, y_MN, plan)


def _by_row(x_MK: Tensor, weight_NK: Tensor, y_MN: Tensor, plan: ByRow) -> None:
    num_rows, depth = x_MK.shape
    width = weight_NK.shape[0]
    launch(
        rows_kernel,
        (-(-width // plan.columns),),
        x_MK,
        weight_NK,
        y_MN,
        num_rows,
        width,
        depth,
        x_MK.stride(0),
        ROWS=1 << (num_rows - 1).bit_length(),
        COLUMNS=plan.columns,
        DEPTH=plan.depth,
        EVEN=depth % plan.depth == 0,
        num_warps=plan.num_warps,
    )


def _by_tile(x_MK: Tensor, weight_NK: Tensor, y_MN: Tensor, plan: ByTile) -> None:
    num_rows, depth = x_MK.shape
    width = weight_NK.shape[0]
    steps = -(-depth // plan.depth)
    each = -(-steps // plan.parts)
    parts = -(-steps // each)
    into = y_MN
    if parts > 1:
        into = torch.empty((parts, num_rows, width), dtype=torch.float32, device=x_MK.device)
    launch(
        tiles_kernel,
        (-(-width // plan.columns), -(-num_rows // plan.rows), parts),
        x_MK,
        weight_NK,
        into,
        num_rows,
        width,
        depth,
        x_MK.stride(0),
        each,
        ROWS=plan.rows,
        COLUMNS=plan.columns,
        DEPTH=plan.depth,
        EVEN=depth % plan.depth == 0,
        PRECISION="ieee" if x_MK.dtype == torch.float32 else None,
        EVICTION="evict_first" if num_rows <= plan.rows else "",
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )
    if parts > 1:
        launch(
            sum_parts_kernel,
            (-(-num_rows * width // _SUM_BLOCK),),
            into,
            y_MN,
            num_rows * width,
            PARTS=parts,
            BLOCK=_SUM_BLOCK,
        )
