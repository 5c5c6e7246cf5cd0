"""A token's experts added up in the order of its choices, as a Triton kernel.

Does not: multiply matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_kernel(
    y_ptr,
    weights_ptr,
    shared_ptr,
    out_ptr,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one token's result."""
    i_t = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_h = o_h < H
    b_total = tl.zeros([BLOCK], tl.float32)
    for c in tl.static_range(CHOICES):
        b_y = tl.load(y_ptr + (i_t * CHOICES + c) * H + o_h, mask=m_h, other=0.0).to(tl.float32)
        b_total += tl.load(weights_ptr + i_t * (TOP_K + 1) + c) * b_y
    if CHOICES == TOP_K:
        b_y = tl.load(shared_ptr + i_t * H + o_h, mask=m_h, other=0.0).to(tl.float32)
        b_total += tl.load(weights_ptr + i_t * (TOP_K + 1) + TOP_K) * b_y
    tl.store(out_ptr + i_t * H + o_h, b_total.to(out_ptr.dtype.element_ty), mask=m_h)
