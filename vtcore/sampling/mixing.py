"""SplitMix64 on Python integers: the constants of all noise, and the seeds of child requests.

Does not: need torch. Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014).
"""

from __future__ import annotations

GAMMA = 0x9E3779B97F4A7C15
"""Odd increment, 2**64 divided by the golden ratio."""
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """A bijection of 0 <= z < 2**64 in which each input bit flips about half of the output bits."""
    z = ((z ^ (z >> 30)) * MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * MIX_2) & _MASK
    return z ^ (z >> 31)


def child_seed(seed: int, index: int) -> int:
    """Seed of sample `index` of a request: `seed` itself for 0, so n=1 equals the first of n.

    Args:
        seed: 0 <= seed < 2**63.
        index: >= 0.

    Returns:
        0 <= seed < 2**63.
    """
    if index == 0:
        return seed
    return mix((mix(seed) + index * GAMMA) & _MASK) >> 1
