"""Busy batches in float32 and bfloat16 against float64: the margin rule, and what experts add to it."""

from __future__ import annotations

from random import Random

import pytest
import torch
from attrs import frozen
from qwen35_moe_oracle import build_oracle, oracle_logits, stored_as, tiny_text_config

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.loader import Internals, load_core
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.late_executor import LateExecutor
from vtcore.testing.toy_drafters import JunkDrafter

VOCAB = 48
CONFIG = tiny_text_config(vocab_size=VOCAB, max_position_embeddings=512)
TAU = {"float32": 5e-3, "bfloat16": 0.5}


def prompt_of(index: int) -> tuple[int, ...]:
    return tuple((11 * j + 5 * index) % VOCAB for j in range((1, 3, 40, 63, 64, 65)[index % 6]))


def run_together(oracle: torch.nn.Module, dtype: str, depth: int, budget: int) -> dict[str, list[int]]:
    """Twelve greedy requests under a late executor, junk drafts and too few blocks."""
    executors: list[LateExecutor] = []

    def make_executor(runner):  # type: ignore[no-untyped-def]
        executors.append(LateExecutor(runner, Random(budget)))
        return executors[0]

    loaded = load_core(
        UserOptions(dtype=dtype, max_model_len=160, block_size=8, num_blocks=24, max_num_seqs=4),
        hf_config=CONFIG,
        tensors=stored_as("mixed within layers", oracle.state_dict()),
        environment=Environment(),
        internals=Internals(
            depth=depth,
            drafter=JunkDrafter(),
            captured_k=(0, 1, 3),
            make_executor=make_executor,
            step_budget=budget,
            check=check_invariants,
        ),
    )
    core = loaded.core
    executors[0].poison(core.scheduler.memory, loaded.caches)
    outputs: dict[str, list[int]] = {}
    for index in range(12):
        request = EngineRequest(
            id=str(index),
            prompt_token_ids=prompt_of(index),
            params=RowParams(temperature=0.0),
            max_tokens=40,
            arrival_s=float(index),
        )
        outputs[request.id] = []
        core.inbox.append(AddRequest(request))
    while core.has_work:
        for update in core.step():
            outputs[update.id] += update.tokens
    check_idle(core)
    executors[0].check_canaries()
    assert core.scheduler.counters.preemptions > 0
    loaded.close()
    return outputs


@frozen
class Exempted:
    """Of 480 tokens: how many are not float64's own, and how many of these lie beyond tau."""

    within: int
    beyond: int


def compare(oracle: torch.nn.Module, outputs: dict[str, list[int]], tau: float) -> Exempted:
    """Teacher-forced on the outputs themselves."""
    within = beyond = 0
    for index in range(12):
        prompt, tokens = prompt_of(index), outputs[str(index)]
        assert len(tokens) == 40
        logits = oracle_logits(oracle, [*prompt, *tokens][:-1])[len(prompt) - 1 :]
        gap = logits.max(1).values - logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        within += int(((gap > 0) & (gap <= tau)).sum())
        beyond += int((gap > tau).sum())
    return Exempted(within, beyond)


@pytest.mark.parametrize(("depth", "budget"), [(1, 7), (2, 64)])
def test_float32_tokens_of_a_busy_batch_are_those_of_float64(depth: int, budget: int) -> None:
    """The margin rule allows one exemption in 10,000 tokens, so none of 480."""
    oracle = build_oracle(CONFIG)
    outputs = run_together(oracle, "float32", depth, budget)
    assert compare(oracle, outputs, TAU["float32"]) == Exempted(0, 0)


@pytest.mark.parametrize(("depth", "budget"), [(1, 7), (2, 64)])
def test_bfloat16_tokens_are_counted_and_bounded(depth: int, budget: int) -> None:
    """Rounding may send a token to another expert, and its logits then jump, beyond tau too.

    The first measurement was 9 tokens within tau and 4 beyond at depth 1, 9 and 3 at depth 2; the bounds are
    twice that. transformers in bfloat16, given the same texts, had 13 and 4, 14 and 2.
    """
    oracle = build_oracle(CONFIG)
    found = compare(oracle, run_together(oracle, "bfloat16", depth, budget), TAU["bfloat16"])
    assert found.within <= 18
    assert found.beyond <= 8
