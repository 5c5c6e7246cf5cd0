"""The gate of a SwiGLU block, as one Triton kernel.

Does not: project.

Shape letters: T query tokens, I inner width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vtcore.ops.launch import launch

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(x_ptr, y_ptr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i_t = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_i = o_i < WIDTH
    p_x = x_ptr + i_t * STRIDE + o_i
    b_gate = tl.load(p_x, mask=m_i, other=0).to(tl.float32)
    b_up = tl.load(p_x + WIDTH, mask=m_i, other=0).to(tl.float32)
    b_y = b_gate / (1 + tl.exp(-b_gate)) * b_up
    tl.store(y_ptr + i_t * WIDTH + o_i, b_y.to(y_ptr.dtype.element_ty), mask=m_i)


def silu_mul(gate_up_TX: Tensor) -> Tensor:
    """See `naive.silu_mul`."""
    num_tokens, width = gate_up_TX.shape[0], gate_up_TX.shape[1] // 2
    out = gate_up_TX.new_empty((num_tokens, width))
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        _silu_mul_kernel,
        (num_tokens, triton.cdiv(width, block)),
        gate_up_TX,
        out,
        STRIDE=gate_up_TX.stride(0),
        WIDTH=width,
        BLOCK=block,
        num_warps=4,
    )
    return out
