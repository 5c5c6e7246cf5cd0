"""What `vtcore bench` says while it measures, after an interrupt, and of what it could not measure."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from vtcore.benchmark import ceilings, kernels, latency, throughput
from vtcore.benchmark.kernels import KernelTime, StepProfile
from vtcore.cli.main import main

ENGINE = ("--load-format", "dummy", "--device", "cpu")
LATENCY = ("--prompt-tokens", "4", "--ttft-tokens", "4", "--output-tokens", "5", "--repeats", "1")
NOISE = (
    "decode_b1 cannot be told from noise: t(5) is not longer than t(1); raise --output-tokens, --repeats or "
    "--cell-seconds"
)


@pytest.fixture(scope="module", name="config")
def fixture_config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a config.json."""
    out = str(tmp_path_factory.mktemp("configs") / "tiny")
    assert main(["make-checkpoint", "--arch", "qwen3_5_dense", "--size", "tiny", "--config-only", out]) == 0
    return out


def interrupt_after(count: int, of: Any) -> Any:
    """Calls of `of` that go through before one is an interrupt, and those after it."""
    calls = 0

    def call(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count + 1:
            raise KeyboardInterrupt
        return of(*args, **keywords)

    return call


def test_a_rate_that_is_noise_is_none(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = {1: [(2.0, 1.0), (3.0, 2.0)], 2: [(2.0, 1.0), (1.0, 5.0)]}
    monkeypatch.setattr(latency, "_pair", lambda subject, plan, batch: pairs[batch].pop(0))
    file = tmp_path / "report.json"
    words = ["bench", "latency", config, *ENGINE, *LATENCY, "--batch-sizes", "1,2", "--repeats", "2"]
    assert main([*words, "--output", str(file)]) == 0
    shown = capsys.readouterr()
    cells = json.loads(file.read_text())["cells"]
    assert cells["decode_b1"]["value"] is cells["decode_b1"]["share"] is None
    assert cells["decode_b1"]["samples"] == [None, None]
    assert cells["e2e_b1"]["value"] == 5
    # The shortest t(1) and t(5) of any repetition are 1 each.
    assert cells["decode_b2"]["value"] is None
    assert cells["decode_b2"]["samples"] == [None, 2]
    assert shown.err.splitlines().count(NOISE) == 1
    assert NOISE.replace("decode_b1", "decode_b1:") in shown.out.splitlines()
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("decode_b1 "))
    assert (row[1], row[4]) == ("-", "-")
    assert "e2e_b1" in shown.out


def test_one_pair_of_noise_among_others_is_no_sample(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [(2.0, 1.9), (1.0, 3.0)]
    monkeypatch.setattr(latency, "_pair", lambda subject, plan, batch: pairs.pop(0))
    words = ["bench", "latency", config, *ENGINE, *LATENCY, "--batch-sizes", "1", "--repeats", "2"]
    assert main(words) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("decode_b1"))
    assert row.split()[1] == "4.444"


def test_each_cell_is_said_as_it_begins(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "throughput", config, *ENGINE, "--clients", "1,2", "--output-tokens", "2"]
    assert main(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("measuring closed")] == [
        "measuring closed_c1 ...",
        "measuring closed_c2 ...",
    ]
    # Of the sizes that were not given.
    assert "the default sizes are for a GPU; on a CPU this is quicker: --prompt-tokens 32" in said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupt_keeps_the_cells_that_are_measured(
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
) -> None:
    def pair(subject: Any, plan: Any, batch: int) -> tuple[float, float]:
        if batch == 2:
            signal.raise_signal(number)
        return 1.0, 3.0

    monkeypatch.setattr(latency, "_pair", pair)
    file = tmp_path / "report.json"
    file.write_text("of before")
    words = ["bench", "latency", config, *ENGINE, *LATENCY, "--batch-sizes", "1,2"]
    assert main([*words, "--output", str(file)]) == code
    shown = capsys.readouterr()
    assert shown.err.splitlines().count("interrupted: 3 of 5 cells measured") == 1
    assert f"what was measured is in {file}.partial" in shown.err
    assert file.read_text() == "of before"
    report = json.loads((tmp_path / "report.json.partial").read_text())
    assert list(report["cells"]) == ["ttft_4", "decode_b1", "e2e_b1"]
    assert report["interrupted"] == {"cells_measured": 3, "cells": 5}
    assert report["cells"]["decode_b1"]["roof"] > 0
    assert "decode_b1" in shown.out


@pytest.mark.parametrize(
    ("action", "module", "name", "words", "kept"),
    [
        ("throughput", throughput, "_closed_loop", ["--clients", "1,2"], ["closed_c1"]),
        ("kernels", kernels, "_decode", ["--batch-sizes", "1,2", "--steps", "2"], ["decode_b1"]),
    ],
)
def test_an_interrupt_of_the_other_actions(
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    action: str,
    module: Any,
    name: str,
    words: list[str],
    kept: list[str],
) -> None:
    monkeypatch.setattr(module, name, interrupt_after(1, getattr(module, name)))
    size = "--context-tokens" if action == "kernels" else "--prompt-tokens"
    assert main(["bench", action, config, *ENGINE, size, "4", *words, "--output", "-"]) == 130
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert list(report["steps" if action == "kernels" else "cells"]) == kept
    assert f"interrupted: 1 of {report['interrupted']['cells']} cells measured" in shown.err


def test_an_interrupt_before_the_first_cell_leaves_nothing(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(latency, "_first_token", interrupt_after(0, None))
    words = ["bench", "latency", config, *ENGINE, *LATENCY, "--batch-sizes", "1"]
    assert main([*words, "--output", str(tmp_path / "report.json")]) == 130
    shown = capsys.readouterr()
    assert shown.err.splitlines().count("interrupted: 0 of 3 cells measured") == 1
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_after_the_cells_costs_none_of_them(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """The first one; after the second nothing is reported."""
    measured, calls = ceilings.measure_ceilings, 0

    def measure(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= count:
            raise KeyboardInterrupt
        return measured(*args)

    monkeypatch.setattr(ceilings, "measure_ceilings", measure)
    words = ["bench", "latency", config, *ENGINE, *LATENCY, "--batch-sizes", "1"]
    assert main(words) == 130
    shown = capsys.readouterr()
    assert shown.err.splitlines().count("interrupted: 3 of 3 cells measured") == 1
    assert ("e2e_b1" in shown.out) == (count == 1)


def test_the_table_of_steps_has_no_gap_where_cells_would_be(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "kernels", config, *ENGINE, "--context-tokens", "4", "--batch-sizes", "1"]
    assert main([*words, "--prefill-tokens", "4", "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "\n\ndecode_b1" in shown
    assert "\n\n\n" not in shown


@pytest.mark.parametrize(("step_us", "is_noted"), [(9.0, True), (11.0, False)])
def test_a_device_that_is_busy_for_longer_than_a_step_has_a_remark(step_us: float, is_noted: bool) -> None:
    times = (KernelTime("aten::mm", "products", 1.0, 10.0),)
    profile = StepProfile(
        batch=1, tokens=1, step_us=step_us, kernels=times, traffic=None, is_decode=True
    ).as_json(1.0, {})
    remark = "the device is busy for longer than the step takes: the two are measured in different runs"
    assert profile.get("note") == (remark if is_noted else None)
