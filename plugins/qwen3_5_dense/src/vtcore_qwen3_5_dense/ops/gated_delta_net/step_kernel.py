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
    IS_SILU: tl.constexpr,
):
    """All query tokens of one uniform row and value head, the state in registers between them."""
    i_p = tl.program_id(0)
    i_u = (i_p // HV).to(tl.int64)
    i_h = i_p % HV
    i_k = i_h // (HV // HK)
    o_k = tl.arange(0, K)
    o_v = tl.arange(0, V)
    m_k = o_k < K
    m_v = o_v < V
    slot = tl.load(read_ptr + i_u)
    length = tl.load(lens_ptr + i_u)
    length = tl.where(slot > 0, length, 0)
    p_x = x_ptr + i_u * Q * X
    p_out = out_ptr + i_u * Q * (HV * V) + i_h * V + o_v
    if length > 0:
        o_s = o_k[:, None] * V + o_v[None, :]
        b_state = tl.load(state_ptr + (slot * HV + i_h) * (K * V) + o_s)
        p_tail = tail_ptr + slot * ((W - 1) * C)
        decay = tl.load(decay_ptr + i_h)
        dt_bias = tl.load(dt_bias_ptr + i_h)
        b_scale = tl.load(norm_scale_ptr + o_v)
        floor = tl.load(norm_floor_ptr)
        for j in range(Q):
            if j < length:
                b_q = conv_taps(p_x, p_tail, conv_ptr, i_k * K + o_k, m_k, j, X, C, W)
                b_k = conv_taps(p_x, p_tail, conv_ptr, (HK + i_k) * K + o_k, m_k, j, X, C, W)
                b_v = conv_taps(p_x, p_tail, conv_ptr, 2 * HK * K + i_h * V + o_v, m_v, j, X, C, W)
                b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, 0) + l2_eps) * scale
                b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 0) + l2_eps)
                p_gates = p_x + j * X + C + HV * V + i_h
                beta = 1 / (1 + tl.exp(-tl.load(p_gates).to(tl.float32)))
                g = softplus(tl.load(p_gates + HV).to(tl.float32) + dt_bias) * decay
                b_state = b_state * tl.exp(g)
                b_delta = (b_v - tl.sum(b_state * b_k[:, None], 0)) * beta
                b_state += b_k[:, None] * b_delta[None, :]
                b_o = tl.sum(b_state * b_q[:, None], 0)
                b_o = b_o * tl.rsqrt(tl.sum(b_o * b_o, 0) + floor * floor) * b_scale
                b_z = tl.load(p_x + j * X + C + i_h * V + o_v).to(tl.float32)
                b_o = b_o * gate(b_z, IS_SILU)
                tl.store(p_out + j * (HV * V), b_o.to(out_ptr.dtype.element_ty))
                to = tl.load(write_ptr + i_u * S + j)
                if to > 0:
                    tl.store(state_ptr + (to * HV + i_h) * (K * V) + o_s, b_state)
            else:
                tl.store(p_out + j * (HV * V), tl.zeros((V,), out_ptr.dtype.element_ty))
    else:
        for j in range(Q):
            tl.store(p_out + j * (HV * V), tl.zeros((V,), out_ptr.dtype.element_ty))


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
