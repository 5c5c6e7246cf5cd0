"""A comparison as one JSON object and as a table, one column for each policy.

Does not: compute a figure; `summary.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict

from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.geometry import Geometry
from vtcore.simulation.summary import PERCENTILES

SCHEMA = "vtcore.simulation/1"
"""Rises when a key of the report changes its meaning or goes."""

MAX_TENANTS = 12
"""Tenants, and priorities, that the table shows; the report has all."""


def build_report(
    geometry: Geometry,
    cost: CostModel,
    trace: Mapping[str, Any],
    depth: int,
    policies: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The whole report, as JSON types; it has no real time in it, so equal inputs give equal bytes.

    Args:
        trace: Where the requests came from.
        policies: As `summarize` made them, each with its "policy_config".
    """
    own = ("scheduler.scheduling_policy", "scheduler.policy_config", "scheduler.policy_time_limit_ms")
    plan = geometry.plan
    return {
        "schema": SCHEMA,
        "simulated": geometry.about,
        "trace": dict(trace),
        "cost_model": asdict(cost),
        "depth": depth,
        "config": {
            path: list(value) if isinstance(value, tuple) else value
            for path, value in geometry.config.values().items()
            if path.startswith(("cache.", "scheduler.", "model.max_model_len")) and path not in own
        },
        "pools": [
            {
                "lifetime": str(pool.lifetime),
                "kinds": sorted({spec.kind for spec in pool.specs}),
                "num_units": pool.num_units,
                "unit_bytes": pool.unit_bytes,
            }
            for pool in plan.pools
        ],
        "policies": [dict(one) for one in policies],
    }


def report_text(report: Mapping[str, Any]) -> str:
    """The report as it is written."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def table(report: Mapping[str, Any]) -> str:
    """What a terminal shows: a line for what was simulated, then one row for each figure."""
    policies = report["policies"]
    rows = [("", [str(one["policy"]) for one in policies])]
    rows += [(name, [show(one) for one in policies]) for name, show in _figures()]
    rows += _rows_of_each(policies, "tenants", lambda name: name or "(no tenant)")
    rows += _rows_of_each(policies, "priorities", lambda name: f"priority {name}")
    width = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(policies))]
    lines = [
        f"{report['trace']['about']}; {report['simulated']}",
        f"step times {report['cost_model']['source']}",
        "",
    ]
    for name, cells in rows:
        shown = "  ".join(cell.rjust(size) for cell, size in zip(cells, widths, strict=True))
        lines.append(f"{name.ljust(width)}  {shown}".rstrip())
    return "\n".join(lines)


def _figures() -> Iterator[tuple[str, Callable[[Mapping[str, Any]], str]]]:
    for key, name in (("ttft_s", "TTFT"), ("latency_s", "latency"), ("inter_token_s", "inter-token")):
        for part in ("mean", *(f"p{percent}" for percent in PERCENTILES)):
            yield f"{name} {part} ms", lambda one, key=key, part=part: _ms(one[key][part])  # type: ignore[misc]
    yield "output tokens/s", lambda one: _number(one["output_tokens_per_s"])
    yield "all tokens/s", lambda one: _number(one["total_tokens_per_s"])
    yield "prefix hit rate", lambda one: f"{100 * one['hit_rate']:.1f} %"
    yield "prefilled tokens", lambda one: f"{one['prefilled_tokens']:,}"
    yield "preemptions", lambda one: f"{one['preemptions']:,}"
    yield "breaches", lambda one: f"{one['breaches']:,}"
    yield "fairness (Jain)", lambda one: "-" if one["jain_index"] is None else f"{one['jain_index']:.3f}"
    yield "seconds in all", lambda one: f"{one['makespan_s']:,.1f}"


def _rows_of_each(
    policies: Sequence[Mapping[str, Any]], key_of_all: str, title: Callable[[str], str]
) -> list[tuple[str, list[str]]]:
    """Rows for each tenant or priority, where there are several."""
    names = list(policies[0][key_of_all])
    if len(names) < 2:
        return []
    return [
        (
            f"{figure} of {title(name)} ms",
            [_ms(one[key_of_all][name][key]) for one in policies],
        )
        for figure, key in (("TTFT p90", "p90_ttft_s"), ("latency", "mean_latency_s"))
        for name in names[:MAX_TENANTS]
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
