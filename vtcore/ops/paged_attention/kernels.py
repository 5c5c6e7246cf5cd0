"""Kernels of attention over paged keys and values: split decode, its combination, prefill.

Does not: write the cache. Everything is in log2: scores carry scale * log2(e).

Source: Dao 2023, FlashAttention-2, algorithm 1; Dao et al. 2023, Flash-Decoding, for the splits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sigmoid(b_x):
    return 1 / (1 + tl.exp(-b_x))


@triton.jit(do_not_specialize=["table_width"])
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    computed_ptr,
    lens_ptr,
    gate_ptr,
    out_ptr,
    part_ptr,
    stat_ptr,
    scale,
    table_width,
    Q: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One row, key/value head and split: all query tokens and heads of the group together.

    With one split the result goes out; else the sum, its maximum and its weight go to scratch.
    """
    E: tl.constexpr = N // G
    i_u = (tl.program_id(0) // G).to(tl.int64)
    i_g = tl.program_id(0) % G
    i_s = tl.program_id(1)
    computed = tl.load(computed_ptr + i_u)
    length = tl.load(lens_ptr + i_u)
    o_m = tl.arange(0, BLOCK_M)
    o_j = o_m // E
    o_d = tl.arange(0, BLOCK_D)
    m_q = (o_m < Q * E)[:, None] & (o_d < D)[None, :]
    o_q = ((i_u * Q + o_j) * N + i_g * E + o_m % E)[:, None] * D + o_d[None, :]
    m_live = o_j < length
    b_acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BLOCK_M,), tl.float32)
    if length > 0:
        b_q = tl.load(q_ptr + o_q, mask=m_q & m_live[:, None], other=0)
        context = (computed + length).to(tl.int32)
        low = 0
        if WINDOW > 0:
            low = tl.maximum(computed.to(tl.int32) - WINDOW + 1, 0)
        first_tile = low // TILE
        tiles = tl.cdiv(context, TILE) - first_tile
        each = tl.cdiv(tiles, SPLITS)
        begin = first_tile + i_s * each
        end = tl.minimum(begin + each, first_tile + tiles)
        b_last = computed + o_j
        for tile in range(begin, end):
            o_c = tile * TILE + tl.arange(0, TILE)
            m_c = (o_c < context) & (o_c >= low)
            b_block = tl.load(table_ptr + i_u * table_width + o_c // BLOCK_SIZE, mask=m_c, other=0)
            o_row = ((b_block * BLOCK_SIZE + o_c % BLOCK_SIZE) * G + i_g) * D
            m_kv = m_c[:, None] & (o_d < D)[None, :]
            b_k = tl.load(k_ptr + o_row[:, None] + o_d[None, :], mask=m_kv, other=0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
            m_s = m_c[None, :] & (o_c[None, :] <= b_last[:, None]) & m_live[:, None]
            if WINDOW > 0:
                m_s = m_s & (o_c[None, :] > b_last[:, None] - WINDOW)
            b_s = tl.where(m_s, b_s, float("-inf"))
            b_new = tl.maximum(b_max, tl.max(b_s, 1))
            # A row that has seen nothing yet keeps -inf, and must not subtract it from itself.
            b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
            b_p = tl.exp2(b_s - b_base[:, None])
            b_old = tl.exp2(b_max - b_base)
            b_sum = b_sum * b_old + tl.sum(b_p, 1)
            b_v = tl.load(v_ptr + o_row[:, None] + o_d[None, :], mask=m_kv, other=0)
            b_acc = b_acc * b_old[:, None] + tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION)
            b_max = b_new
    if SPLITS == 1:
        b_o = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
        if GATE_STRIDE > 0:
            o_gate = (i_u * Q + o_j)[:, None] * GATE_STRIDE + (i_g * E + o_m % E)[:, None] * D + o_d[None, :]
            b_o = b_o * _sigmoid(tl.load(gate_ptr + o_gate, mask=m_q, other=0).to(tl.float32))
        tl.store(out_ptr + o_q, b_o.to(out_ptr.dtype.element_ty), mask=m_q)
    else:
        o_part = ((i_u * Q + o_j) * N + i_g * E + o_m % E) * SPLITS + i_s
        tl.store(part_ptr + o_part[:, None] * D + o_d[None, :], b_acc, mask=m_q)
        tl.store(stat_ptr + o_part * 2, b_max, mask=o_m < Q * E)
        tl.store(stat_ptr + o_part * 2 + 1, b_sum, mask=o_m < Q * E)


@triton.jit
def combine_kernel(
    part_ptr,
    stat_ptr,
    gate_ptr,
    out_ptr,
    N: tl.constexpr,
    D: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The weighted sum of a query head's splits, in their order; a head without any gives zeros."""
    i_t = tl.program_id(0).to(tl.int64)
    i_n = tl.program_id(1)
    o_s = tl.arange(0, BLOCK_S)
    o_d = tl.arange(0, BLOCK_D)
    o_part = (i_t * N + i_n) * SPLITS + o_s
    m_s = o_s < SPLITS
    b_max = tl.load(stat_ptr + o_part * 2, mask=m_s, other=float("-inf"))
    b_sum = tl.load(stat_ptr + o_part * 2 + 1, mask=m_s, other=0)
    most = tl.max(b_max, 0)
    b_weight = tl.exp2(b_max - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(b_sum * b_weight, 0)
    m_part = m_s[:, None] & (o_d < D)[None, :]
    b_part = tl.load(part_ptr + o_part[:, None] * D + o_d[None, :], mask=m_part, other=0)
    b_o = tl.sum(b_part * b_weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    m_d = o_d < D
    if GATE_STRIDE > 0:
        b_gate = tl.load(gate_ptr + i_t * GATE_STRIDE + i_n * D + o_d, mask=m_d, other=0)
        b_o = b_o * _sigmoid(b_gate.to(tl.float32))
    tl.store(out_ptr + (i_t * N + i_n) * D + o_d, b_o.to(out_ptr.dtype.element_ty), mask=m_d)


@triton.jit
def _tiles(
    b_q,
    b_acc,
    b_max,
    b_sum,
    begin,
    end,
    k_ptr,
    v_ptr,
    p_table,
    o_position,
    lowest,
    context,
    i_g,
    scale,
    IS_MASKED: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    for tile in range(begin, end):
        o_c = tile * TILE + tl.arange(0, TILE)
        m_c = o_c < context
        if WINDOW > 0:
            # Blocks behind the window may be freed: the table names the null block there.
            m_c = m_c & (o_c >= lowest)
        b_block = tl.load(p_table + o_c // BLOCK_SIZE, mask=m_c, other=0)
        o_row = ((b_block * BLOCK_SIZE + o_c % BLOCK_SIZE) * G + i_g) * D
        b_k = tl.load(k_ptr + o_row[:, None] + o_d[None, :], mask=m_c[:, None] & m_d[None, :], other=0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        if IS_MASKED:
            m_s = m_c[None, :] & (o_c[None, :] <= o_position[:, None])
            if WINDOW > 0:
                m_s = m_s & (o_c[None, :] > o_position[:, None] - WINDOW)
            b_s = tl.where(m_s, b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_old = tl.exp2(b_max - b_base)
        b_sum = b_sum * b_old + tl.sum(b_p, 1)
        b_v = tl.load(v_ptr + o_row[:, None] + o_d[None, :], mask=m_c[:, None] & m_d[None, :], other=0)
        b_acc = b_acc * b_old[:, None]
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
        b_max = b_new
    return b_acc, b_max, b_sum


@triton.jit
def _offset(i_x, start, i_row, BLOCK_M: tl.constexpr):
    """Of tile `i_x` in its row, which starts `start` tokens after the first prefill row."""
    return ((i_x - start // BLOCK_M - i_row) * BLOCK_M).to(tl.int32)


@triton.jit(do_not_specialize=["num_uniform", "num_rows", "table_width"])
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    computed_ptr,
    start_ptr,
    gate_ptr,
    out_ptr,
    num_uniform,
    num_rows,
    scale,
    table_width,
    N: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One query head and BLOCK_M query tokens of a prefill row.

    A row's tiles begin at `(first token - that of the first row) // BLOCK_M + row's number`, which never
    reaches into the next row's. Source: vLLM, unified attention kernel.
    """
    # The last tiles of a row are the longest; they go first.
    i_x = tl.num_programs(0) - 1 - tl.program_id(0)
    i_n = tl.program_id(1)
    first = tl.load(start_ptr + num_uniform)
    low = num_uniform
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        tile = (tl.load(start_ptr + middle) - first) // BLOCK_M + middle - num_uniform
        low = tl.where(tile <= i_x, middle, low)
        high = tl.where(tile <= i_x, high, middle)
    begin = tl.load(start_ptr + low)
    length = (tl.load(start_ptr + low + 1) - begin).to(tl.int32)
    offset = _offset(i_x, begin - first, low - num_uniform, BLOCK_M)
    if offset < length:
        computed = tl.load(computed_ptr + low).to(tl.int32)
        o_t = offset + tl.arange(0, BLOCK_M)
        o_d = tl.arange(0, BLOCK_D)
        m_q = (o_t < length)[:, None] & (o_d < D)[None, :]
        o_q = ((begin + o_t)[:, None] * N + i_n) * D + o_d[None, :]
        b_q = tl.load(q_ptr + o_q, mask=m_q, other=0)
        o_position = computed + o_t
        context = computed + tl.minimum(offset + BLOCK_M, length)
        b_acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        b_sum = tl.zeros((BLOCK_M,), tl.float32)
        p_table = table_ptr + low.to(tl.int64) * table_width
        i_g = i_n // (N // G)
        # Tiles that every query token sees whole need no mask.
        whole = (computed + offset + 1) // TILE
        lowest = 0
        from_tile = 0
        if WINDOW > 0:
            lowest = tl.maximum(computed + offset - WINDOW + 1, 0)
            from_tile = lowest // TILE
            whole = from_tile
        b_acc, b_max, b_sum = _tiles(
            b_q,
            b_acc,
            b_max,
            b_sum,
            from_tile,
            whole,
            k_ptr,
            v_ptr,
            p_table,
            o_position,
            lowest,
            context,
            i_g,
            scale,
            False,
            G,
            D,
            BLOCK_SIZE,
            WINDOW,
            BLOCK_D,
            TILE,
            PRECISION,
        )
        b_acc, b_max, b_sum = _tiles(
            b_q,
            b_acc,
            b_max,
            b_sum,
            whole,
            tl.cdiv(context, TILE),
            k_ptr,
            v_ptr,
            p_table,
            o_position,
            lowest,
            context,
            i_g,
            scale,
            True,
            G,
            D,
            BLOCK_SIZE,
            WINDOW,
            BLOCK_D,
            TILE,
            PRECISION,
        )
        # Places are made anew and the sum is rounded before the gate, as by `naive`: neither an address nor
        # two tiles of float32 fit beside the sum in a thread's registers.
        begin = tl.load(start_ptr + low, volatile=True)
        o_t = _offset(i_x, begin - first, low - num_uniform, BLOCK_M) + tl.arange(0, BLOCK_M)
        m_q = (o_t < length)[:, None] & (o_d < D)[None, :]
        o_q = ((begin + o_t)[:, None] * N + i_n) * D + o_d[None, :]
        b_o = (b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]).to(out_ptr.dtype.element_ty)
        if GATE_STRIDE > 0:
            o_gate = (begin + o_t)[:, None] * GATE_STRIDE + i_n * D + o_d[None, :]
            b_o = b_o * _sigmoid(tl.load(gate_ptr + o_gate, mask=m_q, other=0).to(tl.float32))
        tl.store(out_ptr + o_q, b_o.to(out_ptr.dtype.element_ty), mask=m_q)
