"""Tables of docs/performance.md: which report a cell is from, how it compares, which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import performance_table as tool
import pytest

REFERENCE = json.loads(tool.REFERENCE.read_text())
SIZES = tuple(REFERENCE["models"])


def cell(value: float, unit: str = "tok/s", roof: float | None = 100.0) -> dict[str, Any]:
    share = None if roof is None else value / roof
    return {"value": value, "unit": unit, "roof": roof, "share": share, "samples": [value, value]}


def start(value: float, cached: int, compiled: int, word: str | None = "warm") -> dict[str, Any]:
    """As reports hold it; the word is what any cached kernel once made it."""
    numbers = {"kernels_cached_before": cached, "kernels_compiled": compiled}
    return {"value": value, "kernel_cache": word, **numbers}


def latency(date: str, cells: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "schema": tool.SCHEMA,
        "kind": "latency",
        "model": "/somewhere/Qwen3.5-9B",
        "date": date,
        "commit": f"of {date}",
        "routing": "model",
        "cells": cells,
        **other,
    }


def row(name: str, text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_the_reference_holds_the_published_table() -> None:
    assert SIZES == ("0.8b", "9b", "27b", "35b-a3b")
    for model in REFERENCE["models"].values():
        assert len(model["cells"]) == 9
        assert model["goals"].keys() <= model["cells"].keys()
    assert REFERENCE["models"]["27b"]["cells"]["ttft_8192"] == 709
    assert REFERENCE["models"]["35b-a3b"]["cells"]["e2e_b256"] == 3885
    assert REFERENCE["conditions"]["max_num_batched_tokens"] == 8192


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("/a/b/9b", "9b"),
        ("Qwen/Qwen3.5-35B-A3B", "35b-a3b"),
        ("x-0.8b", "0.8b"),
        ("19b", None),
        ("9b-x", None),
    ],
)
def test_a_report_is_of_the_size_that_its_models_name_ends_with(model: str, size: str | None) -> None:
    assert tool.size_of({"model": model}, SIZES) == size


def test_the_newest_report_with_a_cell_counts_and_each_cell_names_its_commit(tmp_path: Path) -> None:
    reports = [
        latency("2", {"decode_b1": cell(180.0)}),
        latency("1", {"decode_b1": cell(90.0), "ttft_1024": cell(50.0, "ms")}),
        latency("3", {"decode_b1": cell(1.0)}, model="other"),
    ]
    files = []
    for number, report in enumerate(reports):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(report))
    text = tool.tables(REFERENCE, tool.read_reports(files))
    section = text.partition("### Qwen3.5-9B")[2].partition("### ")[0]
    assert row("decode_b1", section)[1:5] == ["180 tok/s", "2", "191 tok/s", "0.94"]
    assert row("decode_b1", section)[-1] == "`of 2`"
    assert row("ttft_1024", section)[4] == "1.22", "a shorter time is a better one"
    assert row("ttft_1024", section)[-1] == "`of 1`"
    assert row("e2e_b32", section)[1] == "not measured"


def test_a_miss_is_marked_by_the_cells_own_goal() -> None:
    found = tool.collect_cells([latency("1", {"decode_b1": cell(170.0)})], "9b", SIZES)
    assert row("decode_b1", "\n".join(tool.model_table("9b", REFERENCE, found)))[4] == "**0.89**"
    host = {"batch": 256, "exposed_us_p50": 250.0}
    found = tool.collect_cells([latency("1", {}, start=start(90.5, 0, 35, "cold"), host=host)], "9b", SIZES)
    text = "\n".join(tool.model_table("9b", REFERENCE, found))
    assert row("start", text)[2:6] == ["1", "181 s", "**2.00**", "4"]
    assert row("host_b256", text)[2] == ""
    assert row("host_b256", text)[5] == "below 200 us: **no**"


def test_a_warm_start_and_a_skewed_routing_do_not_stand_in_for_the_cells_of_the_goal() -> None:
    reports = [
        latency("1", {"decode_b1": cell(190.0)}, start=start(9.0, 66, 0)),
        latency("2", {"decode_b1": cell(100.0)}, routing="skewed"),
    ]
    found = tool.collect_cells(reports, "9b", SIZES)
    assert {name: one.value for name, one in found.items()} == {
        "decode_b1": 190.0,
        "start, warm": 9.0,
        "decode_b1, skewed routing": 100.0,
    }


@pytest.mark.parametrize(
    ("found", "routing", "cells"),
    [
        (start(19.0, 0, 35, "cold"), "model", {"start": 19.0}),
        (start(9.0, 66, 0), "model", {"start, warm": 9.0}),
        (start(23.7, 56, 32), "model", {}),
        (start(23.7, 56, 32, "partly warm"), "model", {}),
        (start(9.0, 66, 0), "skewed", {"start, warm": 9.0}),
        (start(22.0, 0, 59, "cold"), "skewed", {}),
        (start(3.0, 0, 0, None), "model", {}),
    ],
)
def test_a_start_is_told_by_what_it_compiled(
    found: dict[str, Any], routing: str, cells: dict[str, float]
) -> None:
    collected = tool.collect_cells([latency("1", {}, start=found, routing=routing)], "9b", SIZES)
    assert {name: one.value for name, one in collected.items()} == cells


def test_where_the_time_of_a_step_goes() -> None:
    kernel = {
        "name": "k",
        "group": "g",
        "calls": 2,
        "us": 10.0,
        "share": 0.5,
        "bytes": 30e6,
        "cache_bytes": 10e6,
    }
    step = {
        "step_us": 25.0,
        "busy_us": 20.0,
        "roof_us": 15.0,
        "kernels": [kernel],
        "groups": {"g": {"us": 20.0, "share": 1.0}},
    }
    report = {**latency("1", {}), "kind": "kernels", "steps": {"decode_b1": step}}
    lines = tool.profile_tables([report], "9b", SIZES)
    assert lines[0] == "#### decode_b1: 25 us, bound 15 us, kernels 20 us (of 1)"
    assert row("`k`", "\n".join(lines)) == ["`k`", "g", "2", "10", "50.0 %", "4.00"]
    assert row("all of g", "\n".join(lines))[-1] == ""


def test_a_rate_that_no_device_has_is_left_out() -> None:
    """The kernel was given a whole cache and wrote one row of it."""
    one = {"name": "k", "group": "g", "calls": 1, "us": 10.0, "share": 1.0, "bytes": 0, "cache_bytes": 90e6}
    step = {"step_us": 9.0, "busy_us": 9.0, "roof_us": 9.0, "kernels": [one], "groups": {}}
    for bandwidth, shown in ((4.0, ""), (8.0, "9.00")):
        report = {
            **latency("1", {}),
            "kind": "kernels",
            "steps": {"decode_b1": step},
            "ceilings": {"copy_tb_per_s": bandwidth},
        }
        assert row("`k`", "\n".join(tool.profile_tables([report], "9b", SIZES)))[-1] == shown


def test_ceilings_of_the_cells_and_experts_of_the_newest_report_are_shown() -> None:
    counted = {"distinct_groups": 46.2172, "largest_group_rows": 30.4, "distinct_if_uniform": 163.3}
    ceilings = {"copy_tb_per_s": 4.25, "matmul_tflop_per_s": 679.0, "clocks_under_load": None}
    reports = [
        latency("1", {}, ceilings={**ceilings, "copy_tb_per_s": 1.0}),
        latency("2", {}, ceilings=ceilings),
        latency(
            "3",
            {},
            ceilings={**ceilings, "copy_tb_per_s": 2.0},
            groups={"32": counted},
            routing="skewed",
        ),
        {**latency("4", {}, ceilings={**ceilings, "copy_tb_per_s": 3.0}, steps={}), "kind": "kernels"},
    ]
    line = tool.ceilings_line(reports, "9b", SIZES)
    assert "4.25 TB/s copied, 679 TFLOP/s of matrix products (`of 2`)" in line
    lines = tool.groups_table(reports, "9b", SIZES)
    assert row("skewed", "\n".join(lines)) == ["skewed", "32", "46.2", "163", "30.4", "`of 3`"]
    assert tool.groups_table(reports[:1], "9b", SIZES) == []


def test_the_tables_go_between_the_marks_of_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = tmp_path / "r.json", tmp_path / "page.md"
    report.write_text(json.dumps(latency("1", {"decode_b1": cell(190.0)})))
    page.write_text(f"before\n{tool.BEGIN}\nold\n{tool.END}\nafter\n")
    assert tool.main([str(report), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{tool.END}\nafter\n")
    assert "190 tok/s" in text
    assert "old" not in text
    assert tool.main([str(report), "--page", str(page)]) == 0
    assert page.read_text() == text
    page.write_text("no marks")
    assert tool.main([str(report), "--page", str(page)]) == 1
    assert "has no place for the tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[]", "is a JSON list"),
        ('{"schema": "other"}', "schema is 'other'"),
        (
            json.dumps({"schema": tool.SCHEMA, "kind": "latency"}),
            "has no model, date, commit, routing, cells",
        ),
    ],
)
def test_a_file_that_is_no_report_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    assert tool.main([str(file)]) == 1
    shown = capsys.readouterr().err
    assert str(file) in shown
    assert sentence in shown
