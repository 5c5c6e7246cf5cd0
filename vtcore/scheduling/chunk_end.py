"""Where a prefill chunk ends: the only place that decides it.

Does not: know pools or connectors; their cut points are given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

INVARIANT_CHUNK = 64
"""Multiple at which chunks end where bits must not depend on how a prompt is cut: kernels that scan a prompt
go so many tokens at a time."""


def chunk_end(start: int, known: int, budget: int, cuts: Sequence[int] = (), multiple: int = 1) -> int:
    """End (exclusive) of the chunk that starts at `start`.

    Args:
        start: First position to compute. known: Tokens known, > start.
        budget: Tokens left in the step; with none the chunk is empty.
        cuts: Positions, ascending, that no chunk may cross; it may end earlier by the budget.
        multiple: A chunk that the budget ends does so at a multiple of it, >= 1; where the budget does not
            reach one the chunk is empty. Cuts keep their place.
    """
    end = min(known, start + max(budget, 0))
    index = bisect_right(cuts, start)
    if index < len(cuts) and cuts[index] <= end:
        return cuts[index]
    return end if end == known else max(start, end // multiple * multiple)
