"""Kernels of prefill rows, in chunks of 64 tokens counted from each row's query start.

1 prepare: convolution, silu, unit length, gates and their sums within a chunk. 2 solve: the triangular system
of a chunk, as w and u. 3 scan: states from chunk to chunk. 4 output, with the gated norm.
Does not: write conv tails.

A chunk's scratch lies at tile `(query_start[row] - first token) // 64 + row's number + chunk`, which never
overlaps the next row's. Source: the tiling of vLLM's unified attention kernel; the algorithm: Yang, Kautz and
Hatamizadeh 2024, Gated Delta Networks, section 3.3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtcore_qwen3_5_dense.ops.gated_delta_net.step_kernel import gate, softplus


@triton.jit
def find_chunk(i_n, start_ptr, num_uniform, num_rows, B: tl.constexpr):
    """The prefill row of a tile and the chunk within it.

    Returns:
        Batch row, chunk, the row's first token, its length. A chunk beyond the length is no chunk.
    """
    first = tl.load(start_ptr + num_uniform)
    low = num_uniform
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        tile = (tl.load(start_ptr + middle) - first) // B + middle - num_uniform
        low = tl.where(tile <= i_n, middle, low)
        high = tl.where(tile <= i_n, high, middle)
    begin = tl.load(start_ptr + low)
    length = tl.load(start_ptr + low + 1) - begin
    chunk = i_n - ((begin - first) // B + low - num_uniform)
    return low, chunk, begin, length


@triton.jit
def _convolve(p_x, p_tail, conv_ptr, o_t, o_c, m_t, slot, X: tl.constexpr, C: tl.constexpr, W: tl.constexpr):
    b_y = tl.zeros((o_t.shape[0], o_c.shape[0]), tl.float32)
    for tap in tl.static_range(W):
        o_x = o_t + (tap - (W - 1))
        m_old = (o_x < 0) & m_t & (slot > 0)
        p_old = p_tail + (o_x + W - 1)[:, None] * C + o_c[None, :]
        b_old = tl.load(p_old, mask=m_old[:, None], other=0).to(tl.float32)
        p_new = p_x + o_x.to(tl.int64)[:, None] * X + o_c[None, :]
        b_new = tl.load(p_new, mask=((o_x >= 0) & m_t)[:, None], other=0).to(tl.float32)
        b_y += (b_old + b_new) * tl.load(conv_ptr + tap * C + o_c)[None, :]
    return b_y / (1 + tl.exp(-b_y))


@triton.jit(do_not_specialize=["num_uniform", "num_rows", "num_uniform_tokens"])
def prepare_kernel(
    x_ptr,
    conv_ptr,
    decay_ptr,
    dt_bias_ptr,
    tail_ptr,
    read_ptr,
    start_ptr,
    qk_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    num_uniform,
    num_rows,
    num_uniform_tokens,
    scale,
    l2_eps,
    X: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    B: tl.constexpr,
):
    """Queries, keys, values, gates and betas of one chunk and head; programs of heads below 2 HK do queries
    and keys."""
    i_n = tl.program_id(0)
    i_h = tl.program_id(1)
    row, chunk, begin, length = find_chunk(i_n, start_ptr, num_uniform, num_rows, B)
    o_t = chunk * B + tl.arange(0, B)
    if chunk * B < length:
        m_t = o_t < length
        slot = tl.load(read_ptr + row)
        p_tail = tail_ptr + slot * ((W - 1) * C)
        p_x = x_ptr + begin * X
        p_row = (begin - num_uniform_tokens + o_t).to(tl.int64)
        if i_h < 2 * HK:
            o_d = tl.arange(0, K)
            b_y = _convolve(p_x, p_tail, conv_ptr, o_t, i_h * K + o_d, m_t, slot, X, C, W)
            b_y = b_y * tl.rsqrt(tl.sum(b_y * b_y, 1) + l2_eps)[:, None]
            b_y = tl.where(i_h < HK, b_y * scale, b_y)
            p_y = qk_ptr + (p_row[:, None] * (2 * HK) + i_h) * K + o_d[None, :]
            tl.store(p_y, b_y.to(qk_ptr.dtype.element_ty), mask=m_t[:, None])
        else:
            i_v = i_h - 2 * HK
            o_v = tl.arange(0, V)
            b_v = _convolve(p_x, p_tail, conv_ptr, o_t, 2 * HK * K + i_v * V + o_v, m_t, slot, X, C, W)
            p_v = v_ptr + (p_row[:, None] * HV + i_v) * V + o_v[None, :]
            tl.store(p_v, b_v.to(v_ptr.dtype.element_ty), mask=m_t[:, None])
            p_gates = p_x + o_t.to(tl.int64) * X + C + HV * V + i_v
            b_beta = tl.load(p_gates, mask=m_t, other=0).to(tl.float32)
            b_a = tl.load(p_gates + HV, mask=m_t, other=0).to(tl.float32)
            b_g = softplus(b_a + tl.load(dt_bias_ptr + i_v)) * tl.load(decay_ptr + i_v)
            b_g = tl.cumsum(tl.where(m_t, b_g, 0), 0)
            tl.store(g_ptr + p_row * HV + i_v, b_g, mask=m_t)
            tl.store(beta_ptr + p_row * HV + i_v, 1 / (1 + tl.exp(-b_beta)), mask=m_t)


@triton.jit
def _coupling(b_ki, b_kj, b_gi, b_gj, b_beta, PRECISION: tl.constexpr):
    """-beta k_i . k_j decay: what tokens i take from what tokens j, which come before them, wrote."""
    # Sums of log decays fall, but those of tokens past the end are zero, and exp of a rise could overflow.
    b_decay = tl.exp(tl.minimum(b_gi[:, None] - b_gj[None, :], 0.0))
    return -b_beta[:, None] * tl.dot(b_ki, tl.trans(b_kj), input_precision=PRECISION) * b_decay


@triton.jit
def _inverse(b_a):
    """(I - a)^-1 of a strictly lower triangle, row by row.

    Row i of it less I is row i of a times (I + the rows above).
    """
    o_s = tl.arange(0, b_a.shape[0])
    b_t = b_a
    for i in range(1, b_a.shape[0]):
        m_i = (o_s == i)[:, None]
        b_row = tl.sum(tl.where(m_i, b_a, 0.0), 0)
        b_row += tl.sum(b_row[:, None] * tl.where((o_s < i)[:, None], b_t, 0.0), 0)
        b_t = tl.where(m_i, b_row[None, :], b_t)
    return b_t + tl.where(o_s[:, None] == o_s[None, :], 1.0, 0.0)


@triton.jit
def _mul(b_x, b_y):
    # Errors of an inverse grow with each product, so these keep float32. Source: fla-core, whose default is
    # IEEE.
    return tl.dot(b_x, b_y, input_precision="ieee")


@triton.jit
def _mix(b_y, b_t, b_x, PRECISION: tl.constexpr):
    """b_y + b_t b_x."""
    b_high = b_t.to(b_x.dtype)
    b_y = tl.dot(b_high, b_x, acc=b_y, input_precision=PRECISION)
    if b_x.dtype != tl.float32:
        # Among equal keys rows of the inverse cancel, and what its rounding leaves would add up over the
        # chunk.
        b_y = tl.dot((b_t - b_high.to(tl.float32)).to(b_x.dtype), b_x, acc=b_y)
    return b_y


@triton.jit
def _scaled(ptr, m_s, b_by):
    b_x = tl.load(ptr, mask=m_s[:, None], other=0)
    return (b_x.to(tl.float32) * b_by[:, None]).to(b_x.dtype)


@triton.jit(do_not_specialize=["num_uniform", "num_rows", "num_uniform_tokens"])
def solve_kernel(
    qk_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    start_ptr,
    w_ptr,
    u_ptr,
    num_uniform,
    num_rows,
    num_uniform_tokens,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    B: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The inverse of a chunk's triangle by four blocks of 16 tokens, and what it makes of keys and values."""
    tl.static_assert(B == 64)
    S: tl.constexpr = 16
    i_n = tl.program_id(0)
    i_h = tl.program_id(1)
    _row, chunk, begin, length = find_chunk(i_n, start_ptr, num_uniform, num_rows, B)
    if chunk * B < length:
        o_s = tl.arange(0, S)
        o_k = tl.arange(0, K)
        o_v = tl.arange(0, V)
        left = length - chunk * B
        m_0 = o_s < left
        m_1 = o_s + S < left
        m_2 = o_s + 2 * S < left
        m_3 = o_s + 3 * S < left
        p_0 = (begin - num_uniform_tokens + chunk * B + o_s).to(tl.int64)
        p_k = qk_ptr + (p_0[:, None] * (2 * HK) + HK + i_h // (HV // HK)) * K + o_k[None, :]
        b_k0 = tl.load(p_k, mask=m_0[:, None], other=0)
        b_k1 = tl.load(p_k + S * 2 * HK * K, mask=m_1[:, None], other=0)
        b_k2 = tl.load(p_k + 2 * S * 2 * HK * K, mask=m_2[:, None], other=0)
        b_k3 = tl.load(p_k + 3 * S * 2 * HK * K, mask=m_3[:, None], other=0)
        p_g = g_ptr + p_0 * HV + i_h
        b_g0 = tl.load(p_g, mask=m_0, other=0)
        b_g1 = tl.load(p_g + S * HV, mask=m_1, other=0)
        b_g2 = tl.load(p_g + 2 * S * HV, mask=m_2, other=0)
        b_g3 = tl.load(p_g + 3 * S * HV, mask=m_3, other=0)
        p_beta = beta_ptr + p_0 * HV + i_h
        b_b0 = tl.load(p_beta, mask=m_0, other=0)
        b_b1 = tl.load(p_beta + S * HV, mask=m_1, other=0)
        b_b2 = tl.load(p_beta + 2 * S * HV, mask=m_2, other=0)
        b_b3 = tl.load(p_beta + 3 * S * HV, mask=m_3, other=0)
        m_lower = o_s[:, None] > o_s[None, :]
        t_00 = _inverse(tl.where(m_lower, _coupling(b_k0, b_k0, b_g0, b_g0, b_b0, PRECISION), 0.0))
        t_11 = _inverse(tl.where(m_lower, _coupling(b_k1, b_k1, b_g1, b_g1, b_b1, PRECISION), 0.0))
        t_22 = _inverse(tl.where(m_lower, _coupling(b_k2, b_k2, b_g2, b_g2, b_b2, PRECISION), 0.0))
        t_33 = _inverse(tl.where(m_lower, _coupling(b_k3, b_k3, b_g3, b_g3, b_b3, PRECISION), 0.0))
        a_10 = _coupling(b_k1, b_k0, b_g1, b_g0, b_b1, PRECISION)
        a_20 = _coupling(b_k2, b_k0, b_g2, b_g0, b_b2, PRECISION)
        a_21 = _coupling(b_k2, b_k1, b_g2, b_g1, b_b2, PRECISION)
        a_30 = _coupling(b_k3, b_k0, b_g3, b_g0, b_b3, PRECISION)
        a_31 = _coupling(b_k3, b_k1, b_g3, b_g1, b_b3, PRECISION)
        a_32 = _coupling(b_k3, b_k2, b_g3, b_g2, b_b3, PRECISION)
        t_10 = _mul(t_11, _mul(a_10, t_00))
        t_21 = _mul(t_22, _mul(a_21, t_11))
        t_32 = _mul(t_33, _mul(a_32, t_22))
        t_20 = _mul(t_22, _mul(a_20, t_00) + _mul(a_21, t_10))
        t_31 = _mul(t_33, _mul(a_31, t_11) + _mul(a_32, t_21))
        t_30 = _mul(t_33, _mul(a_30, t_00) + _mul(a_31, t_10) + _mul(a_32, t_20))
        p_v = v_ptr + (p_0[:, None] * HV + i_h) * V + o_v[None, :]
        p_u = u_ptr + (p_0[:, None] * HV + i_h) * V + o_v[None, :]
        b_x0 = _scaled(p_v, m_0, b_b0)
        b_x1 = _scaled(p_v + S * HV * V, m_1, b_b1)
        b_x2 = _scaled(p_v + 2 * S * HV * V, m_2, b_b2)
        b_x3 = _scaled(p_v + 3 * S * HV * V, m_3, b_b3)
        b_none = tl.zeros((S, V), tl.float32)
        b_y0 = _mix(b_none, t_00, b_x0, PRECISION)
        b_y1 = _mix(b_none, t_10, b_x0, PRECISION)
        b_y1 = _mix(b_y1, t_11, b_x1, PRECISION)
        b_y2 = _mix(b_none, t_20, b_x0, PRECISION)
        b_y2 = _mix(b_y2, t_21, b_x1, PRECISION)
        b_y2 = _mix(b_y2, t_22, b_x2, PRECISION)
        b_y3 = _mix(b_none, t_30, b_x0, PRECISION)
        b_y3 = _mix(b_y3, t_31, b_x1, PRECISION)
        b_y3 = _mix(b_y3, t_32, b_x2, PRECISION)
        b_y3 = _mix(b_y3, t_33, b_x3, PRECISION)
        tl.store(p_u, b_y0.to(u_ptr.dtype.element_ty), mask=m_0[:, None])
        tl.store(p_u + S * HV * V, b_y1.to(u_ptr.dtype.element_ty), mask=m_1[:, None])
        tl.store(p_u + 2 * S * HV * V, b_y2.to(u_ptr.dtype.element_ty), mask=m_2[:, None])
        tl.store(p_u + 3 * S * HV * V, b_y3.to(u_ptr.dtype.element_ty), mask=m_3[:, None])
        p_w = w_ptr + (p_0[:, None] * HV + i_h) * K + o_k[None, :]
        b_z0 = (b_k0.to(tl.float32) * (b_b0 * tl.exp(b_g0))[:, None]).to(b_k0.dtype)
        b_z1 = (b_k1.to(tl.float32) * (b_b1 * tl.exp(b_g1))[:, None]).to(b_k0.dtype)
        b_z2 = (b_k2.to(tl.float32) * (b_b2 * tl.exp(b_g2))[:, None]).to(b_k0.dtype)
        b_z3 = (b_k3.to(tl.float32) * (b_b3 * tl.exp(b_g3))[:, None]).to(b_k0.dtype)
        b_none = tl.zeros((S, K), tl.float32)
        b_w0 = _mix(b_none, t_00, b_z0, PRECISION)
        b_w1 = _mix(b_none, t_10, b_z0, PRECISION)
        b_w1 = _mix(b_w1, t_11, b_z1, PRECISION)
        b_w2 = _mix(b_none, t_20, b_z0, PRECISION)
        b_w2 = _mix(b_w2, t_21, b_z1, PRECISION)
        b_w2 = _mix(b_w2, t_22, b_z2, PRECISION)
        b_w3 = _mix(b_none, t_30, b_z0, PRECISION)
        b_w3 = _mix(b_w3, t_31, b_z1, PRECISION)
        b_w3 = _mix(b_w3, t_32, b_z2, PRECISION)
        b_w3 = _mix(b_w3, t_33, b_z3, PRECISION)
        tl.store(p_w, b_w0.to(w_ptr.dtype.element_ty), mask=m_0[:, None])
        tl.store(p_w + S * HV * K, b_w1.to(w_ptr.dtype.element_ty), mask=m_1[:, None])
        tl.store(p_w + 2 * S * HV * K, b_w2.to(w_ptr.dtype.element_ty), mask=m_2[:, None])
        tl.store(p_w + 3 * S * HV * K, b_w3.to(w_ptr.dtype.element_ty), mask=m_3[:, None])


@triton.jit(do_not_specialize=["num_uniform", "num_uniform_tokens"])
def scan_kernel(
    qk_ptr,
    w_ptr,
    u_ptr,
    g_ptr,
    state_ptr,
    read_ptr,
    write_ptr,
    start_ptr,
    h_ptr,
    num_uniform,
    num_uniform_tokens,
    S: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    B: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """States before each chunk go to `h`; `u` becomes what each token adds."""
    i_v = tl.program_id(0)
    i_h = tl.program_id(1)
    row = num_uniform + tl.program_id(2)
    first = tl.load(start_ptr + num_uniform)
    begin = tl.load(start_ptr + row)
    length = (tl.load(start_ptr + row + 1) - begin).to(tl.int32)
    tile = ((begin - first) // B + tl.program_id(2)).to(tl.int64)
    slot = tl.load(read_ptr + row)
    to = tl.load(write_ptr + row * S)
    o_k = tl.arange(0, K)
    o_v = i_v * BV + tl.arange(0, BV)
    o_b = tl.arange(0, B)
    o_s = o_k[:, None] * V + o_v[None, :]
    m_s = (o_s >= 0) & (slot > 0)
    b_h = tl.load(state_ptr + (slot * HV + i_h) * (K * V) + o_s, mask=m_s, other=0).to(tl.float32)
    i_k = HK + i_h // (HV // HK)
    for chunk in range(tl.cdiv(length, B)):
        p_h = h_ptr + ((tile + chunk) * HV + i_h) * (K * V) + o_s
        b_low = b_h.to(h_ptr.dtype.element_ty)
        tl.store(p_h, b_low)
        m_t = chunk * B + o_b < length
        p_row = (begin - num_uniform_tokens + chunk * B + o_b).to(tl.int64)
        p_w = w_ptr + (p_row[:, None] * HV + i_h) * K + o_k[None, :]
        b_w = tl.load(p_w, mask=m_t[:, None], other=0)
        p_u = u_ptr + (p_row[:, None] * HV + i_h) * V + o_v[None, :]
        b_u = tl.load(p_u, mask=m_t[:, None], other=0).to(tl.float32)
        b_u -= tl.dot(b_w, b_low.to(b_w.dtype), input_precision=PRECISION)
        tl.store(p_u, b_u.to(u_ptr.dtype.element_ty), mask=m_t[:, None])
        p_k = qk_ptr + (p_row[:, None] * (2 * HK) + i_k) * K + o_k[None, :]
        b_k = tl.load(p_k, mask=m_t[:, None], other=0)
        b_g = tl.load(g_ptr + p_row * HV + i_h, mask=m_t, other=0)
        last = tl.minimum(length - chunk * B, B) - 1
        g_last = tl.sum(tl.where(o_b == last, b_g, 0.0), 0)
        b_left = tl.where(m_t, tl.exp(g_last - b_g), 0.0)
        b_add = (b_u * b_left[:, None]).to(b_k.dtype)
        b_h = b_h * tl.exp(g_last) + tl.dot(tl.trans(b_k), b_add, input_precision=PRECISION)
    if to > 0:
        tl.store(state_ptr + (to * HV + i_h) * (K * V) + o_s, b_h)


@triton.jit(do_not_specialize=["num_uniform", "num_rows", "num_uniform_tokens"])
def output_kernel(
    x_ptr,
    qk_ptr,
    u_ptr,
    g_ptr,
    h_ptr,
    norm_scale_ptr,
    norm_floor_ptr,
    start_ptr,
    out_ptr,
    num_uniform,
    num_rows,
    num_uniform_tokens,
    X: tl.constexpr,
    C: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    B: tl.constexpr,
    IS_SILU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What a chunk reads of the state before it and of itself, normed and gated."""
    i_n = tl.program_id(0)
    i_h = tl.program_id(1)
    _row, chunk, begin, length = find_chunk(i_n, start_ptr, num_uniform, num_rows, B)
    if chunk * B < length:
        o_b = tl.arange(0, B)
        o_k = tl.arange(0, K)
        o_v = tl.arange(0, V)
        m_t = chunk * B + o_b < length
        p_row = (begin - num_uniform_tokens + chunk * B + o_b).to(tl.int64)
        i_q = i_h // (HV // HK)
        p_q = qk_ptr + (p_row[:, None] * (2 * HK) + i_q) * K + o_k[None, :]
        b_q = tl.load(p_q, mask=m_t[:, None], other=0)
        b_k = tl.load(p_q + HK * K, mask=m_t[:, None], other=0)
        b_g = tl.load(g_ptr + p_row * HV + i_h, mask=m_t, other=0)
        p_h = h_ptr + (i_n.to(tl.int64) * HV + i_h) * (K * V) + o_k[:, None] * V + o_v[None, :]
        b_h = tl.load(p_h).to(b_q.dtype)
        b_o = tl.dot(b_q, b_h, input_precision=PRECISION) * tl.exp(b_g)[:, None]
        m_seen = (o_b[:, None] >= o_b[None, :]) & m_t[None, :]
        b_decay = tl.exp(tl.minimum(b_g[:, None] - b_g[None, :], 0.0))
        b_a = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_a = tl.where(m_seen, b_a * b_decay, 0.0)
        p_u = u_ptr + (p_row[:, None] * HV + i_h) * V + o_v[None, :]
        b_u = tl.load(p_u, mask=m_t[:, None], other=0)
        b_o += tl.dot(b_a.to(b_u.dtype), b_u, input_precision=PRECISION)
        floor = tl.load(norm_floor_ptr)
        b_o = b_o * tl.rsqrt(tl.sum(b_o * b_o, 1) + floor * floor)[:, None]
        b_o = b_o * tl.load(norm_scale_ptr + o_v)[None, :]
        p_z = x_ptr + (p_row + num_uniform_tokens)[:, None] * X + C + i_h * V + o_v[None, :]
        b_z = tl.load(p_z, mask=m_t[:, None], other=0).to(tl.float32)
        b_o = b_o * gate(b_z, IS_SILU)
        p_out = out_ptr + ((p_row + num_uniform_tokens)[:, None] * HV + i_h) * V + o_v[None, :]
        tl.store(p_out, b_o.to(out_ptr.dtype.element_ty), mask=m_t[:, None])
