"""A busy run of a toy model under one policy: tenants, priorities, late arrivals and too little memory.

Does not: judge outputs (`vtcore.testing.schedules` does); it counts what never ends and what was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

from attrs import evolve, frozen

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.registry import PluginRegistry
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.policy_calls import call_that_failed

NUM_REQUESTS = 24
_MAX_STEPS = 3000
"""About twenty times what first come, first served takes."""


@frozen
class PolicyRun:
    """What a run showed.

    Args:
        unfinished: Ids of requests that had not ended when the run was broken off.
        breaches: Times the core replaced the policy's answer. first_breach: The log line of the first, and
            with what the policy was called if it raised.
    """

    unfinished: frozenset[str]
    breaches: int
    first_breach: str


def run_policy(
    registry: PluginRegistry, policy: str, config: Mapping[str, Any], args: Sequence[str], seed: int
) -> PolicyRun:
    """Run 24 requests that share five blocks of four tokens, one request's worth, to their ends.

    Args:
        registry: Holds the toy arch and the policy.
        config: Its `policy_config`; none is an empty mapping.
        args: JSON texts that the requests' `policy_args` are drawn from.
        seed: Of all random choices.
    """
    random, ticks = Random(seed), count()
    seen = _Warnings(registry.load(registry.policy(policy)))
    loaded = load_core(
        UserOptions(
            dtype="float64",
            block_size=4,
            num_blocks=5,
            max_model_len=20,
            max_num_seqs=3,
            enable_prefix_caching=bool(seed % 2),
            scheduling_policy=policy,
            policy_config=config or None,
            starvation_s=1e9,
        ),
        hf_config={"model_type": "toy", "vocab_size": 12, "parts": ("whole",)},
        tensors={},
        registry=registry,
        environment=Environment(),
        internals=Internals(
            step_budget=random.choice((3, 7, 64)),
            is_policy_timed=False,
            clock=lambda: float(next(ticks)),
            check=check_invariants,
        ),
    )
    core = loaded.core
    pending = [_request(random, index, args) for index in range(NUM_REQUESTS)]
    unfinished = {request.id for request in pending}
    log = logging.getLogger("vtcore.scheduling.policy_guard")
    log.addHandler(seen)
    try:
        for _ in range(_MAX_STEPS):
            while pending and random.random() < 0.4:
                request = evolve(pending.pop(0), arrival_s=float(next(ticks)))
                core.inbox.append(AddRequest(request))
            unfinished -= {update.id for update in core.step() if update.finish_reason is not None}
            if not pending and not core.has_work:
                check_idle(core)
                break
    finally:
        log.removeHandler(seen)
        loaded.close()
    return PolicyRun(frozenset(unfinished), core.scheduler.policy.breaches, seen.first)


def _request(random: Random, index: int, args: Sequence[str]) -> EngineRequest:
    prompt = tuple(random.randrange(3) for _ in range(random.choice((1, 4, 8, 9, 13))))
    return EngineRequest(
        id=f"r{index}",
        prompt_token_ids=prompt,
        params=RowParams(temperature=0.0),
        max_tokens=random.randint(1, 20 - len(prompt)),
        priority=random.choice((-1, 0, 0, 5)),
        tenant=random.choice(("", "a", "b")),
        policy_args=random.choice(args),
    )


class _Warnings(logging.Handler):
    """Keeps the first line it is given, and the call of the policy behind it."""

    def __init__(self, policy: type[SchedulerPolicy]) -> None:
        super().__init__()
        self._policy = policy
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if self.first:
            return
        error = record.__dict__.get("policy_error")
        call = call_that_failed(self._policy, error) if isinstance(error, BaseException) else ""
        self.first = f"{record.getMessage()}; {call}" if call else record.getMessage()
