"""One matrix product per expert over rows ordered by expert, as a Triton kernel, for both products of an
expert.

Does not: order rows, or add up a token's experts.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_columns"])
def tile_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    order_ptr,
    tiles_ptr,
    num_columns,
    N: tl.constexpr,
    K: tl.constexpr,
    CHOICES: tl.constexpr,
    IS_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SWAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of ROWS rows times COLUMNS rows of its expert's [N, K] matrix.

    The first product reads its rows by token, multiplies by gate and up rows in turn, which puts both halves
    of a column into one thread, and writes silu(gate) * up in the order of the experts. The second reads that
    order and writes rows to their pair of token and choice.
    """
    i_tile = tl.program_id(0) // num_columns
    i_n = tl.program_id(0) % num_columns
    i_e = tl.load(tiles_ptr + i_tile * 3).to(tl.int64)
    if i_e < 0:
        return
    first = tl.load(tiles_ptr + i_tile * 3 + 1)
    stop = tl.load(tiles_ptr + i_tile * 3 + 2)
    o_m = first + tl.arange(0, ROWS)
    m_m = o_m < stop
    # Rows past the end are neither read nor written: in most tiles of a decode step they are the majority.
    b_pair = tl.load(order_ptr + o_m, mask=m_m, other=0)
    o_j = tl.arange(0, COLUMNS)
    if IS_FIRST:
        o_row = (b_pair // CHOICES).to(tl.int64)
        o_n = i_n * (COLUMNS // 2) + o_j // 2
        o_w = tl.minimum(o_n, N // 2 - 1) + o_j % 2 * (N // 2)
    else:
        o_row = o_m.to(tl.int64)
        o_w = tl.minimum(i_n * COLUMNS + o_j, N - 1)
    o_k = tl.arange(0, DEPTH)
    p_x = x_ptr + o_row[:, None] * K + o_k[None, :]
    p_w = weight_ptr + (i_e * N + o_w)[:, None] * K + o_k[None, :]
    if SWAP:
        b_acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    else:
        b_acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i_k in range(0, K, DEPTH):
        if K % DEPTH == 0:
            b_x = tl.load(p_x, mask=m_m[:, None], other=0.0)
            b_w = tl.load(p_w)
        else:
            m_k = o_k[None, :] < K - i_k
            b_x = tl.load(p_x, mask=m_m[:, None] & m_k, other=0.0)
            b_w = tl.load(p_w, mask=m_k, other=0.0)
        if SWAP:
            b_acc = tl.dot(b_w, tl.trans(b_x), b_acc, input_precision=PRECISION)
        else:
            b_acc = tl.dot(b_x, tl.trans(b_w), b_acc, input_precision=PRECISION)
        p_x += DEPTH
        p_w += DEPTH
    if SWAP:
        b_acc = tl.trans(b_acc)
    if IS_FIRST:
        b_gate, b_up = tl.split(tl.reshape(b_acc, [ROWS, COLUMNS // 2, 2]))
        b_y = b_gate / (1.0 + tl.exp(-b_gate)) * b_up
        o_out = i_n * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
        p_out = out_ptr + o_m.to(tl.int64)[:, None] * (N // 2) + o_out[None, :]
        m_out = m_m[:, None] & (o_out < N // 2)[None, :]
    else:
        b_y = b_acc
        o_out = i_n * COLUMNS + o_j
        p_out = out_ptr + b_pair.to(tl.int64)[:, None] * N + o_out[None, :]
        m_out = m_m[:, None] & (o_out < N)[None, :]
    tl.store(p_out, b_y.to(out_ptr.dtype.element_ty), mask=m_out)
