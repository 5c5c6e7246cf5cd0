"""Counter-based random numbers: each one is a pure function of (seed, position, token id, purpose).

Does not: keep state. Batch order, padding, chunking and graphs therefore cannot change a number.

Shape letters: N rows, V vocabulary, K ids per row.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from vtcore.sampling.mixing import GAMMA, MIX_1, MIX_2

_UNIFORM_BITS = 52


class Purpose(IntEnum):
    """What a number is drawn for; numbers of two purposes are independent under one key."""

    TARGET = 0
    """The token that the target model emits."""
    DRAFT = 1
    """A drafter's own token."""
    ACCEPT = 2
    """The acceptance test of a draft."""
    RESIDUAL = 3
    """The token that replaces a rejected draft."""


def uniform(seeds_N: Tensor, positions_N: Tensor, ids: Tensor, purpose: int) -> Tensor:
    """Uniform numbers in the open interval (0, 1).

    52 bits, not 53: (bits + 0.5) / 2**52 is exact in float64, so neither 0 nor 1 can be rounded to.

    Args:
        seeds_N: [N] int64, 0 <= seed < 2**63.
        positions_N: [N] int64, absolute position of the token drawn, >= 0.
        ids: [V] int64, the same token ids for each row, or [N, K] int64, each row's own.
        purpose: A `Purpose`, or a plugin's own number >= 16.

    Returns:
        [N, V] or [N, K] float64.
    """
    key_N1 = _mix(seeds_N + _wrap(GAMMA * (int(purpose) + 1)))
    key_N1 = _mix(key_N1 + (positions_N + 1) * _wrap(GAMMA)).unsqueeze(1)
    hash_NK = _mix(key_N1 + (ids + 1) * _wrap(GAMMA))
    bits_NK = _shift_right_(hash_NK, 64 - _UNIFORM_BITS)
    return bits_NK.to(torch.float64).add_(0.5).mul_(2.0**-_UNIFORM_BITS)


def gumbel(seeds_N: Tensor, positions_N: Tensor, ids: Tensor, purpose: int) -> Tensor:
    """Standard Gumbel noise -log(-log u), between -3.61 and 36.74; arguments as in `uniform`.

    argmax over ids of log p + noise is a sample of p, and a subset of the ids gives the argmax of the subset.
    Source: Gumbel, Statistical Theory of Extreme Values (1954); the argmax form: Maddison et al. 2014.
    """
    return uniform(seeds_N, positions_N, ids, purpose).log_().neg_().log_().neg_()


def _mix(z: Tensor) -> Tensor:
    """Finaliser of SplitMix64 in wrapping int64 arithmetic; `z` is overwritten.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014), mix64 variant 13.
    """
    z.bitwise_xor_(_shift_right_(z.clone(), 30)).mul_(_wrap(MIX_1))
    z.bitwise_xor_(_shift_right_(z.clone(), 27)).mul_(_wrap(MIX_2))
    return z.bitwise_xor_(_shift_right_(z.clone(), 31))


def _shift_right_(z: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 in place: the arithmetic shift's copies of the sign are masked away."""
    return z.bitwise_right_shift_(bits).bitwise_and_((1 << (64 - bits)) - 1)


def _wrap(value: int) -> int:
    """The signed number with the low 64 bits of `value`."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
