"""The arithmetic of the toy architecture: every hidden value is a hash of all tokens before it.

Does not: know tensors or tables. So a token that is read from a wrong block, slot, position or row shows in
every later output.

Source: the mixing constants are those of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 62) - 1


def mix(state: int, value: int) -> int:
    """Fold `value` into `state`; 0 <= result < 2**62."""
    x = (state * 0x9E3779B97F4A7C15 + (value + 3) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x ^= x >> 31
    x = (x * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ (x >> 29)) & _MASK


def fold(values: Sequence[int], state: int = 1) -> int:
    """Fold a sequence, in order."""
    for value in values:
        state = mix(state, value)
    return state


def hidden_of(tokens: Sequence[int], window: int | None, parts: Sequence[str]) -> int:
    """Hidden value after the last of `tokens`, from scratch.

    Args:
        window: Length of the window part, in tokens.
        parts: Which of "whole", "window", "state" take part.
    """
    value = 7
    if "whole" in parts:
        value = mix(value, fold(tokens, 11))
    if "window" in parts:
        assert window is not None
        value = mix(value, fold(tokens[-window:], 13))
    if "state" in parts:
        value = mix(value, fold(tokens, 0))
    return value


def logits_of(hidden: int, vocab_size: int) -> list[float]:
    """Logits after a hidden value: pseudo-random numbers in [0, 8), distinct with near certainty."""
    return [mix(hidden, 1000 + token) / (1 << 59) for token in range(vocab_size)]
