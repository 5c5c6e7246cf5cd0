"""Every split of every row at once: largest logits, first candidates, and how much stands before those.

Does not: finish a row; `finish_kernel` does.

A row whose random draw is cut by top-p alone needs no order: its first candidate, the best of all ids, is
right if the mass standing before it is below top_p. Else only ids before it are left, and the best of those
is the next candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtcore.ops.sample_tokens.noise_kernel import (
    LOG2E,
    NO_ID,
    best_of,
    clean,
    counter_step,
    draw_counter,
    draw_key,
    draw_tile,
    mix,
)


@triton.jit
def row_params(floats_ptr, ints_ptr, row, VOCAB: tl.constexpr, GREEDY_BELOW: tl.constexpr, C: tl.constexpr):
    """(temperature, min_p, top_p, seed, top_k, is_random); what is off or never cuts is 0, 1 and 0."""
    temperature = tl.load(floats_ptr + row * C)
    min_p = tl.load(floats_ptr + row * C + 1)
    top_p = tl.load(floats_ptr + row * C + 2)
    seed = tl.load(ints_ptr + row * C + 3)
    top_k = tl.load(ints_ptr + row * C + 4)
    top_k = tl.where(top_k < VOCAB, top_k, 0)
    return temperature, min_p, top_p, seed, top_k, temperature >= GREEDY_BELOW


@triton.jit
def _greedy_split(p_row, first, last, VOCAB: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """(largest float64, its lowest id int64, whether there is a NaN) of tiles first <= i < last."""
    BLOCK: tl.constexpr = GROUP * GROUPS
    b_off = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    b_best = tl.full([GROUPS, GROUP], float("-inf"), tl.float32)
    b_id = first * BLOCK + b_off
    b_nan = b_off < 0
    for i_t in range(first, last):
        o_t = i_t * BLOCK + b_off
        b_x = tl.load(p_row + o_t, mask=o_t < VOCAB, other=float("-inf")).to(tl.float32)
        b_nan = b_nan | (b_x != b_x)
        m_larger = b_x > b_best
        b_best = tl.where(m_larger, b_x, b_best)
        b_id = tl.where(m_larger, o_t, b_id)
    largest = tl.max(b_best)
    best_id = tl.min(tl.where(b_best == largest, b_id, NO_ID))
    return largest.to(tl.float64), best_id.to(tl.int64), tl.max(b_nan.to(tl.int32))


@triton.jit(do_not_specialize=["rows_ptr", "positions_ptr", "num_splits", "tiles_per_split"])
def draw_kernel(
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
    num_splits,
    tiles_per_split,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    COLUMNS: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Greedy rows: best logit and id. Random rows: best score and id, largest logit, mass, group maxima."""
    i_n = tl.program_id(0).to(tl.int64)
    i_s = tl.program_id(1)
    BLOCK: tl.constexpr = GROUP * GROUPS
    NUM_GROUPS: tl.constexpr = (VOCAB + GROUP - 1) // GROUP
    p_row = logits_ptr + i_n * STRIDE
    o_p = i_n * MAX_SPLITS + i_s
    o_g = tl.arange(0, GROUPS)
    b_off = o_g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    first = i_s * tiles_per_split
    last = tl.minimum(first + tiles_per_split, (VOCAB + BLOCK - 1) // BLOCK)
    row = tl.load(rows_ptr + i_n)
    temperature, min_p, top_p, seed, top_k, is_random = row_params(
        floats_ptr, ints_ptr, row, VOCAB, GREEDY_BELOW, COLUMNS
    )
    if is_random:
        has_floor = (min_p > 0.0) | (top_k > 0)
        is_cut = has_floor | (top_p < 1.0)
        inv_temperature = 1.0 / temperature
        slope = (inv_temperature * LOG2E).to(tl.float32)
        b_counter = draw_counter(draw_key(seed, tl.load(positions_ptr + i_n)), first * BLOCK + b_off)
        b_nan = b_off < 0
        best = tl.full([], float("-inf"), tl.float64)
        best_id = tl.full([], -1, tl.int64)
        largest = tl.full([], float("-inf"), tl.float32)
        mass = tl.full([], 0.0, tl.float64)
        # Each tile is read while the one before it is computed.
        o_t = first * BLOCK + b_off
        b_next = tl.load(p_row + o_t, mask=o_t < VOCAB, other=float("-inf"))
        for i_t in range(first, last):
            o_t = i_t * BLOCK + b_off
            m_t = o_t < VOCAB
            b_raw = b_next.to(tl.float32)
            b_next = tl.load(p_row + o_t + BLOCK, mask=o_t + BLOCK < VOCAB, other=float("-inf"))
            b_nan = b_nan | (b_raw != b_raw)
            b_x = clean(b_raw)
            if is_cut:
                b_group = tl.max(b_x, 1)
                o_m = i_t * GROUPS + o_g
                tl.store(group_max_ptr + i_n * NUM_GROUPS + o_m, b_group, mask=o_m < NUM_GROUPS)
                top = tl.max(b_group, 0)
                if top > largest:
                    if mass > 0.0:
                        mass *= tl.exp((largest.to(tl.float64) - top.to(tl.float64)) * inv_temperature)
                    largest = top
            if not has_floor:
                if is_cut & (largest > float("-inf")):
                    mass += tl.sum(tl.exp2((b_x - largest) * slope)).to(tl.float64)
                best, best_id = draw_tile(
                    b_x, m_t, o_t, mix(b_counter), inv_temperature, slope, best, best_id
                )
                b_counter += counter_step(BLOCK)
        tl.store(largest_ptr + o_p, largest.to(tl.float64))
        tl.store(mass_ptr + o_p, mass)
        tl.store(best_ptr + o_p, best)
        tl.store(best_id_ptr + o_p, best_id)
        tl.store(nan_ptr + o_p, tl.max(b_nan.to(tl.int32)))
    else:
        best, best_id, has_nan = _greedy_split(p_row, first, last, VOCAB, GROUP, GROUPS)
        tl.store(best_ptr + o_p, best)
        tl.store(best_id_ptr + o_p, best_id)
        tl.store(nan_ptr + o_p, has_nan)


@triton.jit(do_not_specialize=["rows_ptr", "positions_ptr", "num_splits", "tiles_per_split"])
def check_kernel(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    largest_ptr,
    best_ptr,
    best_id_ptr,
    group_max_ptr,
    before_ptr,
    next_ptr,
    next_id_ptr,
    num_splits,
    tiles_per_split,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    COLUMNS: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Rows cut by top-p alone: mass before the first candidate, and the best of the ids before it."""
    i_n = tl.program_id(0).to(tl.int64)
    i_s = tl.program_id(1)
    BLOCK: tl.constexpr = GROUP * GROUPS
    NUM_GROUPS: tl.constexpr = (VOCAB + GROUP - 1) // GROUP
    row = tl.load(rows_ptr + i_n)
    temperature, min_p, top_p, seed, top_k, is_random = row_params(
        floats_ptr, ints_ptr, row, VOCAB, GREEDY_BELOW, COLUMNS
    )
    if is_random & (top_p < 1.0) & (min_p <= 0.0) & (top_k <= 0):
        o_s = i_n * MAX_SPLITS
        m_s = tl.arange(0, MAX_SPLITS) < num_splits
        b_largest = tl.load(largest_ptr + o_s + tl.arange(0, MAX_SPLITS), mask=m_s, other=float("-inf"))
        largest = tl.max(b_largest, 0).to(tl.float32)
        _, candidate = best_of(best_ptr + o_s, best_id_ptr + o_s, num_splits, MAX_SPLITS)
        if candidate >= 0:
            p_row = logits_ptr + i_n * STRIDE
            limit = clean(tl.load(p_row + candidate).to(tl.float32))
            inv_temperature = 1.0 / temperature
            slope = (inv_temperature * LOG2E).to(tl.float32)
            key = draw_key(seed, tl.load(positions_ptr + i_n))
            o_g = tl.arange(0, GROUPS)
            b_off = o_g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            before = tl.full([], 0.0, tl.float64)
            next_best = tl.full([], float("-inf"), tl.float64)
            next_id = tl.full([], -1, tl.int64)
            first = i_s * tiles_per_split
            last = tl.minimum(first + tiles_per_split, (VOCAB + BLOCK - 1) // BLOCK)
            for i_t in range(first, last):
                o_m = i_t * GROUPS + o_g
                p_group = group_max_ptr + i_n * NUM_GROUPS + o_m
                b_group = tl.load(p_group, mask=o_m < NUM_GROUPS, other=float("-inf"))
                if tl.max(b_group, 0) >= limit:
                    o_t = i_t * BLOCK + b_off
                    b_x = clean(tl.load(p_row + o_t, mask=o_t < VOCAB, other=float("-inf")).to(tl.float32))
                    m_before = (b_x > limit) | ((b_x == limit) & (o_t < candidate))
                    b_mass = tl.where(m_before, tl.exp2((b_x - largest) * slope), 0.0)
                    before += tl.sum(b_mass).to(tl.float64)
                    b_hash = mix(draw_counter(key, o_t))
                    next_best, next_id = draw_tile(
                        b_x, m_before, o_t, b_hash, inv_temperature, slope, next_best, next_id
                    )
            tl.store(before_ptr + o_s + i_s, before)
            tl.store(next_ptr + o_s + i_s, next_best)
            tl.store(next_id_ptr + o_s + i_s, next_id)
