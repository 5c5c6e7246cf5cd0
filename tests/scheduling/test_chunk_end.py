"""Where a prefill chunk ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.scheduling.chunk_end import INVARIANT_CHUNK, chunk_end

MULTIPLES = st.sampled_from((1, 2, 3, 8, 16))
CUTS = st.lists(st.integers(0, 60), unique=True).map(sorted)


@pytest.mark.parametrize(
    ("start", "known", "budget", "cuts", "end"),
    [
        (0, 10, 64, (), 10),
        (0, 10, 4, (), 4),
        (4, 10, 4, (), 8),
        (8, 10, 4, (), 10),
        (0, 10, 64, (6,), 6),
        (6, 10, 64, (6,), 10),
        (0, 10, 4, (6,), 4),
        (0, 10, 64, (3, 6), 3),
        (5, 10, 64, (3, 6, 9), 6),
        (0, 10, 64, (10, 20), 10),
        (3, 10, 0, (), 3),
        (3, 10, -2, (), 3),
    ],
)
def test_a_chunk_ends_at_the_nearest_of_known_budget_and_cut(
    start: int, known: int, budget: int, cuts: tuple[int, ...], end: int
) -> None:
    assert chunk_end(start, known, budget, cuts) == end


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 70), CUTS)
def test_no_chunk_crosses_a_cut_or_a_limit_and_each_makes_progress(
    start: int, more: int, budget: int, cuts: list[int]
) -> None:
    known = start + more
    end = chunk_end(start, known, budget, cuts)
    assert start <= end <= min(known, start + budget)
    assert not [cut for cut in cuts if start < cut < end]
    assert end > start or budget == 0
    # It stops for a reason.
    assert end in (known, start + budget) or end in cuts


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 70), CUTS)
def test_chunks_cover_the_prompt_and_meet_every_cut(
    start: int, more: int, budget: int, cuts: list[int]
) -> None:
    known, ends = start + more, [start]
    while ends[-1] < known:
        ends.append(chunk_end(ends[-1], known, budget, cuts))
    assert ends[-1] == known
    assert {cut for cut in cuts if start < cut < known} <= set(ends)


@pytest.mark.parametrize(
    ("start", "known", "budget", "cuts", "end"),
    [
        (0, 1000, 200, (), 192),
        (192, 1000, 200, (), 384),
        (0, 1000, 64, (), 64),
        # Not even one whole chunk: nothing.
        (0, 1000, 63, (), 0),
        (64, 1000, 100, (), 128),
        # The end of what is known is an end wherever it is.
        (0, 50, 200, (), 50),
        (960, 1000, 40, (), 1000),
        (960, 1000, 39, (), 960),
        # After a hit that is no multiple the next chunk meets one.
        (16, 1000, 48, (), 64),
        (16, 1000, 47, (), 16),
        # A cut keeps its place.
        (0, 1000, 200, (70, 128), 70),
        (0, 1000, 60, (32,), 32),
        (0, 1000, 200, (256,), 192),
    ],
)
def test_a_chunk_of_fixed_ends_stops_at_a_multiple_of_64(
    start: int, known: int, budget: int, cuts: tuple[int, ...], end: int
) -> None:
    assert INVARIANT_CHUNK == 64
    assert chunk_end(start, known, budget, cuts, INVARIANT_CHUNK) == end


@given(st.integers(1, 60), st.lists(st.integers(1, 70), min_size=1), CUTS, MULTIPLES)
def test_fixed_ends_do_not_depend_on_the_budgets(
    known: int, budgets: list[int], cuts: list[int], multiple: int
) -> None:
    """However the budgets of the steps come, every chunk ends at a multiple, a cut or the end."""
    start = 0
    for budget in budgets:
        end = chunk_end(start, known, budget, cuts, multiple)
        assert start <= end <= min(known, start + budget)
        assert end in (start, known) or end % multiple == 0 or end in cuts
        assert not [cut for cut in cuts if start < cut < end]
        # A budget of a whole multiple always makes progress.
        assert end > start or budget < multiple or start == known
        start = end
