"""The step's token budget: how it is resolved, and how it is spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.scheduling.token_budget import StepBudget, resolve_token_budget


@pytest.mark.parametrize(
    ("rule", "explicit", "seqs", "length", "default", "budget"),
    [
        ("default", None, 8, 4096, 2048, 2048),
        ("default, whatever the number of requests", None, 256, 4096, 2048, 2048),
        ("ceiling: all that the rows hold", None, 2, 100, 2048, 200),
        ("ceiling above the default", None, 2, 1024, 2048, 2048),
        ("floor: a token for each", None, 3000, 4096, 2048, 3000),
        ("floor is the ceiling", None, 8, 1, 2048, 8),
        ("explicit", 77, 8, 4096, 2048, 77),
        ("explicit has no ceiling", 100_000, 8, 4, 2048, 100_000),
        ("explicit at the floor", 8, 8, 4096, 2048, 8),
        ("explicit below the floor is raised", 7, 8, 4096, 2048, 8),
        ("explicit far below the floor is raised", 1, 3000, 1, 2048, 3000),
    ],
)
def test_the_rule(rule: str, explicit: int | None, seqs: int, length: int, default: int, budget: int) -> None:
    """Source of each rule: vllm.cpp model_loader.h, ResolveMaxNumBatchedTokens."""
    assert resolve_token_budget(explicit, seqs, length, default) == budget, rule


@given(*[st.integers(1, 10**5)] * 3)
def test_the_default_lies_between_floor_and_ceiling(seqs: int, length: int, default: int) -> None:
    found = resolve_token_budget(None, seqs, length, default)
    assert seqs <= found <= max(default, seqs)
    assert found <= length * seqs
    assert found in (seqs, default, length * seqs)


@given(*[st.integers(1, 10**5)] * 4)
def test_a_given_value_is_only_ever_raised_to_the_floor(
    explicit: int, seqs: int, length: int, default: int
) -> None:
    assert resolve_token_budget(explicit, seqs, length, default) == max(explicit, seqs)


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
