"""The noise of vtcore/sampling/noise.py inside kernels, and the draw over one tile of logits.

Does not: launch anything. All arithmetic of the counter is uint64 and wraps, as in `noise`.
"""

from __future__ import annotations

import triton
import triton.language as tl

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)
LOG2E = tl.constexpr(1.4426950408889634)
FLOAT32_MAX = tl.constexpr(3.4028234663852886e38)
NO_ID = tl.constexpr(1 << 30)
"""Above every token id."""


@triton.jit
def mix(z):
    """Finaliser of SplitMix64. Source: Steele, Lea and Flood (2014), mix64 variant 13."""
    z = (z ^ (z >> 30)) * MIX_1
    z = (z ^ (z >> 27)) * MIX_2
    return z ^ (z >> 31)


@triton.jit
def draw_key(seed, position):
    """Key of a row's draws, purpose TARGET."""
    key = mix(seed.to(tl.uint64, bitcast=True) + GAMMA)
    return mix(key + (position + 1).to(tl.uint64, bitcast=True) * GAMMA)


@triton.jit
def draw_counter(key, b_ids):
    """Counters of int32 ids; `mix` makes 64 random bits of each."""
    return (b_ids + 1).to(tl.int64).to(tl.uint64, bitcast=True) * GAMMA + key


@triton.jit
def counter_step(NUM_IDS: tl.constexpr):
    """What the counters of ids this far apart differ by."""
    return tl.full([], NUM_IDS, tl.uint64) * GAMMA


@triton.jit
def clean(b_raw):
    """Logits with NaN as -inf and +inf as the largest float32."""
    return tl.minimum(tl.where(b_raw == b_raw, b_raw, float("-inf")), FLOAT32_MAX)


@triton.jit
def draw_tile(b_x, m_x, b_ids, b_hash, inv_temperature, slope, best, best_id):
    """Fold a tile into the running (best, best_id) of logit / temperature + Gumbel noise.

    With v = 1 - u, an id beats `best` only if v <= -log u < exp(logit / temperature - best), which float32
    decides with slack for far less than two float64 logarithms. Tiles without such an id, nearly all once a
    few were seen, end there; the others are computed in float64.

    Args: `slope` is log2(e) / temperature in float32; `best` float64, `best_id` int64, -1 before the first.
    """
    bias = (best * LOG2E).to(tl.float32)
    bias -= 1e-4 + (tl.abs(bias) + 64.0) * 9.5367431640625e-7
    # The upper 23 of u's 52 bits, inverted, as the mantissa of a number in [1, 2): v rounded down.
    b_v = ((b_hash >> 41).to(tl.uint32) ^ 0x3FFFFFFF).to(tl.float32, bitcast=True) - 1.0
    m_c = m_x & (b_v <= tl.exp2(b_x * slope - bias))
    if tl.max(m_c.to(tl.int32)) > 0:
        b_u = ((b_hash >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
        b_score = b_x.to(tl.float64) * inv_temperature - tl.log(-tl.log(b_u))
        b_score = tl.where(m_c, b_score, float("-inf"))
        top = tl.max(b_score)
        if top > best:
            best = top
            best_id = tl.min(tl.where(b_score == top, b_ids, NO_ID)).to(tl.int64)
    return best, best_id


@triton.jit
def best_of(scores_ptr, ids_ptr, num, MAX: tl.constexpr):
    """Largest score of `num` partial results and its lowest id; (-inf, -1) if none has an id."""
    o_s = tl.arange(0, MAX)
    m_s = o_s < num
    b_id = tl.load(ids_ptr + o_s, mask=m_s, other=-1)
    b_score = tl.load(scores_ptr + o_s, mask=m_s & (b_id >= 0), other=float("-inf"))
    best = tl.max(b_score, 0)
    best_id = tl.min(tl.where((b_score == best) & (b_id >= 0), b_id, NO_ID), 0)
    return best, tl.where(best_id == NO_ID, -1, best_id)
