"""Prompts are cut where a state is worth keeping, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.kv_cache.state_checkpoints import checkpoint_positions, grid_points

NEVER = 10**6


@pytest.mark.parametrize(
    ("known", "positions"), [(1, ()), (64, ()), (65, (64,)), (128, (64,)), (129, (128,)), (200, (192,))]
)
def test_the_last_grid_point_before_the_end_is_one(known: int, positions: tuple[int, ...]) -> None:
    assert checkpoint_positions(0, known, 64, NEVER, 0) == positions


@pytest.mark.parametrize(
    ("shared", "positions"),
    [(0, (192,)), (63, (192,)), (64, (64, 192)), (100, (64, 192)), (192, (192,)), (250, (192,))],
)
def test_the_junction_is_the_grid_point_at_or_before_where_prompts_part(
    shared: int, positions: tuple[int, ...]
) -> None:
    assert checkpoint_positions(0, 200, 64, NEVER, shared) == positions


@pytest.mark.parametrize(
    ("interval", "positions"),
    [(1, (4, 8, 12, 16)), (4, (4, 8, 12, 16)), (5, (8, 16)), (8, (8, 16)), (12, (12, 16)), (99, (16,))],
)
def test_a_long_prompt_has_one_in_every_interval_rounded_up_to_the_grid(
    interval: int, positions: tuple[int, ...]
) -> None:
    assert checkpoint_positions(0, 18, 4, interval, 0) == positions


def test_those_of_a_prefix_hit_are_not_made_again() -> None:
    assert checkpoint_positions(8, 18, 4, 4, 8) == (12, 16)
    assert checkpoint_positions(16, 18, 4, 4, 16) == ()
    assert checkpoint_positions(9, 18, 4, 4, 0) == (12, 16)


def test_regular_ones_do_not_move_with_the_start() -> None:
    """Else two requests would keep different states of the same prompt."""
    whole = checkpoint_positions(0, 1000, 4, 20, 0)
    for start in range(0, 990, 4):
        assert checkpoint_positions(start, 1000, 4, 20, 0) == tuple(p for p in whole if p > start)


@given(st.data())
def test_positions_are_those_that_a_definition_by_counting_has(data: st.DataObject) -> None:
    grid, interval = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 40))
    known = data.draw(st.integers(1, 120))
    start, shared = data.draw(st.integers(0, known - 1)), data.draw(st.integers(0, 130))
    on_grid = [p for p in range(1, known) if p % grid == 0]
    step = next(p for p in range(interval, 100) if p % grid == 0)
    wanted = {p for p in on_grid if p % step == 0} | set(on_grid[-1:])
    wanted |= {max((p for p in on_grid if p <= shared), default=0)}
    found = checkpoint_positions(start, known, grid, interval, shared)
    assert found == tuple(sorted(p for p in wanted if start < p < known))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9))
def test_grid_points_are_counted_without_the_low_end_and_with_the_high_one(
    low: int, length: int, grid: int
) -> None:
    high = low + length
    assert list(grid_points(low, high, grid)) == [p for p in range(low + 1, high + 1) if p % grid == 0]
