"""Storing a step's keys and values, as one Triton kernel.

Does not: choose slots.

Shape letters: as in `naive`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vtcore.interfaces.step import PagedPool
from vtcore.layers.paged_kv import PagedKV
from vtcore.ops.launch import launch


@triton.jit
def _write_kernel(
    k_ptr,
    v_ptr,
    slots_ptr,
    k_cache_ptr,
    v_cache_ptr,
    K_TOKEN: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_HEAD: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + i_t)
    # Slots of the null block are those of tokens that write nothing.
    if slot >= BLOCK_SIZE:
        o_h = tl.arange(0, BLOCK_H)[:, None]
        o_d = tl.arange(0, BLOCK_D)[None, :]
        m_x = (o_h < H) & (o_d < D)
        o_to = (slot * H + o_h) * D + o_d
        b_k = tl.load(k_ptr + i_t * K_TOKEN + o_h * K_HEAD + o_d, mask=m_x, other=0)
        tl.store(k_cache_ptr + o_to, b_k, mask=m_x)
        b_v = tl.load(v_ptr + i_t * V_TOKEN + o_h * V_HEAD + o_d, mask=m_x, other=0)
        tl.store(v_cache_ptr + o_to, b_v, mask=m_x)


def kv_write(kv: PagedKV, k_THD: Tensor, v_THD: Tensor, pool: PagedPool) -> None:
    """See `naive.kv_write`; tokens mapped to the null block write nothing."""
    num_tokens, heads, width = k_THD.shape
    k_THD = k_THD if k_THD.stride(2) == 1 else k_THD.contiguous()
    v_THD = v_THD if v_THD.stride(2) == 1 else v_THD.contiguous()
    launch(
        _write_kernel,
        (num_tokens,),
        k_THD,
        v_THD,
        pool.slot_mapping,
        kv.k_tokens,
        kv.v_tokens,
        K_TOKEN=k_THD.stride(0),
        K_HEAD=k_THD.stride(1),
        V_TOKEN=v_THD.stride(0),
        V_HEAD=v_THD.stride(1),
        H=heads,
        D=width,
        BLOCK_SIZE=pool.block_size,
        BLOCK_H=triton.next_power_of_2(heads),
        BLOCK_D=triton.next_power_of_2(width),
        num_warps=4,
    )
