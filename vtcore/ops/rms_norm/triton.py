"""RMS norm as one Triton kernel: a row per program, so a row's sum never depends on the others.

Does not: know whether the stored weight was zero-centred; `RmsWeight` has it folded in.

Shape letters: T rows, H width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vtcore.layers.norm import RmsWeight
from vtcore.ops.launch import launch


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    scale_ptr,
    floor_ptr,
    y_ptr,
    sum_ptr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    i_t = tl.program_id(0).to(tl.int64)
    o_h = tl.arange(0, BLOCK)
    m_h = o_h < WIDTH
    b_x = tl.load(x_ptr + i_t * STRIDE + o_h, mask=m_h, other=0).to(tl.float32)
    if ADDS:
        b_x += tl.load(residual_ptr + i_t * WIDTH + o_h, mask=m_h, other=0).to(tl.float32)
        b_sum = b_x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + i_t * WIDTH + o_h, b_sum, mask=m_h)
        # What is normalised is what later layers will read: the rounded sum.
        b_x = b_sum.to(tl.float32)
    floor = tl.load(floor_ptr)
    b_scale = tl.load(scale_ptr + o_h, mask=m_h, other=0)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) + floor * floor) * b_scale
    tl.store(y_ptr + i_t * WIDTH + o_h, b_y.to(y_ptr.dtype.element_ty), mask=m_h)


def launch_rms_norm(x_TH: Tensor, residual_TH: Tensor | None, weight: RmsWeight) -> tuple[Tensor, Tensor]:
    """Normalise rows, or their sums with a residual.

    Args:
        x_TH: Rows may be apart (a view of a wider matrix).
        residual_TH: Contiguous; None adds nothing.

    Returns:
        (normalised, sum), both new and contiguous; without a residual the sum is x_TH itself.
    """
    num_rows, width = x_TH.shape
    block = triton.next_power_of_2(width)
    y_TH = torch.empty((num_rows, width), dtype=x_TH.dtype, device=x_TH.device)
    sum_TH = x_TH if residual_TH is None else torch.empty_like(y_TH)
    launch(
        _rms_norm_kernel,
        (num_rows,),
        x_TH,
        x_TH if residual_TH is None else residual_TH,
        weight.scale,
        weight.floor,
        y_TH,
        sum_TH,
        STRIDE=x_TH.stride(0),
        WIDTH=width,
        BLOCK=block,
        ADDS=residual_TH is not None,
        num_warps=min(16, max(1, block // 512)),
    )
    return y_TH, sum_TH


def rms_norm(x: Tensor, weight: RmsWeight) -> Tensor:
    """See `naive.rms_norm`; the weight is one over the last dimension."""
    return launch_rms_norm(x.reshape(-1, x.shape[-1]), None, weight)[0].view(x.shape)
