"""One program per row: combines its splits and, where that is not enough, finishes a cut row alone.

Does not: touch rows of padding beyond combining their splits.

Only groups of ids whose largest logit reaches the floor are read. The floor of top-k comes from the group
maxima: k groups whose maxima reach a value hold k ids that do. The exact k-th logit is then found by
bisection on the order-preserving integer of the logit, and top-p by candidates as in `draw_kernel`: a
rejected one bounds the next, and about halves the mass that is left.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtcore.ops.sample_tokens.draw_kernel import row_params
from vtcore.ops.sample_tokens.noise_kernel import (
    LOG2E,
    NO_ID,
    best_of,
    clean,
    draw_counter,
    draw_key,
    draw_tile,
    mix,
)


@triton.jit
def order_key(x):
    """Integers ordered as the float32 numbers are; its own inverse on the bits."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_key(key):
    """The float32 of an order key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _load_groups(
    p_row, list_ptr, i_j, num_listed, is_empty, VOCAB: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr
):
    """(logits, ids, mask) of the listed groups i_j and after; a row without any logit reads as zeros."""
    o_j = i_j + tl.arange(0, GROUPS)
    m_j = o_j < num_listed
    b_group = tl.load(list_ptr + o_j, mask=m_j, other=0)
    b_ids = b_group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    m_x = m_j[:, None] & (b_ids < VOCAB)
    b_x = clean(tl.load(p_row + b_ids, mask=m_x, other=float("-inf")).to(tl.float32))
    return tl.where(m_x & (is_empty > 0), 0.0, b_x), b_ids, m_x


@triton.jit
def _group_threshold(b_group, m_group, high, top_k, SHIFT: tl.constexpr):
    """Order key, shifted, of the k-th largest group maximum; needs k groups."""
    b_key = order_key(b_group) >> SHIFT
    low = tl.min(tl.where(m_group, b_key, high.to(tl.int32)), 0).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        count = tl.sum((m_group & (b_key >= middle)).to(tl.int32), 0)
        low = tl.where(count >= top_k, middle, low)
        high = tl.where(count < top_k, middle - 1, tl.where(count == top_k, middle, high))
    return low


@triton.jit(do_not_specialize=["rows_ptr", "positions_ptr", "num_splits"])
def finish_kernel(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    largest_ptr,
    mass_ptr,
    best_ptr,
    best_id_ptr,
    nan_ptr,
    group_max_ptr,
    before_ptr,
    next_ptr,
    next_id_ptr,
    list_ptr,
    out_ptr,
    counts_ptr,
    num_splits,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    COLUMNS: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    ALL_GROUPS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Writes the row's id; ALL_GROUPS is the power of two above their number, SHIFT the unused key bits."""
    i_n = tl.program_id(0).to(tl.int64)
    NUM_GROUPS: tl.constexpr = (VOCAB + GROUP - 1) // GROUP
    p_row = logits_ptr + i_n * STRIDE
    p_list = list_ptr + i_n * NUM_GROUPS
    o_s = i_n * MAX_SPLITS
    b_s = tl.arange(0, MAX_SPLITS)
    row = tl.load(rows_ptr + i_n)
    temperature, min_p, top_p, seed, top_k, is_random = row_params(
        floats_ptr, ints_ptr, row, VOCAB, GREEDY_BELOW, COLUMNS
    )
    if (row > 0) & (tl.max(tl.load(nan_ptr + o_s + b_s, mask=b_s < num_splits, other=0), 0) > 0):
        tl.atomic_add(counts_ptr, 1)
    best, picked = best_of(best_ptr + o_s, best_id_ptr + o_s, num_splits, MAX_SPLITS)
    has_floor = (min_p > 0.0) | (top_k > 0)
    is_cut = is_random & (has_floor | (top_p < 1.0))
    num_parts = tl.where(is_cut, num_splits, 0)
    b_largest = tl.load(largest_ptr + o_s + b_s, mask=b_s < num_parts, other=float("-inf"))
    largest64 = tl.max(b_largest, 0)
    is_empty = (is_random & (picked < 0)).to(tl.int32)
    if is_cut:
        is_empty = (largest64 == float("-inf")).to(tl.int32)
    largest = tl.where(is_empty > 0, 0.0, largest64.to(tl.float32))

    # What the search starts with: ids before (limit, limit_id) that reach the floor. NO_ID: no limit yet.
    total = tl.full([], 0.0, tl.float64)
    limit = tl.full([], float("-inf"), tl.float32)
    limit_id = tl.full([], NO_ID, tl.int64)
    searches = (is_empty > 0) | (is_cut & has_floor)
    if is_cut & (has_floor == 0) & (is_empty == 0):
        m_s = b_s < num_splits
        b_mass = tl.load(mass_ptr + o_s + b_s, mask=m_s, other=0.0)
        total = tl.sum(b_mass * tl.where(m_s, tl.exp((b_largest - largest64) / temperature), 0.0), 0)
        before = tl.sum(tl.load(before_ptr + o_s + b_s, mask=m_s, other=0.0), 0)
        _, next_id = best_of(next_ptr + o_s, next_id_ptr + o_s, num_splits, MAX_SPLITS)
        if (before >= top_p * total) & (next_id >= 0):
            searches |= True
            limit_id = next_id
            limit = clean(tl.load(p_row + next_id).to(tl.float32))
    if searches:
        if (row > 0) & (is_empty > 0):
            tl.atomic_add(counts_ptr + 1, 1)
        inv_temperature = 1.0 / temperature
        slope = (inv_temperature * LOG2E).to(tl.float32)
        key = draw_key(seed, tl.load(positions_ptr + i_n))
        o_g = tl.arange(0, ALL_GROUPS)
        m_g = o_g < NUM_GROUPS
        num_known = tl.where(is_empty > 0, 0, NUM_GROUPS)
        b_group = tl.load(group_max_ptr + i_n * NUM_GROUPS + o_g, mask=o_g < num_known, other=float("-inf"))
        floor = limit
        cuts_k = (top_k > 0) & (is_empty == 0)
        high = (order_key(largest) >> SHIFT).to(tl.int64)
        low = (order_key(floor) >> SHIFT).to(tl.int64)
        if (min_p > 0.0) & (is_empty == 0):
            exact = largest64 + temperature * tl.log(min_p)
            floor = exact.to(tl.float32)
            if floor.to(tl.float64) < exact:
                floor = from_key(order_key(floor) + 1)
        if cuts_k & (top_k <= NUM_GROUPS):
            low = _group_threshold(b_group, m_g, high, top_k, SHIFT)
            floor = tl.maximum(floor, from_key((low << SHIFT).to(tl.int32)))
        m_listed = m_g & (b_group >= floor)
        o_listed = tl.cumsum(m_listed.to(tl.int32), 0) - 1
        tl.store(p_list + o_listed, o_g, mask=m_listed)
        num_listed = tl.sum(m_listed.to(tl.int32), 0)
        tl.debug_barrier()
        if cuts_k:
            # Ids below a min-p floor are not counted: with fewer than k left, top-k cuts nothing more.
            low = tl.maximum(low, (order_key(floor) >> SHIFT).to(tl.int64))
            while low < high:
                middle = low + (high - low + 1) // 2
                b_count = tl.zeros([GROUPS, GROUP], tl.int32)
                for i_j in range(0, num_listed, GROUPS):
                    b_x, b_ids, m_x = _load_groups(
                        p_row, p_list, i_j, num_listed, is_empty, VOCAB, GROUP, GROUPS
                    )
                    b_count += (m_x & ((order_key(b_x) >> SHIFT) >= middle)).to(tl.int32)
                count = tl.sum(b_count)
                low = tl.where(count >= top_k, middle, low)
                high = tl.where(count < top_k, middle - 1, tl.where(count == top_k, middle, high))
            floor = tl.maximum(floor, from_key((low << SHIFT).to(tl.int32)))
        searching = tl.full([], 1, tl.int32)
        while searching > 0:
            mass = tl.full([], 0.0, tl.float64)
            best = tl.full([], float("-inf"), tl.float64)
            best_id = tl.full([], -1, tl.int64)
            for i_j in range(0, num_listed, GROUPS):
                b_x, b_ids, m_x = _load_groups(p_row, p_list, i_j, num_listed, is_empty, VOCAB, GROUP, GROUPS)
                m_x = m_x & (b_x >= floor)
                m_x = m_x & ((limit_id == NO_ID) | (b_x > limit) | ((b_x == limit) & (b_ids < limit_id)))
                b_mass = tl.where(m_x, tl.exp2((b_x - largest) * slope), 0.0)
                mass += tl.sum(b_mass).to(tl.float64)
                b_hash = mix(draw_counter(key, b_ids))
                best, best_id = draw_tile(b_x, m_x, b_ids, b_hash, inv_temperature, slope, best, best_id)
            is_first = limit_id == NO_ID
            total = tl.where(is_first, mass, total)
            is_right = (is_first == 0) & (mass < top_p * total)
            picked = tl.where(is_right, limit_id, best_id)
            # Nothing stands before the most likely id, so it is always kept.
            picked = tl.where((is_first == 0) & (best_id < 0), limit_id, picked)
            searching = ((is_right == 0) & (best_id >= 0) & ((is_first == 0) | (top_p < 1.0))).to(tl.int32)
            limit_id = picked
            limit = clean(tl.load(p_row + tl.maximum(picked, 0)).to(tl.float32))
            limit = tl.where(is_empty > 0, 0.0, limit)
    tl.store(out_ptr + i_n, tl.maximum(picked, 0))
