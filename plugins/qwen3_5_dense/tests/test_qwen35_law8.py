"""Law 8 on the real architecture: output depends on weights, prompt, parameters and seed alone.

Every request's output under a random schedule (budget, batch mates, preemption, aborts, depth, drafters,
poisoned memory, late launches) equals what it is alone, and that equals transformers, token by token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams, TokenLogprobs
from vtcore.loader import Internals, load_core
from vtcore.plugins import build_registry
from vtcore.sampling.logprobs import logprobs_of
from vtcore.testing.alone import Alone
from vtcore.testing.draw_case import BUDGETS, draw_case
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import ScheduledModel, run_schedule

VOCAB = 24
CONFIG = tiny_text_config(vocab_size=VOCAB, max_position_embeddings=512)
REGISTRY = build_registry()


def make_alone(dtype: str = "float64") -> Alone:
    """Random weights in transformers, and the same ones here."""
    oracle = build_oracle(CONFIG)
    tensors = dict(oracle.state_dict())
    return Alone(REGISTRY, CONFIG, tensors, partial(oracle_logits, oracle), vocab_size=VOCAB, dtype=dtype)


@pytest.fixture(scope="module")
def model() -> ScheduledModel:
    alone = make_alone()
    return ScheduledModel(REGISTRY, CONFIG, alone.tensors, alone)


def qwen_case(choose: Callable[[Sequence[object]], object]) -> ScheduleCase:
    """Half of the cases have prompts around the state chunk, half short ones that fight for few blocks."""
    is_long = choose((False, True))
    return draw_case(
        choose,
        vocab_sizes=(VOCAB,),
        num_own=(1, 2, 3, 5, 30, 62, 63, 64, 65, 130) if is_long else (1, 2, 3, 5),
        drafters=(None, "oracle", "half", "junk"),
        block_sizes=(4, 16, 32) if is_long else (4, 1),
    )


@settings(max_examples=150)
@given(st.data())
def test_any_schedule_gives_each_requests_own_output(model: ScheduledModel, data: st.DataObject) -> None:
    run_schedule(qwen_case(lambda options: data.draw(st.sampled_from(options))), model=model)


def test_schedules_preempt_defer_stall_and_drop_late_results(model: ScheduledModel) -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        seen += run_schedule(qwen_case(Random(seed).choice), model=model).counters
    for name in ("preemptions", "deferred_samples", "stalls", "late_results", "late_launches"):
        assert seen[name] > 0, f"{name} never happened in {seen}"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_budget_at_every_depth_gives_the_same_output(
    model: ScheduledModel, budget: int, depth: int
) -> None:
    requests = tuple(
        CaseRequest(
            prompt=tuple((7 * i + j * j) % VOCAB for j in range(length)),
            max_tokens=9,
            params=RowParams(temperature=0.0 if i % 2 else 1.0, seed=i, logprobs=2),
            arrival=i,
        )
        for i, length in enumerate((1, 3, 64, 70))
    )
    run_schedule(
        ScheduleCase(
            requests=requests, budget=budget, depth=depth, vocab_size=VOCAB, block_size=16, num_blocks=40
        ),
        model=model,
    )


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_oracle_drafter_costs_one_step_per_k_plus_1_tokens(
    model: ScheduledModel, depth: int, k: int
) -> None:
    request = CaseRequest(
        prompt=tuple(range(20)), max_tokens=14, params=RowParams(temperature=1.0, seed=3, logprobs=1)
    )
    outcome = run_schedule(
        ScheduleCase(
            requests=(request,),
            depth=depth,
            budget=7,
            vocab_size=VOCAB,
            drafter="oracle",
            captured_k=(0, k),
            ks=(k,),
        ),
        model=model,
    )
    assert outcome.counters["steps"] == -(-20 // 7) + -(-13 // (k + 1))


def test_fifty_sequential_requests_on_one_engine_equal_fresh_ones(model: ScheduledModel) -> None:
    case = ScheduleCase(
        requests=tuple(
            CaseRequest(
                prompt=tuple((3 * i + j) % VOCAB for j in range(1 + i % 7)),
                max_tokens=4,
                params=RowParams(temperature=1.0, seed=i),
                arrival=6 * i,
            )
            for i in range(50)
        ),
        budget=5,
        max_num_seqs=2,
        vocab_size=VOCAB,
        depth=2,
        drafter="junk",
        captured_k=(0, 1, 3),
        ks=(3, 1, 0),
    )
    run_schedule(case, model=model)


def test_prompt_logprobs_equal_transformers_for_every_chunking(model: ScheduledModel) -> None:
    alone = model.reference
    assert isinstance(alone, Alone)
    prompt = tuple((5 * j * j + 1) % VOCAB for j in range(70))
    wanted = logprobs_of(alone.reference_logits(list(prompt))[:-1], torch.tensor(prompt[1:]), 2)
    for budget in (1, 7, 64, 2048):
        loaded = load_core(
            UserOptions(dtype="float64", max_model_len=128),
            hf_config=CONFIG,
            tensors=alone.tensors,
            registry=REGISTRY,
            environment=Environment(),
            internals=Internals(step_budget=budget),
        )
        request = EngineRequest(
            id="p",
            prompt_token_ids=prompt,
            params=RowParams(temperature=0.0),
            max_tokens=2,
            prompt_logprobs=2,
        )
        loaded.core.inbox.append(AddRequest(request))
        found: dict[int, TokenLogprobs] = {}
        while loaded.core.has_work:
            for update in loaded.core.step():
                found.update(update.prompt_logprobs)
        assert sorted(found) == list(range(1, 70))
        for position, entry in found.items():
            assert entry.token_id == wanted[position - 1].token_id
            assert entry.top_ids == wanted[position - 1].top_ids
            assert abs(entry.logprob - wanted[position - 1].logprob) <= 1e-8
        loaded.close()


@pytest.mark.parametrize(("dtype", "tau", "most"), [("float32", 5e-3, 0), ("bfloat16", 0.5, 6)])
def test_lower_precision_keeps_to_the_margin_rule(dtype: str, tau: float, most: int) -> None:
    """Greedy tokens are transformers' own, or nearly as likely; exempted tokens are counted and bounded.

    The first measurement in bfloat16 was 3 of 300, no gap above 0.06; the bound is twice that.
    """
    alone = make_alone(dtype)
    exempted = compared = 0
    for length in (1, 5, 63, 64, 100):
        prompt = tuple((11 * j + length) % VOCAB for j in range(length))
        tokens, _ = alone.run(prompt, RowParams(temperature=0.0), 60, masked=False)
        logits = alone.reference_logits([*prompt, *tokens][:-1])[length - 1 :]
        best = logits.max(1).values
        gap = best - logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert float(gap.max()) <= tau
        exempted += int((gap > 0).sum())
        compared += len(tokens)
    assert compared == 300
    assert exempted <= most, f"{exempted} of {compared} tokens needed the margin"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_a_slice_of_random_schedules_gives_each_requests_own_output(
    model: ScheduledModel, number: int
) -> None:
    for seed in range(1_000_000 + number * 100, 1_000_000 + (number + 1) * 100):
        try:
            run_schedule(qwen_case(Random(seed).choice), model=model)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
