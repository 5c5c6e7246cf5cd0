"""Samples of one prompt through the real step: forked or not, they give the same, whatever ends meanwhile."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random
from typing import Any

import pytest
from attrs import evolve

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.interfaces.batch import RowParams
from vtcore.interfaces.model_arch import ForwardOutput
from vtcore.interfaces.step import StepInputs
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.request import SamplingParams, TokensPrompt
from vtcore.testing.draw_case import BUDGETS, PARTS, draw_params
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule, toy_registry

REGISTRY = toy_registry()
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
LOGPROBS = RowParams(temperature=0.9, seed=5, logprobs=2)
PENALTIES = RowParams(temperature=0.8, seed=3, presence_penalty=0.6, repetition_penalty=1.4, logprobs=1)


def samples(
    n: int, length: int = len(PROMPT), params: RowParams = LOGPROBS, **fields: Any
) -> tuple[CaseRequest, ...]:
    """n samples of one prompt, which ask each other for it."""
    fields = {"max_tokens": 5, **fields}
    return tuple(
        CaseRequest(
            prompt=PROMPT[:length],
            params=evolve(params, seed=params.seed + 1000 * index),
            fork_of=0 if index else None,
            **fields,
        )
        for index in range(n)
    )


def unforked(case: ScheduleCase) -> ScheduleCase:
    return evolve(case, requests=tuple(evolve(request, fork_of=None) for request in case.requests))


def random_case(seed: int) -> ScheduleCase:
    """One to three prompts of one to five samples each; some come late, some are ended."""
    random = Random(seed)
    choose, vocab_size = random.choice, random.choice((12, 4))
    requests: list[CaseRequest] = []
    for _ in range(choose((1, 1, 2, 3))):
        prompt = tuple(random.randrange(vocab_size) for _ in range(choose((1, 3, 4, 5, 8, 9, 16, 23))))
        leader, priority = len(requests), choose((0, 0, 1))
        for index in range(choose((1, 2, 3, 5))):
            requests.append(
                CaseRequest(
                    prompt=prompt,
                    max_tokens=choose((1, 2, 6, 11)),
                    params=draw_params(choose, vocab_size),
                    arrival=choose((0, 0, 0, 1, 2, 4)) if index else 0,
                    abort_after=choose((None, None, None, 0, 2)),
                    stop_string_at=choose((None, None, None, None, 1, 3)),
                    masked=choose((False, False, True)),
                    fork_of=choose((leader, leader, leader, len(requests) - 1)) if index else None,
                    cache_salt=choose(("", "", "a")),
                    prompt_logprobs=choose((None, None, None, None, 1)),
                    priority=priority,
                )
            )
    drafter = choose((None, None, "oracle", "half", "junk", "shifted"))
    captured = (0,) if drafter is None else choose(((0, 1), (0, 1, 3)))
    return ScheduleCase(
        requests=tuple(requests),
        seed=seed,
        depth=choose((1, 2, 2)),
        budget=choose(BUDGETS),
        block_size=choose((4, 4, 1, 8)),
        num_blocks=choose((None, None, 20, 64)),
        max_num_seqs=choose((1, 2, 3, 5)),
        parts=choose(PARTS),
        window=choose((5, 1, 9)),
        vocab_size=vocab_size,
        prefix_caching=choose((None, True, True)),
        state_chunk=choose((1, 4)),
        num_state_checkpoints=choose((1, 3, 30)),
        checkpoint_interval=choose((16, 3)),
        resets=choose(((), (), (2,), (3, 6))),
        drafter=drafter,
        captured_k=captured,
        ks=tuple(choose(captured) for _ in range(5)),
    )


def assert_same_as_unforked(case: ScheduleCase) -> Counter[str]:
    """Run both; `run_schedule` itself compares tokens and logprobs with those of each sample alone."""
    forked, apart = run_schedule(case, REGISTRY), run_schedule(unforked(case), REGISTRY)
    assert forked.outputs == apart.outputs
    assert apart.counters["forks"] == 0
    return forked.counters


@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize(("n", "length"), [(1, 11), (2, 1), (2, 4), (3, 11), (4, 12), (5, 11)])
def test_n_samples_compute_their_prompt_once(n: int, length: int, budget: int) -> None:
    case = ScheduleCase(
        requests=samples(n, length), depth=2, budget=budget, num_blocks=64, max_num_seqs=5,
        parts=("whole", "window", "state"),
    )  # fmt: skip
    counters = run_schedule(case, REGISTRY).counters
    assert counters["forks"] == n - 1
    assert counters["prefilled_tokens"] == length


@pytest.mark.parametrize("parts", PARTS)
def test_samples_of_any_kind_of_cache_fork(parts: tuple[str, ...]) -> None:
    case = ScheduleCase(requests=samples(3), depth=2, num_blocks=64, parts=parts)
    assert assert_same_as_unforked(case)["forks"] == 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("params", "masked"), [(PENALTIES, False), (LOGPROBS, True)], ids=["penalties", "grammar"]
)
def test_forks_sample_with_their_own_history_and_masks(params: RowParams, masked: bool, depth: int) -> None:
    case = ScheduleCase(
        requests=samples(3, params=params, masked=masked), depth=depth, budget=5, num_blocks=64
    )
    assert assert_same_as_unforked(case)["forks"] == 2


def test_a_fork_may_need_a_history_that_its_leader_does_not() -> None:
    plain, *others = samples(3, params=PENALTIES)
    requests = (evolve(plain, params=LOGPROBS), *others)
    case = ScheduleCase(requests=requests, depth=2, num_blocks=64)
    assert assert_same_as_unforked(case)["forks"] == 2


@pytest.mark.parametrize("drafter", ["oracle", "half", "junk", "shifted"])
@pytest.mark.parametrize("parts", [("whole",), ("whole", "state")])
def test_forks_are_drafted_for_like_others(drafter: str, parts: tuple[str, ...]) -> None:
    case = ScheduleCase(
        requests=samples(3, params=PENALTIES), depth=2, budget=16, num_blocks=64, drafter=drafter,
        captured_k=(0, 1, 3), ks=(3, 1, 3, 0), parts=parts,
    )  # fmt: skip
    counters = assert_same_as_unforked(case)
    assert counters["forks"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_samples_may_be_aborted_between_any_two_calls(seed: int) -> None:
    requests = samples(5, max_tokens=6)
    aborted = {0: (0,), 1: (0, 1), 2: (2,), 3: (0, 1, 2, 3, 4)}[seed]
    requests = tuple(evolve(r, abort_after=0) if index in aborted else r for index, r in enumerate(requests))
    case = ScheduleCase(
        requests=requests, seed=seed, depth=2, budget=3, num_blocks=64, max_num_seqs=3 + seed % 3,
        prefix_caching=bool(seed % 2), parts=("whole", "window", "state"),
    )  # fmt: skip
    counters = run_schedule(case, REGISTRY).counters
    assert counters["finished_abort"] <= len(aborted)
    assert counters["finished_length"] + counters["finished_abort"] == 5


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_samples_that_find_no_row_come_later_and_give_the_same(max_num_seqs: int) -> None:
    case = ScheduleCase(requests=samples(5), depth=2, num_blocks=64, max_num_seqs=max_num_seqs)
    assert assert_same_as_unforked(case)["forks"] == max_num_seqs - 1


def test_samples_that_find_no_blocks_preempt_each_other_and_give_the_same() -> None:
    case = ScheduleCase(requests=samples(4, max_tokens=10), depth=2, num_blocks=8, prefix_caching=True)
    counters = assert_same_as_unforked(case)
    assert counters["forks"]
    assert counters["preemptions"]


def test_any_schedule_of_samples_gives_the_output_of_each_alone() -> None:
    seen: Counter[str] = Counter()
    for seed in range(14):
        seen += run_schedule(random_case(seed), REGISTRY).counters
    for name in ("forks", "preemptions", "late_results", "hits", "finished_abort", "state_checkpoints"):
        assert seen[name], f"{name} never happened in {seen}"


@pytest.mark.slow
def test_many_more_schedules_of_samples() -> None:
    for seed in range(1000, 3000):
        run_schedule(random_case(seed), REGISTRY)


def test_a_reset_of_the_cache_between_chunks_changes_no_sample() -> None:
    for tick in (1, 2, 3):
        case = ScheduleCase(
            requests=samples(3), depth=2, budget=4, num_blocks=64, prefix_caching=True, resets=(tick,)
        )
        assert_same_as_unforked(case)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_without_an_end_from_outside_what_is_looked_up_is_hit_or_computed(prefix_caching: bool) -> None:
    """A fork looks nothing up, and those that find no row look up what was made for the first."""
    case = ScheduleCase(
        requests=samples(5), depth=1, budget=7, num_blocks=64, max_num_seqs=2,
        prefix_caching=prefix_caching, num_state_checkpoints=20,
    )  # fmt: skip
    counters = run_schedule(case, REGISTRY).counters
    assert (counters["forks"], counters["preemptions"]) == (1, 0)
    if prefix_caching:
        assert counters["queried_tokens"] == 4 * len(PROMPT)
        assert counters["hits"] == 3
        assert counters["prefilled_tokens"] == counters["queried_tokens"] - counters["hit_tokens"]
    else:
        assert counters["queried_tokens"] == counters["hit_tokens"] == 0
        assert counters["prefilled_tokens"] == 4 * len(PROMPT)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", range(6))
def test_after_a_failed_step_every_sample_is_as_if_nothing_had_been(
    at: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=4)
    prompt: TokensPrompt = {"prompt_token_ids": list(PROMPT)}

    def engine() -> Engine:
        loaded = load_core(
            UserOptions(dtype="float64", block_size=4, num_blocks=32, enable_prefix_caching=True),
            hf_config={"model_type": "toy", "vocab_size": 12},
            tensors={},
            registry=REGISTRY,
            environment=Environment(),
            internals=Internals(depth=depth, check=check_invariants, step_budget=5),
        )
        return build_frontend(loaded)

    [wanted] = engine().generate([(prompt, params)])
    it = engine()
    model, calls = it.loaded.model, count()
    forward = model.forward

    def fail_once(step: StepInputs) -> ForwardOutput:
        if next(calls) == at:
            raise KeyboardInterrupt
        return forward(step)

    monkeypatch.setattr(model, "forward", fail_once)
    it.add_request(prompt, params)
    outputs = []
    failures = 0
    while it.has_unfinished_requests:
        try:
            outputs += it.step(final_only=True)
        except KeyboardInterrupt:
            failures += 1
    assert failures == 1
    [found] = outputs
    assert found.outputs == wanted.outputs
    check_idle(it.loaded.core)
