"""Where a prompt's states are kept for later requests: pure arithmetic.

Does not: allocate or copy. Positions are numbers of tokens that a state has seen.
"""

from __future__ import annotations


def checkpoint_positions(start: int, known: int, grid: int, interval: int, shared: int) -> tuple[int, ...]:
    """Grid points inside a prompt at which its chunks end, so that the state there can be kept.

    The last one before the prompt's end serves its next turn, the junction serves other prompts that begin
    alike, and one in every `interval` tokens bounds what a long prompt that parts anywhere computes again.

    Args:
        start: Tokens already in the cache. known: Tokens known, > start.
        grid: Tokens between possible positions, >= 1.
        interval: Tokens between the regular ones, rounded up to the grid, >= 1.
        shared: Leading tokens whose blocks are cached, because an earlier prompt began with them.

    Returns:
        Positions in (start, known), ascending.
    """
    last = (known - 1) // grid * grid
    step = on_grid(interval, grid)
    found = {last, min(shared // grid * grid, last), *range(step * (start // step + 1), last, step)}
    return tuple(sorted(position for position in found if position > start))


def on_grid(interval: int, grid: int) -> int:
    """Tokens between regular checkpoints: the interval, rounded up to the grid."""
    return -(-interval // grid) * grid


def grid_points(low: int, high: int, grid: int) -> range:
    """Grid points in (low, high]."""
    return range((low // grid + 1) * grid, high + 1, grid)
