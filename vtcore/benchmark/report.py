"""A benchmark's report: one JSON object, and the table that a terminal shows.

Does not: compute a figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vtcore
from vtcore.benchmark.machine import describe_machine, read_clocks

if TYPE_CHECKING:
    from vtcore.benchmark.ceilings import MeasuredCeilings
    from vtcore.benchmark.figures import Figure
    from vtcore.benchmark.subject import Subject

SCHEMA = "vtcore.bench/1"
"""Rises when a key of the report changes its meaning or goes."""


_SHOWN_KERNELS = 25
"""Rows of a step in the table of a terminal; the report has all."""


def about_subject(subject: Subject) -> dict[str, Any]:
    """What must be asked of the engine while it is open, JSON types."""
    loaded = subject.engine.loaded
    config, graphs = loaded.config, loaded.runner.graphs
    plugins = {one.distribution for one in loaded.registry.plugins if one.version is not None}
    return {
        "model": config.model.model,
        "arch": config.model.arch,
        "config": {
            path: {"value": list(value) if isinstance(value, tuple) else value, "origin": str(origin)}
            for path, value in config.values().items()
            if (origin := config.origins.get(path)) is not None
        },
        "memory": {
            "cache_bytes": loaded.plan.cache_bytes,
            "num_blocks": loaded.plan.num_blocks,
            "max_model_len": loaded.plan.max_model_len,
        },
        "graphs": None
        if graphs is None
        else {
            "sizes": [list(key) for key in graphs.keys],
            "seconds": round(graphs.seconds, 3),
            "bytes": graphs.num_bytes,
        },
        "machine": describe_machine(plugins),
    }


def start_json(subject: Subject) -> dict[str, Any]:
    """How long the start took, part by part."""
    clock = subject.clock
    return {
        "value": round(subject.start_s, 3),
        "unit": "s",
        "kernels_cached_before": clock.kernels,
        "kernels_compiled": subject.compiled_in_start,
        "kernel_cache": kernel_cache(clock.kernels, subject.compiled_in_start) if subject.is_gpu else None,
        "phases_s": {
            "before the engine": round(clock.imports_s, 3),
            **{name: round(seconds, 3) for name, seconds in clock.phases.items()},
        },
    }


def kernel_cache(cached_before: int, compiled: int) -> str:
    """What a start found in the kernel cache: "cold" nothing, "warm" all that it needed, else "partly warm".

    Args:
        cached_before: Kernels that lay there, of any model.
        compiled: Kernels that the start added.
    """
    if not cached_before:
        return "cold"
    return "partly warm" if compiled else "warm"


def build_report(
    kind: str,
    command: Sequence[str],
    commit: str | None,
    about: Mapping[str, Any],
    ceilings: MeasuredCeilings,
    results: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole report, as JSON types; of whole paths only their last names, for a report is passed on.

    Args:
        kind: "latency", "throughput" or "kernels".
        command: As it was typed.
        commit: Of the code; None where unknown.
        about: As of `about_subject`.
        results: The kind's own keys.
    """
    about = dict(about)
    machine = {**about.pop("machine"), "gpu": read_clocks()}
    report = {
        "schema": SCHEMA,
        "kind": kind,
        "model": about.pop("model"),
        "arch": about.pop("arch"),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "version": vtcore.__version__,
        "command": list(command),
        "machine": machine,
        "ceilings": ceilings.as_json(),
        **results,
        **about,
    }
    shared: dict[str, Any] = without_folders(report)
    return shared


def without_folders(value: Any) -> Any:
    """JSON types, each text that is an absolute path (also after `--flag=`) cut to its last name."""
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    if not isinstance(value, str):
        return value
    flag, equals, path = value.partition("=")
    if value.startswith("--") and equals:
        return f"{flag}={without_folders(path)}"
    return Path(value).name if Path(value).is_absolute() else value


def report_text(report: Mapping[str, Any]) -> str:
    """The report as it is written."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def cells_json(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Cell -> its numbers."""
    return {name: figure.as_json() for name, figure in figures.items()}


def table(report: Mapping[str, Any]) -> str:
    """What a terminal shows."""
    ceilings = report["ceilings"]
    lines = [
        f"{report['model']}, {report['machine']['gpu'].get('name', report['machine']['platform'])}, "
        f"commit {report['commit'] or 'unknown'}",
        f"ceilings: copy {ceilings['copy_tb_per_s']:g} TB/s, {ceilings['matmul_dtype']} product "
        f"{ceilings['matmul_tflop_per_s']:g} TFLOP/s",
    ]
    if report.get("cells"):
        lines += [
            "",
            *_columns(
                ["cell", "value", "unit", "bound", "share", "runs", "of"],
                [_cell_row(name, cell) for name, cell in report["cells"].items()],
            ),
        ]
    if (host := report.get("host")) is not None:
        lines += [
            "",
            f"host at batch {host['batch']}: {host['exposed_us_p50']:g} us exposed of a step (p90 "
            f"{host['exposed_us_p90']:g}), device busy {host['busy_us_p50']:g} us; {host['how']}",
        ]
    for batch, one in report.get("groups", {}).items():
        lines.append(
            f"groups at batch {batch}, {report['routing']} routing: a layer's step reads "
            f"{one['distinct_groups']:g}, the fullest has {one['largest_group_rows']:g} rows"
        )
    for name, profile in report.get("steps", {}).items():
        lines += ["", *_profile_lines(name, profile)]
    if "start" in report:
        start = report["start"]
        phases = ", ".join(f"{name} {seconds:g}" for name, seconds in start["phases_s"].items())
        cache = "" if start["kernel_cache"] is None else f" ({start['kernel_cache']} kernel cache)"
        lines += ["", f"start {start['value']:g} s{cache}: {phases}"]
    if "compiles_after_warm_up" in report:
        lines.append(f"compiles after warm-up: {report['compiles_after_warm_up']}")
    noted = {**report.get("cells", {}), **report.get("steps", {})}
    if notes := [f"{name}: {one['note']}" for name, one in noted.items() if "note" in one]:
        lines += ["", *notes]
    return "\n".join(lines)


def _cell_row(name: str, cell: Mapping[str, Any]) -> list[str]:
    share = cell["share"]
    samples = [sample for sample in cell["samples"] if sample is not None]
    return [
        name,
        _amount(cell["value"]),
        cell["unit"],
        _amount(cell["roof"]),
        "-" if share is None else f"{100 * share:.1f} %",
        f"{min(samples):,.4g} to {max(samples):,.4g}" if samples else "-",
        str(len(cell["samples"])),
    ]


def _amount(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


def _profile_lines(step: str, profile: Mapping[str, Any]) -> list[str]:
    head = (
        f"{step}: {profile['step_us']:,.1f} us a step, the device busy {profile['busy_us']:,.1f}, "
        f"bound {profile['roof_us']:,.1f}"
    )
    rows = [
        [
            one["name"][:60],
            one["group"],
            f"{one['calls']:g}",
            f"{one['us']:,.2f}",
            f"{100 * one['share']:.1f} %",
            f"{one['bytes'] / 1e6:,.3f}" if "bytes" in one else "-",
        ]
        for one in profile["kernels"][:_SHOWN_KERNELS]
    ]
    groups = ", ".join(f"{name} {100 * one['share']:.1f} %" for name, one in profile["groups"].items())
    return [head, groups, *_columns(["kernel", "group", "calls", "us", "share", "MB"], rows)]


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
