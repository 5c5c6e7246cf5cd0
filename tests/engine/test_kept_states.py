"""States that a hybrid keeps for later requests: which of them, and none of what nobody knows."""

from __future__ import annotations

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.request import SamplingParams, TokensPrompt
from vtcore.testing.invariants import check_invariants
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule, toy_registry

REGISTRY = toy_registry()
SYSTEM = [(7 * index) % 12 for index in range(40)]


def oracle_case(stop: tuple[int, ...] = (), block_size: int = 1, depth: int = 1) -> ScheduleCase:
    """One request whose drafts are always right, three of them in a step."""
    return ScheduleCase(
        requests=(CaseRequest(prompt=(1, 2, 3), max_tokens=14, stop=stop),),
        depth=depth,
        block_size=block_size,
        prefix_caching=True,
        num_state_checkpoints=30,
        drafter="oracle",
        captured_k=(0, 3),
        ks=(3,),
    )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("block_size", [1, 2])
def test_no_state_is_kept_past_a_stop_inside_an_accepted_run(block_size: int, depth: int) -> None:
    output = run_schedule(oracle_case(), REGISTRY).outputs["r0"]
    for stop in set(output):
        assert run_schedule(oracle_case((stop,), block_size, depth), REGISTRY).outputs["r0"][-1] == stop


@pytest.mark.parametrize(("block_size", "kept"), [(1, 15), (4, 4)])
def test_a_run_of_accepted_drafts_leaves_a_state_at_each_grid_point_it_passes(
    block_size: int, kept: int
) -> None:
    counters = run_schedule(oracle_case(block_size=block_size), REGISTRY).counters
    assert (counters["state_checkpoints"], counters["state_checkpoints_skipped"]) == (kept, 0)


def engine(num_state_checkpoints: int) -> Engine:
    loaded = load_core(
        UserOptions(
            dtype="float64",
            block_size=4,
            num_blocks=200,
            max_num_seqs=8,
            max_num_batched_tokens=1024,
            max_model_len=64,
            enable_prefix_caching=True,
            num_state_checkpoints=num_state_checkpoints,
        ),
        hf_config={"model_type": "toy", "parts": ("whole", "state"), "vocab_size": 12},
        tensors={},
        registry=REGISTRY,
        environment=Environment(),
        internals=Internals(check=check_invariants),
    )
    return build_frontend(loaded)


def test_requests_that_start_together_and_begin_alike_take_one_place_and_not_one_each() -> None:
    it = engine(num_state_checkpoints=4)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    chats = [TokensPrompt(prompt_token_ids=[index] * 11) for index in range(3)]
    it.generate([(chat, params) for chat in chats])
    questions = [TokensPrompt(prompt_token_ids=[*SYSTEM, index]) for index in range(8)]
    it.generate([(question, params) for question in questions])
    assert it.stats()["state_checkpoints"] == 4
    again = it.generate([(prompt, params) for prompt in (*chats, *questions)])
    assert [output.num_cached_tokens for output in again] == [8] * 3 + [40] * 8
