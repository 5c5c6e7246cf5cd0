"""Matrix products of few rows: by row on the plain units, and by tiles with the inner dimension cut in parts.

A weight that is read once asks the L2 cache to let go of it first; one that several row tiles read does not.
Does not: choose between the two.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def rows_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    num_rows,
    N,
    K,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
):
    """COLUMNS of all rows: each weight is read once and multiplied by every row."""
    o_n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    o_m = tl.arange(0, ROWS)
    o_k = tl.arange(0, DEPTH)
    m_m = o_m < num_rows
    p_w = weight_ptr + tl.minimum(o_n, N - 1).to(tl.int64)[:, None] * K + o_k[None, :]
    p_x = x_ptr + o_m[:, None] * x_stride + o_k[None, :]
    b_acc = tl.zeros([ROWS, COLUMNS, DEPTH], tl.float32)
    for i_k in range(0, K, DEPTH):
        if EVEN:
            b_w = tl.load(p_w + i_k, eviction_policy="evict_first")
            b_x = tl.load(p_x + i_k, mask=m_m[:, None], other=0.0)
        else:
            m_k = o_k < K - i_k
            b_w = tl.load(p_w + i_k, mask=m_k[None, :], other=0.0, eviction_policy="evict_first")
            b_x = tl.load(p_x + i_k, mask=m_m[:, None] & m_k[None, :], other=0.0)
        b_acc += b_w.to(tl.float32)[None, :, :] * b_x.to(tl.float32)[:, None, :]
    b_y = tl.sum(b_acc, 2)
    p_y = y_ptr + o_m[:, None] * N + o_n[None, :]
    tl.store(p_y, b_y.to(y_ptr.dtype.element_ty), mask=m_m[:, None] & (o_n < N)[None, :])


@triton.jit(do_not_specialize=["num_rows", "steps_of_part"])
def tiles_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    num_rows,
    N,
    K,
    x_stride,
    steps_of_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    EVICTION: tl.constexpr,
):
    """One part of the inner dimension for a tile; parts lie one after another in y."""
    i_n = tl.program_id(0)
    i_m = tl.program_id(1)
    i_s = tl.program_id(2)
    o_m = i_m * ROWS + tl.arange(0, ROWS)
    o_n = i_n * COLUMNS + tl.arange(0, COLUMNS)
    o_k = tl.arange(0, DEPTH)
    # In whole steps: the compiler must see that loads start on an address of 16 bytes to run them ahead.
    first = i_s * steps_of_part * DEPTH
    stop = tl.minimum(first + steps_of_part * DEPTH, K)
    # Rows and columns past the end repeat the last ones and are not written.
    p_x = x_ptr + tl.minimum(o_m, num_rows - 1).to(tl.int64)[:, None] * x_stride + o_k[None, :]
    p_w = weight_ptr + tl.minimum(o_n, N - 1).to(tl.int64)[:, None] * K + o_k[None, :]
    b_acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i_k in range(first, stop, DEPTH):
        if EVEN:
            b_x = tl.load(p_x + i_k)
            b_w = tl.load(p_w + i_k, eviction_policy=EVICTION)
        else:
            m_k = (o_k < K - i_k)[None, :]
            b_x = tl.load(p_x + i_k, mask=m_k, other=0.0)
            b_w = tl.load(p_w + i_k, mask=m_k, other=0.0, eviction_policy=EVICTION)
        b_acc = tl.dot(b_x, tl.trans(b_w), b_acc, input_precision=PRECISION)
    p_y = y_ptr + (i_s * num_rows + o_m).to(tl.int64)[:, None] * N + o_n[None, :]
    m_y = (o_m < num_rows)[:, None] & (o_n < N)[None, :]
    tl.store(p_y, b_acc.to(y_ptr.dtype.element_ty), mask=m_y)


@triton.jit(do_not_specialize=["num_numbers"])
def sum_parts_kernel(parts_ptr, y_ptr, num_numbers, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The parts added up in their order."""
    o_y = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_y = o_y < num_numbers
    b_y = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        b_y += tl.load(parts_ptr + part * num_numbers + o_y, mask=m_y, other=0.0)
    tl.store(y_ptr + o_y, b_y.to(y_ptr.dtype.element_ty), mask=m_y)
