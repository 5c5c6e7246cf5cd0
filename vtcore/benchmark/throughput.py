"""A closed loop: so many clients, each with one request at a time, until all requests are done.

Does not: model arrivals; `vtcore simulate` does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import frozen

from vtcore.benchmark.figures import Figure, Progress
from vtcore.benchmark.subject import Demand, Needs, request_demand
from vtcore.request import SamplingParams

if TYPE_CHECKING:
    from vtcore.benchmark.roofline import Ceilings
    from vtcore.benchmark.subject import Subject

_WARM_PROMPT, _WARM_OUTPUTS = 16, 8


@frozen(kw_only=True)
class ThroughputPlan:
    """What is measured.

    Args:
        prompt_tokens, output_tokens: Of each request, >= 1.
        clients: Requests at once, one cell for each number.
        requests: Of each cell; None is twice the clients, at least 4.
        temperature: 0 is greedy.
        repeats: Measurements of each cell, >= 1.
    """

    prompt_tokens: int
    output_tokens: int
    clients: tuple[int, ...]
    requests: int | None
    temperature: float
    repeats: int

    @property
    def needs(self) -> Needs:
        """What the engine must hold."""
        demands = (
            request_demand(self.prompt_tokens, self.output_tokens),
            Demand(who="warming up takes requests of", tokens=_WARM_PROMPT + _WARM_OUTPUTS),
        )
        tokens = max(one.tokens for one in demands)
        return Needs(
            batch=max(self.clients),
            batch_tokens=tokens,
            longest=tokens,
            batch_flag="--clients",
            demands=demands,
        )

    def count(self, clients: int) -> int:
        """Requests of a cell."""
        return max(4, 2 * clients) if self.requests is None else self.requests


def measure_throughput(
    subject: Subject, plan: ThroughputPlan, progress: Progress
) -> dict[int, tuple[float, ...]]:
    """Seconds of each repetition of each cell by its clients; after an interrupt, of those that were done.

    Raises:
        KeyboardInterrupt: None was done.
    """
    seconds: dict[int, tuple[float, ...]] = {}
    with progress.interruptible():
        for clients in plan.clients:
            with progress.measuring([f"closed_c{clients}"]):
                subject.run(subject.prompts(clients, _WARM_PROMPT), _WARM_OUTPUTS, plan.temperature)
                seconds[clients] = tuple(_closed_loop(subject, plan, clients) for _ in range(plan.repeats))
            rate = plan.count(clients) * plan.output_tokens / min(seconds[clients])
            progress.say(f"{clients} clients: {rate:.1f} output tokens/s")
    return seconds


def throughput_figures(
    subject: Subject, plan: ThroughputPlan, seconds: dict[int, tuple[float, ...]], ceilings: Ceilings
) -> dict[str, Figure]:
    """Each cell beside an ideal schedule: prompts, then decoding, each at its bound, never both at once."""
    figures = {}
    for clients, took in seconds.items():
        count = plan.count(clients)
        tokens = count * plan.output_tokens
        ideal = subject.work.closed_loop_seconds(
            count, clients, plan.prompt_tokens, plan.output_tokens, subject.budget, ceilings
        )
        figures[f"closed_c{clients}"] = Figure(
            value=tokens / min(took),
            samples=tuple(tokens / one for one in took),
            unit="tok/s",
            roof=tokens / ideal,
            details={"requests": count},
        )
    return figures


def _closed_loop(subject: Subject, plan: ThroughputPlan, clients: int) -> float:
    engine, count = subject.engine, plan.count(clients)
    params = SamplingParams(temperature=plan.temperature, max_tokens=plan.output_tokens, ignore_eos=True)
    waiting = subject.prompts(count, plan.prompt_tokens)
    before = subject.preemptions()
    started = time.perf_counter()
    for _ in range(min(clients, count)):
        engine.add_request({"prompt_token_ids": waiting.pop()}, params)
    while engine.has_unfinished_requests:
        for output in engine.step(final_only=True):
            if output.finished and waiting:
                engine.add_request({"prompt_token_ids": waiting.pop()}, params)
    seconds = time.perf_counter() - started
    subject.check_undisturbed(before, clients)
    return seconds
