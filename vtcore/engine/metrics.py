"""What an engine has done and holds, as named numbers.

Does not: serve them over a network or keep a history; each call reads the counters as they stand.

Names follow Prometheus: `vtcore_` first, units in bytes or tokens, `_total` at the end of a counter. Hits and
queries of the prefix cache count tokens. Source: vLLM v1/metrics/loggers.py, vllm:prefix_cache_hits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from attrs import define, field, frozen

from vtcore.interfaces.kv_cache_spec import Slot, Whole

if TYPE_CHECKING:
    from vtcore.engine.engine import Engine
    from vtcore.interfaces.kv_cache_spec import Lifetime

Kind = Literal["counter", "gauge"]

FINISH_REASONS = ("stop", "length", "abort")
"""Values of the label `finish_reason`. Source: `CompletionOutput.finish_reason`."""

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "steps": ("vtcore_steps_total", "Steps of the engine."),
    "preemptions": ("vtcore_preemptions_total", "Requests that had to give up their memory and wait again."),
    "queried_tokens": (
        "vtcore_prefix_cache_queries_total",
        "Tokens of requests that looked for a cached prefix when they were first admitted.",
    ),
    "hit_tokens": ("vtcore_prefix_cache_hits_total", "Of these, tokens that a cached prefix spared."),
    "hits": ("vtcore_prefix_cache_hit_requests_total", "Requests that started from a cached prefix."),
    "preempted_queried_tokens": (
        "vtcore_prefix_cache_preempted_queries_total",
        "Tokens of requests that looked for a cached prefix when they came back after a preemption.",
    ),
    "preempted_hit_tokens": (
        "vtcore_prefix_cache_preempted_hits_total",
        "Of these, tokens that a cached prefix spared.",
    ),
    "prefilled_tokens": (
        "vtcore_prefilled_tokens_total",
        "Tokens of prompts that were computed, after a preemption once more.",
    ),
    "forks": ("vtcore_forks_total", "Samples that took over their prompt from the first sample."),
    "state_checkpoints": (
        "vtcore_state_checkpoints_total",
        "Recurrent states that were kept for prefix hits.",
    ),
    "state_checkpoints_skipped": (
        "vtcore_state_checkpoints_skipped_total",
        "Recurrent states that were not kept, for want of a free place.",
    ),
    "stalls": ("vtcore_stalled_steps_total", "Steps in which running requests could not be continued."),
    "late_results": ("vtcore_late_results_total", "Sampled tokens of requests that had ended meanwhile."),
    "nan_logit_rows": ("vtcore_nan_logit_rows_total", "Tokens drawn from logits that held NaN."),
    "empty_logit_rows": ("vtcore_empty_logit_rows_total", "Tokens drawn where no id was allowed."),
    "policy_breaches": (
        "vtcore_policy_breaches_total",
        "Times the scheduler policy broke its contract and lost its turn.",
    ),
    "kv_cache_spec_breaches": (
        "vtcore_kv_cache_spec_breaches_total",
        "Answers of KV-cache specs that could not be used.",
    ),
    "late_kernels": (
        "vtcore_late_kernels_total",
        "Kernels that this process made ready while an engine served; a step waited for each.",
    ),
    "illegal_drafts": ("vtcore_illegal_drafts_total", "Drafts of the drafter that were no legal token id."),
}
"""Key of `Engine.stats` -> (name, help)."""


@frozen
class Metric:
    """One number with its name.

    Args:
        name: As Prometheus would show it.
        kind: "counter" only rises while the engine lives; "gauge" goes up and down.
        value: At the time of the call.
        help: One sentence.
        labels: Always `model_name`; some metrics come once per value of a further label.
    """

    name: str
    kind: Kind
    value: int
    help: str
    labels: Mapping[str, str] = field(factory=dict)


@define
class FrontendCounts:
    """What users asked for and got since the start.

    The core's own count of ended requests lags by a step where a stop string ended one.

    Args:
        prompt_tokens: Of prompts that were queued.
        generation_tokens: Of outputs.
        finished: Ended samples by reason.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(factory=Counter)


def collect_metrics(engine: Engine) -> tuple[Metric, ...]:
    """Every metric of an engine that is open.

    Raises:
        EngineClosedError: It was closed.
    """
    stats = engine.stats()
    names = {"model_name": engine.loaded.config.frontend.served_model_name[0]}
    return (*_requests(engine, names), *_counted(engine, stats, names), *_memory(engine, names))


def _requests(engine: Engine, names: Mapping[str, str]) -> Iterator[Metric]:
    unfinished = engine.unfinished_sample_ids
    running = sum(request.id in unfinished for request in engine.loaded.core.scheduler.running)
    waiting = len(unfinished) - running
    yield Metric("vtcore_requests_running", "gauge", running, "Samples that compute now.", names)
    yield Metric("vtcore_requests_waiting", "gauge", waiting, "Samples that wait for their turn.", names)
    for reason in FINISH_REASONS:
        yield Metric(
            "vtcore_requests_finished_total",
            "counter",
            engine.counts.finished[reason],
            "Samples that ended, by reason; a request has n.",
            {**names, "finish_reason": reason},
        )


def _counted(engine: Engine, stats: Mapping[str, int], names: Mapping[str, str]) -> Iterator[Metric]:
    prompt, generation = engine.counts.prompt_tokens, engine.counts.generation_tokens
    yield Metric(
        "vtcore_prompt_tokens_total", "counter", prompt, "Tokens of prompts that were queued.", names
    )
    yield Metric("vtcore_generation_tokens_total", "counter", generation, "Tokens of all outputs.", names)
    for key, (name, about) in _COUNTERS.items():
        yield Metric(name, "counter", stats[key], about, names)


def _memory(engine: Engine, names: Mapping[str, str]) -> Iterator[Metric]:
    memory = engine.loaded.core.scheduler.memory
    for index, (plan, pool) in enumerate(zip(memory.plans, memory.pools, strict=True)):
        labels = {**names, "pool": str(index), "lifetime": _lifetime(plan.lifetime)}
        unit = "slots" if plan.is_slot else "blocks"
        # Beside the null unit, places of state checkpoints are no request's.
        total = pool.num_units - 1 - plan.num_checkpoints
        used = total - pool.num_free
        yield Metric(
            f"vtcore_kv_{unit}_used", "gauge", used, f"{unit.capitalize()} that requests hold.", labels
        )
        yield Metric(
            f"vtcore_kv_{unit}", "gauge", total, f"{unit.capitalize()} that requests can hold.", labels
        )
        yield Metric("vtcore_kv_pool_bytes", "gauge", plan.num_bytes, "Memory of the pool.", labels)
    yield Metric(
        "vtcore_weight_bytes", "gauge", engine.loaded.plan.weight_bytes, "Memory of the weights.", names
    )


def _lifetime(lifetime: Lifetime) -> str:
    if isinstance(lifetime, Slot):
        return "slot"
    return "whole" if isinstance(lifetime, Whole) else f"window {lifetime.tokens}"
