"""Rows of a mixture of experts put in the order of their experts, and tiles over them, as Triton kernels.

An expert's rows keep the order of their tokens. Groups lie back to back; the shared expert's, which every
token goes to, comes last in the list and its tiles come first. No atomics: each program finds its own places.
Does not: move activations.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _experts(experts_ptr, o_p, num_pairs, TOP_K: tl.constexpr, CHOICES: tl.constexpr):
    """Experts of pairs of token and routed choice, -1 past the end."""
    return tl.load(experts_ptr + o_p // TOP_K * CHOICES + o_p % TOP_K, mask=o_p < num_pairs, other=-1)


@triton.jit
def _histogram(experts_ptr, o_p, num_pairs, TOP_K: tl.constexpr, CHOICES: tl.constexpr, BINS: tl.constexpr):
    b_e = _experts(experts_ptr, o_p, num_pairs, TOP_K, CHOICES)
    return tl.histogram(tl.maximum(b_e, 0), BINS, mask=o_p < num_pairs)


@triton.jit(do_not_specialize=["num_pairs"])
def count_kernel(
    experts_ptr,
    counts_ptr,
    num_pairs,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Rows of each expert within one chunk."""
    i_c = tl.program_id(0)
    b_count = _histogram(experts_ptr, i_c * CHUNK + tl.arange(0, CHUNK), num_pairs, TOP_K, CHOICES, BINS)
    tl.store(counts_ptr + i_c * BINS + tl.arange(0, BINS), b_count)


@triton.jit(do_not_specialize=["num_tokens", "num_chunks", "num_tiles"])
def place_kernel(
    experts_ptr,
    counts_ptr,
    order_ptr,
    tiles_ptr,
    num_tokens,
    num_chunks,
    num_tiles,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    SLICE: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """The first `num_chunks` programs place a chunk of rows each, the others describe TILES tiles each."""
    i_c = tl.program_id(0)
    num_pairs = num_tokens * TOP_K
    o_b = tl.arange(0, BINS)
    if COUNTED:
        b_total = tl.zeros([BINS], tl.int32)
        b_before = tl.zeros([BINS], tl.int32)
        for i_s in range(0, num_chunks, SLICE):
            o_s = i_s + tl.arange(0, SLICE)
            b_n = tl.load(
                counts_ptr + o_s[:, None] * BINS + o_b[None, :], mask=o_s[:, None] < num_chunks, other=0
            )
            b_total += tl.sum(b_n, 0)
            b_before += tl.sum(tl.where(o_s[:, None] < i_c, b_n, 0), 0)
    else:
        b_total = _histogram(experts_ptr, tl.arange(0, CHUNK), num_pairs, TOP_K, CHOICES, BINS)
        b_before = b_total * 0
    b_start = tl.cumsum(b_total, 0) - b_total
    if i_c < num_chunks:
        o_p = i_c * CHUNK + tl.arange(0, CHUNK)
        b_e = _experts(experts_ptr, o_p, num_pairs, TOP_K, CHOICES)
        b_rank = tl.zeros([CHUNK], tl.int32)
        for i_j in range(0, CHUNK, 32):
            o_j = i_c * CHUNK + i_j + tl.arange(0, 32)
            b_j = _experts(experts_ptr, o_j, num_pairs, TOP_K, CHOICES)
            m_same = (b_e[:, None] == b_j[None, :]) & (o_j[None, :] < o_p[:, None])
            b_rank += tl.sum(m_same.to(tl.int32), 1)
        b_place = tl.gather(b_start + b_before, tl.maximum(b_e, 0), 0) + b_rank
        tl.store(order_ptr + b_place, o_p // TOP_K * CHOICES + o_p % TOP_K, mask=o_p < num_pairs)
        if CHOICES > TOP_K:
            # There are no fewer pairs than tokens, so the chunks cover the tokens too.
            tl.store(order_ptr + num_pairs + o_p, o_p * CHOICES + TOP_K, mask=o_p < num_tokens)
    else:
        b_tiles = (b_total + ROWS - 1) // ROWS
        b_end = tl.cumsum(b_tiles, 0)
        o_i = (i_c - num_chunks) * TILES + tl.arange(0, TILES)
        num_shared = tl.cdiv(num_tokens, ROWS) if CHOICES > TOP_K else 0
        o_r = o_i - num_shared
        b_tile = tl.sum((b_end[None, :] <= o_r[:, None]).to(tl.int32), 1)
        m_own = o_b[None, :] == b_tile[:, None]
        b_into = o_r[:, None] - (b_end - b_tiles)[None, :]
        b_first = tl.sum(tl.where(m_own, b_start[None, :] + b_into * ROWS, 0), 1)
        b_stop = tl.minimum(b_first + ROWS, tl.sum(tl.where(m_own, (b_start + b_total)[None, :], 0), 1))
        # Past the last expert that has rows lies the first bin that is no expert, or no bin at all.
        b_tile = tl.where(o_r < tl.max(b_end, 0), b_tile, -1)
        m_shared = o_i < num_shared
        b_tile = tl.where(m_shared, NUM_EXPERTS, b_tile)
        b_first = tl.where(m_shared, num_pairs + o_i * ROWS, b_first)
        b_stop = tl.where(m_shared, tl.minimum(b_first + ROWS, num_pairs + num_tokens), b_stop)
        p_tile = tiles_ptr + o_i * 3
        m_tile = o_i < num_tiles
        tl.store(p_tile, b_tile, mask=m_tile)
        tl.store(p_tile + 1, b_first, mask=m_tile)
        tl.store(p_tile + 2, b_stop, mask=m_tile)
