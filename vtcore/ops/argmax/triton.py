"""Greedy pick as two Triton kernels: each row is split over the vocabulary, then its parts are combined.

Does not: see sampling parameters.

Shape letters: N logit rows, V vocabulary, S splits of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vtcore.ops.launch import launch

MAX_SPLITS = 128
_PROGRAMS = 1024
"""Programs wanted in all: about eight per multiprocessor of an H200, so that reads hide each other."""
_BLOCK = 2048
_NUM_WARPS = 4
_NO_ID = tl.constexpr(1 << 30)


def split_plan(num_rows: int, num_tiles: int) -> tuple[int, int]:
    """How a row's tiles are shared out, by the power of two above the number of rows alone.

    Returns:
        Splits per row, at most MAX_SPLITS, and tiles per split; each split has at least one tile.
    """
    bucket = 1 << max(0, num_rows - 1).bit_length()
    wanted = max(1, min(num_tiles, MAX_SPLITS, _PROGRAMS // bucket))
    per_split = -(-num_tiles // wanted)
    return -(-num_tiles // per_split), per_split


@triton.jit(do_not_specialize=["num_splits", "tiles_per_split"])
def _parts_kernel(
    logits_ptr,
    largest_ptr,
    ids_ptr,
    nan_ptr,
    num_splits,
    tiles_per_split,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_n = tl.program_id(0).to(tl.int64)
    i_s = tl.program_id(1)
    p_row = logits_ptr + i_n * STRIDE
    o_v = tl.arange(0, BLOCK)
    first = i_s * tiles_per_split
    last = tl.minimum(first + tiles_per_split, (VOCAB + BLOCK - 1) // BLOCK)
    b_best = tl.full([BLOCK], float("-inf"), tl.float32)
    b_id = first * BLOCK + o_v
    b_nan = o_v < 0
    for i_t in range(first, last):
        o_t = i_t * BLOCK + o_v
        b_x = tl.load(p_row + o_t, mask=o_t < VOCAB, other=float("-inf")).to(tl.float32)
        b_nan = b_nan | (b_x != b_x)
        # A comparison with NaN is false, so a NaN never replaces anything.
        m_larger = b_x > b_best
        b_best = tl.where(m_larger, b_x, b_best)
        b_id = tl.where(m_larger, o_t, b_id)
    largest = tl.max(b_best, 0)
    o_p = i_n * num_splits + i_s
    tl.store(largest_ptr + o_p, largest)
    tl.store(ids_ptr + o_p, tl.min(tl.where(b_best == largest, b_id, _NO_ID), 0))
    tl.store(nan_ptr + o_p, tl.max(b_nan.to(tl.int32), 0))


@triton.jit(do_not_specialize=["num_splits"])
def _combine_kernel(largest_ptr, ids_ptr, nan_ptr, out_ptr, counts_ptr, num_splits, MAX: tl.constexpr):
    i_n = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, MAX)
    m_s = o_s < num_splits
    o_p = i_n * num_splits + o_s
    b_largest = tl.load(largest_ptr + o_p, mask=m_s, other=float("-inf"))
    b_id = tl.load(ids_ptr + o_p, mask=m_s, other=_NO_ID)
    largest = tl.max(b_largest, 0)
    tl.store(out_ptr + i_n, tl.min(tl.where(b_largest == largest, b_id, _NO_ID), 0).to(tl.int64))
    if tl.max(tl.load(nan_ptr + o_p, mask=m_s, other=0), 0) > 0:
        tl.atomic_add(counts_ptr, 1)


def argmax(logits_NV: Tensor, counts: Tensor) -> Tensor:
    """See `naive.argmax`."""
    num_rows, vocab_size = logits_NV.shape
    logits_NV = logits_NV if logits_NV.stride(1) == 1 else logits_NV.contiguous()
    num_splits, tiles_per_split = split_plan(num_rows, -(-vocab_size // _BLOCK))
    device = logits_NV.device
    largest_NS = torch.empty(num_rows, num_splits, dtype=torch.float32, device=device)
    ids_NS = torch.empty(num_rows, num_splits, dtype=torch.int32, device=device)
    nan_NS = torch.empty_like(ids_NS)
    ids_N = torch.empty(num_rows, dtype=torch.int64, device=device)
    launch(
        _parts_kernel,
        (num_rows, num_splits),
        logits_NV,
        largest_NS,
        ids_NS,
        nan_NS,
        num_splits,
        tiles_per_split,
        STRIDE=logits_NV.stride(0) if num_rows > 1 else vocab_size,
        VOCAB=vocab_size,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
    launch(
        _combine_kernel,
        (num_rows,),
        largest_NS,
        ids_NS,
        nan_NS,
        ids_N,
        counts,
        num_splits,
        MAX=MAX_SPLITS,
        num_warps=1,
    )
    return ids_N
