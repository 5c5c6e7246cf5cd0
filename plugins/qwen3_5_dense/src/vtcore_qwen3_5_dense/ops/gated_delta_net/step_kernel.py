"""Kernels of uniform rows: convolution, gates, recurrent delta rule and gated norm in one; then the conv
tails.

Does not: chunk. A program owns one row and one value head, so states need no hand-over; tails do, for value
heads share the channels of a key head, and are therefore written by a kernel of their own afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv_taps(x_ptr, tail_ptr, w_ptr, o_c, m_c, i_j, X: tl.constexpr, C: tl.constexpr, W: tl.constexpr):
    """silu of the convolution at query token `i_j` of a row, for channels `o_c`.

    x_ptr: The row's first query token. tail_ptr: The row's slot.
    """
    # One tile of all taps: the sum over it fixes where the loads happen. Loads that a later use may pull
    # into its own layout are repeated by every thread that shares a channel there.
    o_w = tl.arange(0, triton.next_power_of_2(W))
    i_x = i_j + o_w - (W - 1)
    m_old = ((o_w < W) & (i_x < 0))[:, None] & m_c[None, :]
    m_new = ((o_w < W) & (i_x >= 0))[:, None] & m_c[None, :]
    p_old = tail_ptr + (i_x + W - 1)[:, None] * C + o_c[None, :]
    b_x = tl.load(p_old, mask=m_old, other=0).to(tl.float32)
    b_x += tl.load(x_ptr + i_x[:, None] * X + o_c[None, :], mask=m_new, other=0).to(tl.float32)
    m_w = (o_w < W)[:, None] & m_c[None, :]
    b_y = tl.sum(b_x * tl.load(w_ptr + o_w[:, None] * C + o_c[None, :], mask=m_w, other=0), 0)
    return b_y / (1 + tl.exp(-b_y))


@triton.jit
def softplus(b_x):
    """log(1 + exp(x)); x itself above 20. Source: torch.nn.functional.softplus, its default threshold."""
    return tl.where(b_x > 20, b_x, tl.log(1 + tl.exp(tl.minimum(b_x, 20.0))))


@triton.jit
def gate(b_z, IS_SILU: tl.constexpr):
    """The output gate's activation."""
    b_s = 1 / (1 + tl.exp(-b_z))
    return b_z * b_s if IS_SILU else b_s


@triton.jit
def query_key(
    p_x,
    p_tail,
    conv_ptr,
    decay,
    dt_bias,
    scale,
    l2_eps,
    i_j,
    i_k,
    i_h,
    X: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """Query, key, their product, decay and write strength of a row's query token `i_j` for a value head."""
    o_k = tl.arange(0, K)
    m_k = o_k < K
    b_q = conv_taps(p_x, p_tail, conv_ptr, i_k * K + o_k, m_k, i_j, X, C, W)
    b_k = conv_taps(p_x, p_tail, conv_ptr, (HK + i_k) * K + o_k, m_k, i_j, X, C, W)
    b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, 0) + l2_eps) * scale
    b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 0) + l2_eps)
    p_gates = p_x + i_j * X + C + HV * V + i_h
    beta = 1 / (1 + tl.exp(-tl.load(p_gates).to(tl.float32)))
    g = tl.exp(softplus(tl.load(p_gates + HV).to(tl.float32) + dt_bias) * decay)
    return b_q, b_k, tl.sum(b_q * b_k, 0), g, beta


@triton.jit
def step_kernel(
    x_ptr,
    conv_ptr,
    decay_ptr,
    dt_bias_ptr,
    norm_scale_ptr,
    norm_floor_ptr,
    tail_ptr,
    state_ptr,
    read_ptr,
    write_ptr,
    lens_ptr,
    out_ptr,
    scale,
    l2_eps,
    Q: tl.constexpr,
    S: tl.constexpr,
    X: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    IS_SILU: tl.constexpr,
):
    """All query tokens of one uniform row and value head, `BV` columns of the state after the others.

    A column of the state depends on no other; only the norm of the outputs needs all, so they are kept. With
    few columns in registers several programs share a multiprocessor, and some load while others compute.
    """
    i_p = tl.program_id(0)
    i_u = (i_p // HV).to(tl.int64)
    i_h = i_p % HV
    i_k = i_h // (HV // HK)
    QP: tl.constexpr = triton.next_power_of_2(Q)
    o_k = tl.arange(0, K)
    o_b = tl.arange(0, BV)
    o_j = tl.arange(0, QP)[:, None, None]
    o_t = tl.arange(0, V // BV)[None, :, None]
    slot = tl.load(read_ptr + i_u)
    length = tl.load(lens_ptr + i_u)
    length = tl.where(slot > 0, length, 0)
    p_x = x_ptr + i_u * Q * X
    o_all = o_t * BV + o_b[None, None, :]
    p_out = out_ptr + (i_u * Q + o_j) * (HV * V) + i_h * V + o_all
    b_out = tl.zeros((QP, V // BV, BV), tl.float32)
    if length > 0:
        p_tail = tail_ptr + slot * ((W - 1) * C)
        decay = tl.load(decay_ptr + i_h)
        dt_bias = tl.load(dt_bias_ptr + i_h)
        if Q == 1:
            b_q, b_k, b_qk, g, beta = query_key(
                p_x, p_tail, conv_ptr, decay, dt_bias, scale, l2_eps, 0, i_k, i_h, X, C, W, HK, HV, K, V
            )
        for i_t in range(V // BV):
            o_v = i_t * BV + o_b
            o_s = o_k[:, None] * V + o_v[None, :]
            b_state = tl.load(state_ptr + (slot * HV + i_h) * (K * V) + o_s)
            for j in range(length if Q > 1 else 1):
                if Q > 1:
                    b_q, b_k, b_qk, g, beta = query_key(
                        p_x,
                        p_tail,
                        conv_ptr,
                        decay,
                        dt_bias,
                        scale,
                        l2_eps,
                        j,
                        i_k,
                        i_h,
                        X,
                        C,
                        W,
                        HK,
                        HV,
                        K,
                        V,
                    )
                b_v = conv_taps(p_x, p_tail, conv_ptr, 2 * HK * K + i_h * V + o_v, o_v < V, j, X, C, W)
                # Both products with the state before it changes: q's part of the change is q . k of it.
                b_old = tl.sum(b_state * b_k[:, None], 0)
                b_read = tl.sum(b_state * b_q[:, None], 0)
                b_delta = (b_v - b_old * g) * beta
                b_o = b_read * g + b_delta * b_qk
                b_state = b_state * g + b_k[:, None] * b_delta[None, :]
                b_out += tl.where((o_j == j) & (o_t == i_t), b_o[None, None, :], 0)
                to = tl.load(write_ptr + i_u * S + j)
                if to > 0:
                    tl.store(state_ptr + (to * HV + i_h) * (K * V) + o_s, b_state)
        floor = tl.load(norm_floor_ptr)
        m_j = (o_j < length) & (o_all < V)
        b_z = tl.load(p_x + o_j * X + C + i_h * V + o_all, mask=m_j, other=0).to(tl.float32)
        b_square = tl.sum(tl.sum(b_out * b_out, 2), 1)[:, None, None]
        b_out = b_out * tl.rsqrt(b_square + floor * floor) * tl.load(norm_scale_ptr + o_all)
        b_out = tl.where(m_j, b_out * gate(b_z, IS_SILU), 0)
    tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), mask=(o_j < Q) & (o_all < V))


@triton.jit(do_not_specialize=["num_uniform"])
def tail_kernel(
    x_ptr,
    tail_ptr,
    read_ptr,
    write_ptr,
    lens_ptr,
    start_ptr,
    num_uniform,
    S: tl.constexpr,
    X: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The last W - 1 inputs after each query token of a uniform row, after the last one of a prefill row."""
    i_b = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_c = o_c < C
    slot = tl.load(read_ptr + i_b)
    length = tl.load(lens_ptr + i_b)
    if (slot > 0) & (length > 0):
        p_x = x_ptr + tl.load(start_ptr + i_b) * X + o_c
        o_w = tl.arange(0, triton.next_power_of_2(W))
        m_w = o_w < W - 1
        # All of the old tail is in registers before any of it is overwritten.
        b_old = tl.load(
            tail_ptr + slot * ((W - 1) * C) + o_w[:, None] * C + o_c[None, :],
            mask=m_w[:, None] & m_c[None, :],
            other=0,
        )
        tl.debug_barrier()
        is_uniform = i_b < num_uniform
        first = tl.where(is_uniform, 1, length)
        for j in range(first, length + 1):
            to = tl.load(write_ptr + i_b * S + tl.where(is_uniform, j - 1, 0))
            for w in tl.static_range(W - 1):
                # Row w of the new tail is input j - (W - 1) + w; those before the query are in the old one.
                i_x = j - (W - 1) + w
                b_kept = tl.sum(tl.where((o_w == i_x + W - 1)[:, None], b_old.to(tl.float32), 0), 0)
                b_new = tl.load(p_x + i_x * X, mask=m_c & (i_x >= 0), other=0).to(tl.float32)
                b_row = tl.where(i_x >= 0, b_new, b_kept)
                p_to = tail_ptr + to * ((W - 1) * C) + w * C + o_c
                tl.store(p_to, b_row.to(tail_ptr.dtype.element_ty), mask=m_c & (to > 0))
