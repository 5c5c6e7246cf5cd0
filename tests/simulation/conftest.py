"""Small engines to simulate, and runs of traces on them with every invariant checked after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.geometry import DecoderShape, Geometry, plan_plain_decoder
from vtcore.simulation.simulate import NamedPolicy, PolicyRun, simulate
from vtcore.simulation.trace import TraceRequest, check_trace_fits
from vtcore.testing.invariants import check_invariants

Run = Callable[..., PolicyRun]
SECONDS = CostModel(fixed_s=1.0, per_prefill_token_s=0.1, per_decode_row_s=0.5, per_context_token_s=0.0)
"""Numbers that are easily added by hand."""


@pytest.fixture
def engine() -> Callable[..., Geometry]:
    """A plain decoder: two rows, 64 blocks of 4 tokens, 8 tokens a step, unless said otherwise."""

    def build(**options: Any) -> Geometry:
        small = {"max_num_seqs": 2, "block_size": 4, "num_blocks": 64, "max_num_batched_tokens": 8}
        return plan_plain_decoder(UserOptions(**{**small, **options}), {}, Environment(), DecoderShape())

    return build


@pytest.fixture
def run(engine: Callable[..., Geometry]) -> Run:
    """Runs a trace under a policy of a class, checked."""

    def run(
        requests: Sequence[TraceRequest],
        policy: Callable[[], SchedulerPolicy] = SchedulerPolicy,
        geometry: Geometry | None = None,
        cost: CostModel = SECONDS,
        depth: int = 1,
        **options: Any,
    ) -> PolicyRun:
        geometry = geometry or engine(**options)
        check_trace_fits(requests, geometry.plan.max_model_len, geometry.vocab_size)
        named = NamedPolicy("policy", policy, ("",) * len(requests))
        return simulate(geometry, named, requests, cost, depth=depth, check=check_invariants)

    return run
