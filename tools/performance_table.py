"""Makes the tables of docs/performance.md from bench/results/*.json and the reference that they are held to.

Of several reports with the same cell the newest counts; each cell names the commit that it was measured at.
Does not: measure, or judge beyond the goals that the reference names.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from vtcore.benchmark.report import kernel_cache

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
REFERENCE = ROOT / "bench/reference/vllm_0_26_h200.json"
BEGIN = "<!-- Written by tools/performance_table.py from bench/results; measure again instead. -->"
END = "<!-- End of what tools/performance_table.py writes. -->"
SCHEMA = "vtcore.bench/1"

_SHARED_KEYS = ("kind", "model", "date", "commit", "routing")
_KEYS: Mapping[Any, tuple[str, ...]] = {
    "latency": (*_SHARED_KEYS, "cells"),
    "kernels": (*_SHARED_KEYS, "steps"),
}
"""Kind of report -> what is read of it."""
_LOWER_IS_BETTER = ("ms", "s")
_KERNEL_ROWS = 12


class BadInputError(Exception):
    """A file is no report, no reference or no page with a place for the tables."""


@frozen(kw_only=True)
class Cell:
    """One measured cell.

    Args:
        unit: "ms", "s" or "tok/s".
        share: Part of the bound; None where there is none.
        runs: Of which the shortest made the value; None where it came in another way.
    """

    value: float
    unit: str
    roof: float | None
    share: float | None
    commit: str
    runs: int | None


def read_reports(paths: Iterable[Path]) -> list[Mapping[str, Any]]:
    """All reports, the oldest first.

    Raises:
        BadInputError: One is no report of `vtcore bench`.
    """
    reports = []
    for path in paths:
        report = _read_json(path)
        if report.get("schema") != SCHEMA:
            raise BadInputError(f"{path}: schema is {report.get('schema')!r}, not {SCHEMA!r}; measure again")
        if missing := [key for key in _KEYS.get(report.get("kind"), _SHARED_KEYS) if key not in report]:
            raise BadInputError(f"{path}: has no {', '.join(missing)}; measure again")
        reports.append(report)
    return sorted(reports, key=lambda report: str(report["date"]))


def size_of(report: Mapping[str, Any], sizes: Iterable[str]) -> str | None:
    """Which of the reference's models a report is of, told by the end of its name; None for another."""
    name = Path(report["model"]).name.lower()
    return next((size for size in sizes if name == size or name.endswith(f"-{size}")), None)


def collect_cells(reports: Iterable[Mapping[str, Any]], size: str, sizes: Iterable[str]) -> dict[str, Cell]:
    """Cell -> the newest measurement; start apart by the kernel cache's state, skewed routing by a suffix.

    A start that found some kernels and compiled others is no cell. One that compiled nothing is the same with
    any routing; a cold one is not, for it compiled what the routing needs.

    Args:
        reports: The oldest first.
        size: Key of the model.
        sizes: All keys.
    """
    cells: dict[str, Cell] = {}
    sizes = tuple(sizes)
    for report in reports:
        if report["kind"] != "latency" or size_of(report, sizes) != size:
            continue
        commit = report["commit"] or "unknown"
        suffix = "" if report["routing"] == "model" else f", {report['routing']} routing"
        for name, cell in report["cells"].items():
            if cell["value"] is None:
                # Lost in noise: an older figure is better than none.
                continue
            cells[name + suffix] = Cell(
                value=cell["value"],
                unit=cell["unit"],
                roof=cell["roof"],
                share=cell["share"],
                commit=commit,
                runs=len(cell["samples"]),
            )
        start = report.get("start")
        if start is not None and (start_name := _start_cell(start, is_skewed=bool(suffix))) is not None:
            cells[start_name] = Cell(
                value=start["value"], unit="s", roof=None, share=None, commit=commit, runs=1
            )
        if (host := report.get("host")) is not None and not suffix:
            cells[f"host_b{host['batch']}"] = Cell(
                value=host["exposed_us_p50"], unit="us", roof=None, share=None, commit=commit, runs=None
            )
    return cells


def model_table(size: str, reference: Mapping[str, Any], cells: Mapping[str, Cell]) -> list[str]:
    """Markdown lines: every cell of the reference, measured or not, then what it does not have."""
    model = reference["models"][size]
    rows = [
        _row(name, cells.get(name), theirs, model["goals"].get(name, reference["default_goal"]))
        for name, theirs in model["cells"].items()
    ]
    limit = reference["host_us_below"]
    for name, cell in cells.items():
        if name in model["cells"]:
            continue
        row = _row(name, cell, None, None)
        if name == f"host_b{limit['batch']}":
            row[5] = f"below {limit['value']} us: {'yes' if cell.value < limit['value'] else '**no**'}"
        rows.append(row)
    head = ["cell", "vtcore", "runs", reference["engine"]]
    head += ["ratio", "goal", "bound", "share of bound", "commit"]
    return [f"### {model['name']}", "", *_table(head, rows)]


def ceilings_line(reports: Iterable[Mapping[str, Any]], size: str, sizes: Iterable[str]) -> str:
    """The ceilings behind the bounds of the newest cells, as the device gave them in that run."""
    sizes = tuple(sizes)
    line = ""
    for report in reports:
        if report["kind"] != "latency" or report["routing"] != "model" or size_of(report, sizes) != size:
            continue
        if ceilings := report.get("ceilings"):
            clock = (ceilings.get("clocks_under_load") or {}).get("clocks.sm")
            line = (
                f"Bounds by this run's own ceilings: {ceilings['copy_tb_per_s']:.2f} TB/s copied, "
                f"{_number(ceilings['matmul_tflop_per_s'])} TFLOP/s of matrix products"
                f"{f' at {clock}' if clock else ''} (`{report['commit'] or 'unknown'}`)."
            )
    return line


def groups_table(reports: Iterable[Mapping[str, Any]], size: str, sizes: Iterable[str]) -> list[str]:
    """Markdown lines: distinct experts per layer and step of each routing, where the model has experts."""
    sizes = tuple(sizes)
    newest: dict[tuple[str, str], Sequence[str]] = {}
    for report in reports:
        if report["kind"] == "latency" and size_of(report, sizes) == size:
            for batch, one in (report.get("groups") or {}).items():
                newest[report["routing"], batch] = (
                    report["routing"],
                    batch,
                    _number(one["distinct_groups"]),
                    _number(one["distinct_if_uniform"]),
                    _number(one["largest_group_rows"]),
                    f"`{report['commit'] or 'unknown'}`",
                )
    if not newest:
        return []
    head = ["routing", "batch", "distinct experts", "if uniform", "rows of the fullest", "commit"]
    return ["Experts that a layer's step reads:", "", *_table(head, newest.values()), ""]


def profile_tables(reports: Iterable[Mapping[str, Any]], size: str, sizes: Iterable[str]) -> list[str]:
    """Markdown lines: where the newest profile of each kind of step says its time goes."""
    newest: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    sizes = tuple(sizes)
    for report in reports:
        if report["kind"] == "kernels" and size_of(report, sizes) == size and report["routing"] == "model":
            for name, step in report["steps"].items():
                newest[name] = (step, report)
    lines: list[str] = []
    for name, (step, report) in newest.items():
        commit = report["commit"] or "unknown"
        bandwidth = (report.get("ceilings") or {}).get("copy_tb_per_s")
        lines += [
            f"#### {name}: {_number(step['step_us'])} us, bound {_number(step['roof_us'])} us, kernels "
            f"{_number(step['busy_us'])} us ({commit})",
            "",
        ]
        rows = [
            [
                f"`{one['name'][:70]}`",
                one["group"],
                f"{one['calls']:g}",
                _number(one["us"]),
                f"{100 * one['share']:.1f} %",
                _rate(one, bandwidth),
            ]
            for one in step["kernels"][:_KERNEL_ROWS]
        ]
        rows += [
            [
                f"all of {group}",
                group,
                "",
                _number(one["us"]),
                f"{100 * one['share']:.1f} %",
                _rate(one, bandwidth),
            ]
            for group, one in step["groups"].items()
        ]
        lines += [*_table(["kernel", "group", "calls", "us", "share", "TB/s of what it is given"], rows), ""]
    return lines


def tables(reference: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> str:
    """All tables as Markdown."""
    sizes = tuple(reference["models"])
    lines: list[str] = []
    for size in sizes:
        lines += [*model_table(size, reference, collect_cells(reports, size, sizes)), ""]
        if ceilings := ceilings_line(reports, size, sizes):
            lines += [ceilings, ""]
        lines += groups_table(reports, size, sizes)
        lines += profile_tables(reports, size, sizes)
    return "\n".join(lines).rstrip() + "\n"


def written_into(page: str, text: str, path: Path) -> str:
    """The page with the tables between its two marks.

    Raises:
        BadInputError: It has not both marks, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInputError(f"{path}: has no place for the tables; add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a page; 1 where a file is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reports", nargs="*", type=Path, help="default: bench/results/*.json")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="default: %(default)s")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the tables between the marks of a page"
    )
    args = parser.parse_args(argv)
    try:
        reports = read_reports(args.reports or sorted(RESULTS.glob("*.json")))
        text = tables(_read_json(args.reference), reports)
        if args.page is None:
            print(text, end="")
        else:
            page = args.page.read_text(encoding="utf-8")
            args.page.write_text(written_into(page, text, args.page), encoding="utf-8")
    except (BadInputError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInputError(f"{path}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInputError(f"{path}: is a JSON {type(found).__name__}, not an object")
    return found


def _start_cell(start: Mapping[str, Any], *, is_skewed: bool) -> str | None:
    """Told by the numbers: older reports call a cache warm that held any kernel."""
    if start["kernel_cache"] is None:
        return None
    state = kernel_cache(start["kernels_cached_before"], start["kernels_compiled"])
    if state == "warm":
        return "start, warm"
    return "start" if state == "cold" and not is_skewed else None


def _row(name: str, cell: Cell | None, theirs: float | None, goal: float | None) -> list[str]:
    """A cell beside the reference's; a ratio above 1 is better than that, whatever the unit."""
    shown_goal = "" if goal is None else f"{goal:g}"
    if cell is None:
        return [
            name,
            "not measured",
            "",
            "" if theirs is None else _number(theirs),
            "",
            shown_goal,
            "",
            "",
            "",
        ]
    ratio = ""
    if theirs is not None:
        better = theirs / cell.value if cell.unit in _LOWER_IS_BETTER else cell.value / theirs
        ratio = f"{better:.2f}"
        if goal is not None and better < goal:
            ratio = f"**{ratio}**"
    return [
        name,
        f"{_number(cell.value)} {cell.unit}",
        "" if cell.runs is None else f"{cell.runs}",
        "" if theirs is None else f"{_number(theirs)} {cell.unit}",
        ratio,
        shown_goal,
        "" if cell.roof is None else _number(cell.roof),
        "" if cell.share is None else f"{100 * cell.share:.0f} %",
        f"`{cell.commit}`",
    ]


def _rate(one: Mapping[str, Any], bandwidth: float | None) -> str:
    """TB/s; nothing where it is above the device's, since the kernel then used only part of its tensors.

    Tensors that stay in the device's cache can pass its bandwidth too, so up to half as much again is shown.
    """
    num_bytes = one.get("bytes", 0) + one.get("cache_bytes", 0)
    if not num_bytes or not one["us"]:
        return ""
    rate = num_bytes / one["us"] / 1e6
    return "" if bandwidth is not None and rate > 1.5 * bandwidth else f"{rate:.2f}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    sys.exit(main())
