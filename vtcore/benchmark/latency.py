"""Latency by the method of docs/performance.md: time to a first token, decode rates, end-to-end rates.

With random prompts of P tokens and N outputs, B requests at once: TTFT is one request for one token; the
decode rate B (N - 1) / (t(N) - t(1)); the end-to-end rate B N / t(N), t(n) being the time of n outputs each,
the shortest of its repetitions.
Does not: choose the engine's settings; subject.py does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field, frozen

from vtcore.benchmark.figures import Figure, Progress, short
from vtcore.benchmark.host_time import measure_host_time
from vtcore.benchmark.subject import Demand, Needs, prompt_demand, request_demand

if TYPE_CHECKING:
    from vtcore.benchmark.roofline import Ceilings
    from vtcore.benchmark.subject import Subject

ResultT = TypeVar("ResultT")

_WARM_PROMPT, _WARM_OUTPUTS = 16, 8
_HOST_OUTPUTS = 65


@frozen(kw_only=True)
class LatencyPlan:
    """What is measured.

    Args:
        prompt_tokens: P, of the prompts of batches.
        ttft_tokens: Prompts whose time to a first token is measured.
        output_tokens: N, >= 2.
        batches: B, each >= 1.
        temperature: 0 is greedy.
        repeats: Measurements of each cell at most.
        cell_seconds: A cell is not measured again once it has taken so long.
    """

    prompt_tokens: int
    ttft_tokens: tuple[int, ...]
    output_tokens: int
    batches: tuple[int, ...]
    temperature: float
    repeats: int
    cell_seconds: float

    @property
    def needs(self) -> Needs:
        """What the engine must hold."""
        # Warming up and looking at host time have prompts and outputs of their own.
        of_batches = (
            request_demand(self.prompt_tokens, self.output_tokens, least_output=2),
            Demand(who="the look at the host's time takes requests of", tokens=_WARM_PROMPT + _HOST_OUTPUTS),
        )
        demands = (*of_batches, *(prompt_demand("--ttft-tokens", one) for one in self.ttft_tokens))
        return Needs(
            batch=max(self.batches, default=1),
            batch_tokens=max(one.tokens for one in of_batches),
            longest=max(one.tokens for one in demands),
            demands=demands,
        )


@define
class LatencyRun:
    """What was measured; bounds come when the ceilings are known.

    Args:
        ttft_s: Prompt's length -> seconds of each repetition.
        batch_s: Requests at once -> t(1) and t(N) of each repetition.
        host: None where it was not looked at.
    """

    ttft_s: dict[int, tuple[float, ...]] = field(factory=dict)
    batch_s: dict[int, tuple[tuple[float, float], ...]] = field(factory=dict)
    host: dict[str, Any] | None = None


def measure_latency(subject: Subject, plan: LatencyPlan, progress: Progress) -> LatencyRun:
    """Run every cell; small ones first, so that clocks are up when the short times are taken.

    After an interrupt it returns what was done.

    Raises:
        KeyboardInterrupt: Nothing was done.
    """
    run = LatencyRun()
    with progress.interruptible():
        progress.say("warming up ...")
        for batch in plan.batches:
            subject.run(subject.prompts(batch, _WARM_PROMPT), _WARM_OUTPUTS, plan.temperature)
        for length in plan.ttft_tokens:
            with progress.measuring([f"ttft_{length}"]):
                subject.run(subject.prompts(1, length), 1, plan.temperature)
                run.ttft_s[length] = repeat(plan, partial(_first_token, subject, plan, length))
            progress.say(f"TTFT of {length} tokens: {1e3 * min(run.ttft_s[length]):.2f} ms")
        for batch in plan.batches:
            with progress.measuring([f"decode_b{batch}", f"e2e_b{batch}"]):
                pairs = run.batch_s[batch] = repeat(plan, partial(_pair, subject, plan, batch))
            rate = decode_rate(plan, batch, *shortest(pairs))
            if rate is None:
                progress.say(f"decode_b{batch} {_noise(plan)}")
            else:
                progress.say(f"batch {batch}: {rate:.1f} tokens/s decoding")
        if plan.batches:
            progress.say("measuring the host's time ...")
            run.host = measure_host_time(subject, max(plan.batches), _HOST_OUTPUTS).as_json()
    return run


def latency_figures(
    subject: Subject,
    plan: LatencyPlan,
    run: LatencyRun,
    ceilings: Ceilings,
    distinct_groups: Mapping[int, float],
) -> dict[str, Figure]:
    """Each cell beside its bound.

    Args:
        distinct_groups: Batch -> groups (experts) that a layer's step read, as counted.
    """
    work, budget, outputs = subject.work, subject.budget, plan.output_tokens
    figures: dict[str, Figure] = {}
    for length, seconds in run.ttft_s.items():
        roof = work.prefill_seconds(1, length, budget, ceilings)
        figures[f"ttft_{length}"] = Figure(
            value=1e3 * min(seconds),
            samples=tuple(1e3 * one for one in seconds),
            unit="ms",
            roof=1e3 * roof,
        )
    for batch, pairs in run.batch_s.items():
        distinct = distinct_groups.get(batch)
        first_s, last_s = shortest(pairs)
        context = plan.prompt_tokens + outputs / 2
        step = work.decode_step(batch, context, distinct).seconds(ceilings)
        rate = decode_rate(plan, batch, first_s, last_s)
        figures[f"decode_b{batch}"] = Figure(
            value=rate,
            samples=tuple(decode_rate(plan, batch, *pair) for pair in pairs),
            unit="tok/s",
            roof=batch / step,
            details={
                "seconds": {
                    name: [short(pair[i]) for pair in pairs] for i, name in enumerate(("1", f"{outputs}"))
                },
                **({} if distinct is None else {"distinct_groups": short(distinct)}),
                **({} if rate is not None else {"note": _noise(plan)}),
            },
        )
        whole = work.generate_seconds(batch, plan.prompt_tokens, outputs, budget, ceilings, distinct)
        figures[f"e2e_b{batch}"] = Figure(
            value=batch * outputs / last_s,
            samples=tuple(batch * outputs / last for _, last in pairs),
            unit="tok/s",
            roof=batch * outputs / whole,
        )
    return figures


def shortest(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The shortest t(1) and the shortest t(N), each of any repetition."""
    return min(first for first, _ in pairs), min(last for _, last in pairs)


def decode_rate(plan: LatencyPlan, batch: int, first_s: float, last_s: float) -> float | None:
    """Tokens per second of t(1) and t(N); None where noise turned the two round."""
    new = batch * (plan.output_tokens - 1)
    return new / (last_s - first_s) if last_s > first_s else None


def _noise(plan: LatencyPlan) -> str:
    return (
        f"cannot be told from noise: t({plan.output_tokens}) is not longer than t(1); raise --output-tokens, "
        f"--repeats or --cell-seconds"
    )


def repeat(plan: LatencyPlan, run: Callable[[], ResultT]) -> tuple[ResultT, ...]:
    """Results of at most `plan.repeats` runs, at least one."""
    started, results = time.monotonic(), [run()]
    while len(results) < plan.repeats and time.monotonic() - started < plan.cell_seconds:
        results.append(run())
    return tuple(results)


def _first_token(subject: Subject, plan: LatencyPlan, length: int) -> float:
    return subject.run(subject.prompts(1, length), 1, plan.temperature)


def _pair(subject: Subject, plan: LatencyPlan, batch: int) -> tuple[float, float]:
    first_s = subject.run(subject.prompts(batch, plan.prompt_tokens), 1, plan.temperature)
    last_s = subject.run(subject.prompts(batch, plan.prompt_tokens), plan.output_tokens, plan.temperature)
    return first_s, last_s
