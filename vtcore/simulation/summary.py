"""The figures of a simulation: latencies, hits, throughput, fairness.

Does not: print or draw them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtcore.simulation.recorder import Recorder
from vtcore.simulation.simulate import PolicyRun

PERCENTILES: tuple[int, ...] = (50, 90, 99)


def jain_index(shares: Sequence[float]) -> float | None:
    """Jain's fairness index of what n parties received: (sum of x)^2 / (n * sum of x^2).

    1 if all received the same, 1/n if one received everything. None for fewer than two parties or if nobody
    received anything.

    A simulation takes as x of a tenant the tokens that it was served per second while it competed, divided by
    its weight. A tenant competes in a step if, when the step is launched, it and at least one other tenant
    each have a request that waits for admission: what a tenant gets when it asks for no more, or when nobody
    else asks, says nothing about fairness. Tokens served are prompt tokens, each once, whether computed or
    found in the prefix cache, and answer tokens sampled. Tenants that never compete are left out.

    Source: Jain, Chiu, Hawe, A quantitative measure of fairness and discrimination for resource allocation in
    shared computer systems, DEC-TR-301 (1984), section 2. That only tenants with waiting requests count:
    Sheng et al., Fairness in serving large language models (OSDI 2024), section 3.
    """
    squares = math.fsum(x * x for x in shares)
    if len(shares) < 2 or not squares:
        return None
    return math.fsum(shares) ** 2 / (len(shares) * squares)


def spread(values: NDArray[np.float64]) -> dict[str, float | None]:
    """Mean and percentiles, interpolated linearly; None for no values."""
    names = ["mean", *(f"p{percent}" for percent in PERCENTILES)]
    if not values.size:
        return dict.fromkeys(names)
    figures = [values.mean(), *np.percentile(values, PERCENTILES)]
    return {name: _rounded(float(figure)) for name, figure in zip(names, figures, strict=True)}


def summarize(run: PolicyRun, weights: Mapping[str, float]) -> dict[str, Any]:
    """Everything that is reported of one policy, as JSON types; docs/howto/simulate.md says what each means.

    Args:
        weights: Tenant -> its weight; 1 for one that is left out.
    """
    record = run.record
    arrival, first, last = (np.array(one) for one in (record.arrival_s, record.first_s, record.last_s))
    makespan_s = float(last.max() - arrival.min())
    prompt, output, hit = sum(record.prompt_len), sum(record.num_output), sum(record.cached)
    tenants = _tenants(record, weights, first - arrival, last - arrival)
    shares = [one["served_per_s_and_weight"] for one in tenants.values()]
    fairness = jain_index([share for share in shares if share is not None])
    return {
        "policy": run.name,
        "ttft_s": spread(first - arrival),
        "latency_s": spread(last - arrival),
        "inter_token_s": spread(np.frombuffer(record.gaps_s) if record.gaps_s else np.zeros(0)),
        "num_requests": len(record.num_output),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "makespan_s": _rounded(makespan_s),
        "busy_s": _rounded(record.busy_s),
        "output_tokens_per_s": _rounded(output / makespan_s) if makespan_s else None,
        "total_tokens_per_s": _rounded((prompt + output) / makespan_s) if makespan_s else None,
        "num_steps": record.num_steps,
        "hit_tokens": hit,
        "hit_rate": _rounded(hit / prompt),
        "prefilled_tokens": record.prefilled_tokens,
        "preemptions": run.counters["preemptions"],
        "breaches": run.breaches,
        "jain_index": None if fairness is None else _rounded(fairness),
        "tenants": tenants,
        "priorities": _priorities(record, first - arrival, last - arrival),
        "counters": dict(run.counters),
    }


def _tenants(
    record: Recorder,
    weights: Mapping[str, float],
    ttft: NDArray[np.float64],
    latency: NDArray[np.float64],
) -> dict[str, Any]:
    tenant_of = np.array(record.tenant_of)
    found = {}
    for index, name in enumerate(record.tenants):
        own = tenant_of == index
        seconds, weight = float(record.contended_s[index]), weights.get(name, 1.0)
        rate = int(record.contended_tokens[index]) / seconds / weight if seconds else None
        found[name] = {
            "weight": weight,
            **_times(ttft[own], latency[own]),
            "contended_s": _rounded(seconds),
            "contended_tokens": int(record.contended_tokens[index]),
            "served_per_s_and_weight": None if rate is None else _rounded(rate),
        }
    return found


def _priorities(record: Recorder, ttft: NDArray[np.float64], latency: NDArray[np.float64]) -> dict[str, Any]:
    """By priority as text, as JSON has keys, the lowest number first."""
    priority_of = np.array(record.priority_of)
    owns = {str(priority): priority_of == priority for priority in sorted(set(record.priority_of))}
    return {name: _times(ttft[own], latency[own]) for name, own in owns.items()}


def _times(ttft: NDArray[np.float64], latency: NDArray[np.float64]) -> dict[str, Any]:
    """Of one tenant's or one priority's requests."""
    return {
        "num_requests": int(ttft.size),
        "mean_ttft_s": _rounded(float(ttft.mean())),
        "p90_ttft_s": _rounded(float(np.percentile(ttft, 90))),
        "mean_latency_s": _rounded(float(latency.mean())),
    }


def _rounded(value: float) -> float:
    """To a nanosecond or its like, so that sums in another order print alike."""
    return round(value, 9)
