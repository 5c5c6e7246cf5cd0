"""Generated traces: Poisson arrivals, bursts, conversations, and prompts with shared prefixes.

Does not: know a model; all that is drawn comes from one seeded generator, so that a seed gives one trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

from attrs import frozen

from vtcore.simulation.trace import TraceRequest

T = TypeVar("T")

TAIL = 8
"""A drawn length is at most so many times its mean, so that one request cannot be the whole trace."""


@frozen(kw_only=True)
class Lengths:
    """How long prompts or answers are: uniform from `low` to `high`, or, with `sigma`, log-normal.

    Args:
        low, high: In tokens, 1 <= low <= high; equal for one length.
        mean: Of the log-normal draw, in tokens, before it is cut to 1..`TAIL` * mean; None for a uniform one.
        sigma: Standard deviation of the logarithm.
    """

    low: int = 1
    high: int = 1
    mean: float | None = None
    sigma: float = 0.0

    def draw(self, random: Random) -> int:
        """One length."""
        if self.mean is None:
            return random.randint(self.low, self.high)
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        mu = math.log(self.mean) - self.sigma**2 / 2
        drawn = math.exp(mu + self.sigma * random.gauss(0.0, 1.0))
        return round(min(max(drawn, 1.0), TAIL * self.mean))


@frozen(kw_only=True)
class Workload:
    """What is generated.

    Args:
        kind: A key of `WORKLOADS`.
        num_requests: Of the trace, >= 1.
        rate: Requests per second on average, > 0; of conversations without their waits.
        prompt, output: Of each request; in a conversation the prompt's length is that of its new part.
        tenants, priorities: Value -> share of the requests, > 0; empty for one nameless tenant, priority 0.
        turns: Requests of a conversation, >= 1.
        think_s: Mean seconds between an answer and the next turn, exponential, >= 0.
        prefix_groups: Shared prefixes, >= 1, drawn alike. prefix_tokens: Their length, >= 1.
        burst_size: Requests that come at once, >= 1.
    """

    kind: str
    num_requests: int
    rate: float
    seed: int = 0
    prompt: Lengths
    output: Lengths
    tenants: Mapping[str, float]
    priorities: Mapping[int, float]
    turns: int = 4
    think_s: float = 5.0
    prefix_groups: int = 8
    prefix_tokens: int = 512
    burst_size: int = 16


class _Draw:
    """The generator of one trace."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.random = Random(workload.seed)
        self.requests: list[TraceRequest] = []

    @property
    def is_complete(self) -> bool:
        return len(self.requests) >= self.workload.num_requests

    def gap_s(self, rate: float) -> float:
        """Seconds to the next event of a Poisson process."""
        return self.random.expovariate(rate)

    def tenant(self) -> str:
        return self._one_of(self.workload.tenants, "")

    def priority(self) -> int:
        return self._one_of(self.workload.priorities, 0)

    def add(
        self,
        arrival_s: float,
        *,
        tenant: str | None = None,
        priority: int | None = None,
        prefix: tuple[tuple[str, int], ...] = (),
        follows: str = "",
        after_s: float = 0.0,
    ) -> str:
        """Add a request, its times in whole microseconds; returns its id."""
        name = str(len(self.requests))
        self.requests.append(
            TraceRequest(
                id=name,
                arrival_s=round(arrival_s, 6),
                after_s=round(after_s, 6),
                prompt_tokens=self.workload.prompt.draw(self.random),
                output_tokens=self.workload.output.draw(self.random),
                prefix=prefix,
                follows=follows,
                tenant=self.tenant() if tenant is None else tenant,
                priority=self.priority() if priority is None else priority,
                place=f"request {name}",
            )
        )
        return name

    def _one_of(self, shares: Mapping[T, float], default: T) -> T:
        if not shares:
            return default
        return self.random.choices(list(shares), list(shares.values()))[0]


def _poisson(draw: _Draw) -> None:
    at_s = 0.0
    while not draw.is_complete:
        at_s += draw.gap_s(draw.workload.rate)
        draw.add(at_s)


def _bursty(draw: _Draw) -> None:
    """Bursts come as a Poisson process, rarely enough for the mean rate."""
    size, at_s = draw.workload.burst_size, 0.0
    while not draw.is_complete:
        at_s += draw.gap_s(draw.workload.rate / size)
        for _ in range(min(size, draw.workload.num_requests - len(draw.requests))):
            draw.add(at_s)


def _shared_prefix(draw: _Draw) -> None:
    at_s = 0.0
    while not draw.is_complete:
        at_s += draw.gap_s(draw.workload.rate)
        group = draw.random.randrange(draw.workload.prefix_groups)
        draw.add(at_s, prefix=((f"prefix-{group}", draw.workload.prefix_tokens),))


def _multi_turn(draw: _Draw) -> None:
    """Conversations begin as a Poisson process; a conversation keeps its tenant and its priority."""
    workload, at_s = draw.workload, 0.0
    while not draw.is_complete:
        at_s += draw.gap_s(workload.rate / workload.turns)
        tenant, priority = draw.tenant(), draw.priority()
        before = draw.add(at_s, tenant=tenant, priority=priority)
        for _ in range(min(workload.turns - 1, workload.num_requests - len(draw.requests))):
            wait_s = draw.gap_s(1 / workload.think_s) if workload.think_s else 0.0
            before = draw.add(at_s, tenant=tenant, priority=priority, follows=before, after_s=wait_s)


WORKLOADS: Mapping[str, Callable[[_Draw], None]] = {
    "poisson": _poisson,
    "bursty": _bursty,
    "shared-prefix": _shared_prefix,
    "multi-turn": _multi_turn,
}
"""Kind of a workload -> what draws it."""


def generate_trace(workload: Workload) -> tuple[TraceRequest, ...]:
    """Draw a trace; equal workloads give equal traces."""
    draw = _Draw(workload)
    WORKLOADS[workload.kind](draw)
    return tuple(draw.requests)
