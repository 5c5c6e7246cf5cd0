"""The step's token budget: how it is resolved, and how it is spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.errors import ConfigError
from vtcore.scheduling.token_budget import StepBudget, resolve_token_budget


def test_the_archs_default_does_not_grow_with_the_number_of_requests() -> None:
    assert resolve_token_budget(None, 8, 4096, 2048) == 2048
    assert resolve_token_budget(None, 256, 4096, 2048) == 2048


def test_a_tiny_model_needs_no_more_than_all_its_rows_can_hold() -> None:
    assert resolve_token_budget(None, 2, 100, 2048) == 200
    assert resolve_token_budget(None, 2, 1024, 2048) == 2048


def test_every_running_request_can_get_a_token() -> None:
    assert resolve_token_budget(None, 3000, 4096, 2048) == 3000
    assert resolve_token_budget(None, 8, 1, 2048) == 8


@pytest.mark.parametrize("explicit", [8, 9, 100_000])
def test_an_explicit_value_is_taken_as_it_is(explicit: int) -> None:
    assert resolve_token_budget(explicit, 8, 4, 2048) == explicit


def test_an_explicit_value_below_the_floor_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"max_num_batched_tokens: 7 is below max_num_seqs 8.*raise it to 8"
    ):
        resolve_token_budget(7, 8, 4096, 2048)


@given(*[st.integers(1, 10**5)] * 3)
def test_the_default_lies_between_floor_and_ceiling(seqs: int, length: int, default: int) -> None:
    found = resolve_token_budget(None, seqs, length, default)
    assert seqs <= found <= max(default, seqs)
    assert found <= length * seqs
    assert found in (seqs, default, length * seqs)


def test_a_step_spends_what_it_has_and_no_more() -> None:
    budget = StepBudget(5)
    budget.take(3)
    budget.take(0)
    assert budget.left == 2
    with pytest.raises(ValueError, match="2 tokens left, 3 asked"):
        budget.take(3)
    assert budget.left == 2
    budget.take(2)
    assert budget.left == 0
