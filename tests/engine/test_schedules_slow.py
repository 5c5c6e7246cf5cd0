"""Thousands of random schedules, in slices that run side by side; too slow for every run."""

from __future__ import annotations

from random import Random

import pytest

from vtcore.testing.draw_case import draw_case
from vtcore.testing.schedules import run_schedule, toy_registry

SLICES, PER_SLICE = 12, 400
REGISTRY = toy_registry()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SLICES))
def test_a_slice_of_random_schedules_gives_each_requests_own_output(number: int) -> None:
    for seed in range(1_000_000 + number * PER_SLICE, 1_000_000 + (number + 1) * PER_SLICE):
        try:
            run_schedule(draw_case(Random(seed).choice), REGISTRY)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
