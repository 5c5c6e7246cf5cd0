"""Random schedules of the toy architecture: outputs, drafts, invariants, and proof that features ran."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.interfaces.batch import RowParams
from vtcore.testing.draw_case import draw_case
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule, toy_registry

REGISTRY = toy_registry()


@settings(max_examples=200)
@given(st.data())
def test_any_schedule_gives_the_output_of_each_request_alone(data: st.DataObject) -> None:
    case = draw_case(lambda options: data.draw(st.sampled_from(options)))
    run_schedule(case, REGISTRY)


def test_every_feature_of_the_step_happens_in_random_schedules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        seen += run_schedule(draw_case(Random(seed).choice), REGISTRY).counters
    for name in (
        "late_results",
        "late_launches",
        "preemptions",
        "hits",
        "deferred_samples",
        "stalls",
        "illegal_drafts",
    ):
        assert seen[name] > 0, f"{name} never happened in {seen}"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 4, 9, 14])
@pytest.mark.parametrize("parts", [("whole", "state"), ("whole",), ("state",)])
def test_an_oracle_costs_one_step_per_k_plus_1_tokens(
    depth: int, k: int, max_tokens: int, parts: tuple[str, ...]
) -> None:
    prompt = tuple(range(10))
    case = ScheduleCase(
        requests=(
            CaseRequest(prompt=prompt, max_tokens=max_tokens, params=RowParams(temperature=1.0, seed=5)),
        ),
        depth=depth,
        budget=4,
        parts=parts,
        drafter="oracle",
        captured_k=(0, k),
        ks=(k,),
    )
    outcome = run_schedule(case, REGISTRY)
    chunks = -(-len(prompt) // 4)
    assert outcome.counters["steps"] == chunks + -(-(max_tokens - 1) // (k + 1))


def test_depth_2_takes_as_many_steps_as_depth_1() -> None:
    requests = tuple(CaseRequest(prompt=(1, 2, 3 + i), max_tokens=6) for i in range(4))
    steps = {
        depth: run_schedule(ScheduleCase(requests=requests, depth=depth), REGISTRY).counters["steps"]
        for depth in (1, 2)
    }
    assert steps[1] == steps[2]


def test_an_oracle_beyond_the_stop_changes_nothing() -> None:
    plain = ScheduleCase(
        requests=tuple(
            CaseRequest(
                prompt=(i, 5, 2), max_tokens=12, eos=(3, 7), params=RowParams(temperature=1.0, seed=i)
            )
            for i in range(4)
        ),
        num_blocks=64,
        depth=2,
    )
    drafted = ScheduleCase(
        requests=plain.requests, num_blocks=64, depth=2, drafter="oracle", captured_k=(0, 3), ks=(3,)
    )
    assert run_schedule(plain, REGISTRY).outputs == run_schedule(drafted, REGISTRY).outputs
