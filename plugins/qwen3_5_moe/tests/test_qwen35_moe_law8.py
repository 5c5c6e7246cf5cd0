"""Law 8 with routed experts: output depends on weights, prompt, parameters and seed alone.

Every request's output under a random schedule (budget, batch mates, preemption, aborts, depth, drafters,
poisoned memory, late launches) equals what it is alone, and that equals transformers, token by token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen35_moe_oracle import build_oracle, oracle_logits, stored_as, tiny_text_config

from vtcore.interfaces.batch import RowParams
from vtcore.plugins import build_registry
from vtcore.testing.alone import Alone
from vtcore.testing.draw_case import BUDGETS, draw_case
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import ScheduledModel, run_schedule

VOCAB = 24
CONFIG = {
    **tiny_text_config(vocab_size=VOCAB, max_position_embeddings=512, num_hidden_layers=3),
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "architectures": ["Qwen3_5MoeForCausalLM"],
}
REGISTRY = build_registry()


@pytest.fixture(scope="module")
def model() -> ScheduledModel:
    """Random weights in transformers, and the same ones here, in both layouts."""
    oracle = build_oracle({key: value for key, value in CONFIG.items() if key != "architectures"})
    tensors = stored_as("mixed by layer", oracle.state_dict())
    alone = Alone(REGISTRY, CONFIG, tensors, partial(oracle_logits, oracle), vocab_size=VOCAB)
    return ScheduledModel(REGISTRY, CONFIG, tensors, alone)


def moe_case(choose: Callable[[Sequence[object]], object]) -> ScheduleCase:
    """A quarter of the cases have prompts around the state chunk, the rest fight for few blocks."""
    is_long = choose((False, False, False, True))
    return draw_case(
        choose,
        vocab_sizes=(VOCAB,),
        num_own=(1, 2, 3, 5, 30, 63, 64, 65) if is_long else (1, 2, 3, 5),
        drafters=(None, "oracle", "half", "junk"),
        block_sizes=(4, 16, 32) if is_long else (4, 1),
    )


@settings(max_examples=25)
@given(st.data())
def test_any_schedule_gives_each_requests_own_output(model: ScheduledModel, data: st.DataObject) -> None:
    run_schedule(moe_case(lambda options: data.draw(st.sampled_from(options))), model=model)


def test_schedules_preempt_and_drop_late_results(model: ScheduledModel) -> None:
    seen: Counter[str] = Counter()
    for seed in range(10):
        seen += run_schedule(moe_case(Random(seed).choice), model=model).counters
    for name in ("preemptions", "late_results", "late_launches"):
        assert seen[name] > 0, f"{name} never happened in {seen}"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_budget_at_every_depth_gives_the_same_output(
    model: ScheduledModel, budget: int, depth: int
) -> None:
    requests = tuple(
        CaseRequest(
            prompt=tuple((7 * i + j * j) % VOCAB for j in range(length)),
            max_tokens=6,
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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_slice_of_random_schedules_gives_each_requests_own_output(
    model: ScheduledModel, number: int
) -> None:
    for seed in range(1_000_000 + number * 100, 1_000_000 + (number + 1) * 100):
        try:
            run_schedule(moe_case(Random(seed).choice), model=model)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
