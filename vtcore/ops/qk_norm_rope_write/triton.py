"""From projected queries, keys and values to what attention reads, as one Triton kernel.

Does not: project or attend.

Shape letters: as in `naive`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vtcore.interfaces.step import PagedPool, StepInputs
from vtcore.layers.norm import RmsWeight
from vtcore.layers.paged_kv import PagedKV
from vtcore.layers.rope import RotaryTable
from vtcore.ops.launch import launch


@triton.jit
def _heads_kernel(
    qk_ptr,
    v_ptr,
    scale_ptr,
    floor_ptr,
    table_ptr,
    positions_ptr,
    slots_ptr,
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    QK_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_t = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    slot = tl.load(slots_ptr + i_t)
    # Slots of the null block are those of tokens that write nothing.
    writes = slot >= BLOCK_SIZE
    if i_h < N + G:
        p_x = qk_ptr + i_t * QK_STRIDE + i_h * D
        b_x = tl.load(p_x + o_d, mask=m_d, other=0).to(tl.float32)
        floor = tl.load(floor_ptr)
        inverse = tl.rsqrt(tl.sum(b_x * b_x, 0) + floor * floor)
        b_x = b_x * inverse * tl.load(scale_ptr + i_h * D + o_d, mask=m_d, other=0)
        # The partner of element j in the rotated part is j + R/2 or j - R/2; read again, for it lies in the
        # registers of another thread.
        m_r = o_d < R
        o_p = tl.where(o_d < R // 2, o_d + R // 2, o_d - R // 2)
        b_p = tl.load(p_x + o_p, mask=m_r, other=0).to(tl.float32)
        b_p = b_p * inverse * tl.load(scale_ptr + i_h * D + o_p, mask=m_r, other=0)
        p_angle = table_ptr + tl.load(positions_ptr + i_t) * R + o_d % (R // 2)
        b_cos = tl.load(p_angle, mask=m_r, other=1.0)
        b_sin = tl.load(p_angle + R // 2, mask=m_r, other=0.0)
        b_x = b_x * b_cos + tl.where(o_d < R // 2, -b_p, b_p) * b_sin
        if i_h < N:
            tl.store(q_ptr + (i_t * N + i_h) * D + o_d, b_x.to(q_ptr.dtype.element_ty), mask=m_d)
        else:
            p_k = k_cache_ptr + (slot * G + i_h - N) * D + o_d
            tl.store(p_k, b_x.to(k_cache_ptr.dtype.element_ty), mask=m_d & writes)
    else:
        i_g = i_h - N - G
        b_v = tl.load(v_ptr + i_t * V_STRIDE + i_g * D + o_d, mask=m_d, other=0)
        tl.store(v_cache_ptr + (slot * G + i_g) * D + o_d, b_v, mask=m_d & writes)


def qk_norm_rope_write(
    qk_TX: Tensor,
    v_TX: Tensor,
    weight: RmsWeight,
    rotary: RotaryTable,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
) -> Tensor:
    """See `naive.qk_norm_rope_write`; tokens mapped to the null block write nothing."""
    num_tokens, groups = qk_TX.shape[0], kv.k_tokens.shape[1]
    all_heads, width = weight.scale.shape
    heads = all_heads - groups
    q_TND = qk_TX.new_empty((num_tokens, heads, width))
    launch(
        _heads_kernel,
        (num_tokens, all_heads + groups),
        qk_TX,
        v_TX,
        weight.scale,
        weight.floor,
        rotary.table_PR,
        step.positions,
        pool.slot_mapping,
        q_TND,
        kv.k_tokens,
        kv.v_tokens,
        QK_STRIDE=qk_TX.stride(0),
        V_STRIDE=v_TX.stride(0),
        N=heads,
        G=groups,
        D=width,
        R=rotary.table_PR.shape[1],
        BLOCK_SIZE=pool.block_size,
        BLOCK_D=triton.next_power_of_2(width),
        num_warps=1,
    )
    return q_TND
