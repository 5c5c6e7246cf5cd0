"""Where a prefill chunk ends: the only place that decides it.

Does not: know pools or connectors; their cut points are given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def chunk_end(start: int, known: int, budget: int, cuts: Sequence[int] = ()) -> int:
    """End (exclusive) of the chunk that starts at `start`.

    Args:
        start: First position to compute. known: Tokens known, > start.
        budget: Tokens left in the step; with none the chunk is empty.
        cuts: Positions, ascending, that no chunk may cross; it may end earlier by the budget.
    """
    end = min(known, start + max(budget, 0))
    index = bisect_right(cuts, start)
    if index < len(cuts):
        end = min(end, cuts[index])
    return end
