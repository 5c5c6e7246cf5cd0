"""Both products of an expert for few tokens as Triton kernels: each row by itself, on no matrix unit.

With less rows than experts hardly two meet in one, so ordering them would only add launches.
Does not: route.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def row_in_kernel(
    x_ptr,
    weight_ptr,
    experts_ptr,
    out_ptr,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    CHOICES: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """silu(gate) * up of one pair of token and choice, COLUMNS of its N."""
    i_r = (tl.program_id(0) % num_rows).to(tl.int64)
    i_n = tl.program_id(0) // num_rows
    i_e = tl.load(experts_ptr + i_r).to(tl.int64)
    o_n = i_n * COLUMNS + tl.arange(0, COLUMNS)
    o_k = tl.arange(0, DEPTH)
    p_x = x_ptr + i_r // CHOICES * K + o_k
    p_gate = weight_ptr + (i_e * 2 * N + tl.minimum(o_n, N - 1))[:, None] * K + o_k[None, :]
    p_up = p_gate + N * K
    b_gate = tl.zeros([COLUMNS, DEPTH], tl.float32)
    b_up = tl.zeros([COLUMNS, DEPTH], tl.float32)
    for i_k in tl.static_range(0, K, DEPTH):
        if i_k + DEPTH <= K:
            b_x = tl.load(p_x + i_k).to(tl.float32)
            b_g = tl.load(p_gate + i_k)
            b_u = tl.load(p_up + i_k)
        else:
            m_k = o_k < K - i_k
            b_x = tl.load(p_x + i_k, mask=m_k, other=0.0).to(tl.float32)
            b_g = tl.load(p_gate + i_k, mask=m_k[None, :], other=0.0)
            b_u = tl.load(p_up + i_k, mask=m_k[None, :], other=0.0)
        b_gate += b_g.to(tl.float32) * b_x[None, :]
        b_up += b_u.to(tl.float32) * b_x[None, :]
    gate = tl.sum(b_gate, 1)
    b_y = gate / (1.0 + tl.exp(-gate)) * tl.sum(b_up, 1)
    tl.store(out_ptr + i_r * N + o_n, b_y.to(out_ptr.dtype.element_ty), mask=o_n < N)


@triton.jit(do_not_specialize=["num_tokens"])
def row_out_kernel(
    x_ptr,
    weight_ptr,
    experts_ptr,
    weights_ptr,
    shared_ptr,
    out_ptr,
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """COLUMNS of one token's result: all its experts, each rounded, weighted and added in order."""
    i_t = (tl.program_id(0) % num_tokens).to(tl.int64)
    o_n = tl.program_id(0) // num_tokens * COLUMNS + tl.arange(0, COLUMNS)
    o_w = tl.minimum(o_n, N - 1)
    o_k = tl.arange(0, DEPTH)
    b_total = tl.zeros([COLUMNS], tl.float32)
    for c in tl.static_range(CHOICES):
        i_e = tl.load(experts_ptr + i_t * CHOICES + c).to(tl.int64)
        b_acc = tl.zeros([COLUMNS, DEPTH], tl.float32)
        p_x = x_ptr + (i_t * CHOICES + c) * K + o_k
        p_w = weight_ptr + (i_e * N + o_w)[:, None] * K + o_k[None, :]
        for i_k in tl.static_range(0, K, DEPTH):
            if i_k + DEPTH <= K:
                b_x = tl.load(p_x + i_k).to(tl.float32)
                b_w = tl.load(p_w + i_k)
            else:
                m_k = o_k < K - i_k
                b_x = tl.load(p_x + i_k, mask=m_k, other=0.0).to(tl.float32)
                b_w = tl.load(p_w + i_k, mask=m_k[None, :], other=0.0)
            b_acc += b_w.to(tl.float32) * b_x[None, :]
        b_y = tl.sum(b_acc, 1).to(out_ptr.dtype.element_ty).to(tl.float32)
        b_total += tl.load(weights_ptr + i_t * (TOP_K + 1) + c) * b_y
    m_n = o_n < N
    if CHOICES == TOP_K:
        b_y = tl.load(shared_ptr + i_t * N + o_n, mask=m_n, other=0.0).to(tl.float32)
        b_total += tl.load(weights_ptr + i_t * (TOP_K + 1) + TOP_K) * b_y
    tl.store(out_ptr + i_t * N + o_n, b_total.to(out_ptr.dtype.element_ty), mask=m_n)
