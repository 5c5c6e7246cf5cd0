"""`vtcore simulate` from the command line: reports, plots, flags that are wrong, Ctrl-C."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.simulation.report import SCHEMA

SMALL = (
    "simulate",
    "--workload",
    "shared-prefix",
    "--requests",
    "60",
    "--rate",
    "20",
    "--tenants",
    "a=3,b=1",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulate") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", out)
    return out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a machine with more to do than cores, threads wait for each other in every step of a tiny model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def report_of(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main([*map(str, argv), "--json", "-"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_policies_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policy", "fcfs,lpm,priority"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("60 shared-prefix requests, 20/s, seed 0; a plain decoder of 32 layers")
    assert "assumed: an 8B decoder" in lines[1]
    assert lines[3].split() == ["fcfs", "lpm", "priority"]
    rows = {line[:20].strip(): line[20:].split() for line in lines[4:]}
    assert all(len(rows[name]) == 3 for name in ("TTFT p99 ms", "prefilled tokens", "fairness (Jain)"))
    assert len({len(line) for line in lines[4:]}) == 1


def test_equal_inputs_give_equal_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    for path, seed in zip(paths, ("7", "7", "8"), strict=True):
        assert main([*SMALL, "--seed", seed, "--policy", "fcfs,lpm", "--json", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    report = json.loads(paths[0].read_text())
    assert report["schema"] == SCHEMA
    assert [one["policy"] for one in report["policies"]] == ["fcfs", "lpm"]
    assert report["config"]["cache.block_size"] == 32


def test_a_written_trace_replays_to_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    for kind in ("multi-turn", "bursty"):
        flags = ("simulate", "--requests", "40", "--rate", "9", "--workload", kind)
        generated = report_of(capsys, *flags, "--write-trace", trace)
        replayed = report_of(capsys, "simulate", "--trace", trace)
        assert generated["policies"] == replayed["policies"]


def test_each_policy_gets_its_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"lpm": {}, "fcfs": {}}'
    report = report_of(capsys, *SMALL, "--policy", "fcfs,lpm", "--policy-config", config)
    assert [one["policy_config"] for one in report["policies"]] == [{}, {}]


def test_bytes_of_cache_become_blocks_by_the_decoders_shape(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--num-layers", "2", "--num-kv-heads", "1", "--head-dim", "16", "--dtype", "float32")
    report = report_of(capsys, *SMALL, *shape, "--kv-cache-memory-bytes", "4M")
    (pool,) = report["pools"]
    assert pool["unit_bytes"] == 2 * 2 * 32 * 16 * 4
    assert pool["num_units"] * pool["unit_bytes"] <= 4 * 2**20


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_measured_and_simulated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = tmp_path / "cost.json"
    small = (
        "--prompt-tokens",
        "10-40",
        "--output-tokens",
        "2-6",
        "--requests",
        "20",
        "--workload",
        "poisson",
    )
    engine = ("--max-num-seqs", "2", "--num-blocks", "8", "--block-size", "8")
    flags = ("simulate", model, *small, *engine)
    report = report_of(capsys, *flags, "--measure", "--dtype", "float32", "--write-cost", cost)
    assert report["simulated"].startswith(f"{model}, arch qwen3_5_dense")
    assert report["cost_model"]["source"].startswith("measured: ")
    assert report["cost_model"]["fixed_s"] + report["cost_model"]["per_prefill_token_s"] > 0
    again = report_of(capsys, *flags, "--cost-file", cost)
    assert again["policies"] == report["policies"]


def test_given_step_times_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    zero = '{"per_prefill_token_s": 0, "per_decode_row_s": 0, "per_context_token_s": 0}'
    report = report_of(capsys, *SMALL, "--cost", zero, "--cost.fixed_s", "0.25")
    (policy,) = report["policies"]
    assert policy["busy_s"] == pytest.approx(0.25 * policy["num_steps"])
    assert report["cost_model"]["source"] == "as given"


def test_a_plot_is_a_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main([*SMALL, "--policy", "fcfs,lpm", "--plot", str(tmp_path / "plot.png")]) == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtcore.simulation.plot.find_spec", lambda name: None)
    assert main([*SMALL, "--plot", str(tmp_path / "plot.png")]) == 3
    said = capsys.readouterr()
    assert "error[VT301]: --plot needs matplotlib, which is not installed; " in said.err
    assert "vtcore[plot]" in said.err
    assert said.out == ""
    assert importlib.util.find_spec("vtcore") is not None


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        ((), 2, "give either --trace FILE or --workload KIND"),
        (("--trace", "t", "--workload", "poisson"), 2, "give either --trace FILE or --workload KIND"),
        (("--trace", "absent"), 2, "--trace: absent cannot be read: No such file"),
        (("--trace", "t", "--rate", "3"), 2, "--rate goes with --workload, not with --trace"),
        (("--workload", "poison"), 2, "invalid choice: 'poison'"),
        (("--workload", "poisson", "--turns", "3"), 2, "--turns goes with --workload multi-turn only"),
        (("--workload", "poisson", "--rate", "0"), 2, "--rate: '0' is no number from 1e-09"),
        (("--workload", "poisson", "--requests", "1.5"), 2, "--requests: '1.5' is not an integer"),
        (("--workload", "poisson", "--prompt-tokens", "9-3"), 2, "--prompt-tokens: '9-3' has MIN above MAX"),
        (
            ("--workload", "poisson", "--prompt-tokens", "9:x"),
            2,
            "--prompt-tokens: 'x' is no number from 0 to 4",
        ),
        (("--workload", "poisson", "--tenants", "a"), 2, "--tenants: 'a' is no NAME=NUMBER"),
        (("--workload", "poisson", "--priorities", "a=1"), 2, "--priorities: 'a' is not an integer"),
        (("--workload", "poisson", "--tenant-weights", "a=1"), 2, "no request is of tenant 'a'"),
        (("--workload", "poisson", "--policy", "fcsf"), 2, "did you mean 'fcfs'"),
        (
            ("--workload", "poisson", "--policy", "fcfs,nosuch"),
            2,
            "error[VT201]: --policy: 'nosuch' is offered",
        ),
        (("--workload", "poisson", "--plot", "out.pdf"), 2, "--plot: out.pdf does not end in .png"),
        (("--workload", "poisson", "--write-cost", "no/c"), 3, "--write-cost: no/c cannot be written"),
        (("--workload", "poisson", "--json", "."), 3, "--json: . cannot be written: Is a directory"),
        (("--workload", "poisson", "--policy", "fcfs,,"), 2, "--policy: 'fcfs,,' has an empty"),
        (("--workload", "poisson", "--policy", "fcfs", "--policy-config", '{"x": 1}'), 2, "x"),
        (
            ("--workload", "poisson", "--policy", "fcfs,lpm", "--policy-config", '{"x": {}}'),
            2,
            "--policy-config.x: no policy of the comparison has this name; for several policies write",
        ),
        (("--workload", "poisson", "--scheduling-policy", "lpm"), 2, "--policy names the policies"),
        (("--workload", "poisson", "--tokenizer", "x"), 2, "--tokenizer plays no part in a simulation"),
        (("--workload", "poisson", "--max-model-len", "600"), 2, "max_model_len is 600; shorten one"),
        (("--workload", "poisson", "--cost", "{"), 2, "--cost: '{' is not a JSON object"),
        (("--workload", "poisson", "--cost.fixed_s", "-1"), 2, "--cost.fixed_s: -1.0 is below 0"),
        (("--workload", "poisson", "--cost-file", "absent"), 2, "--cost-file: absent cannot be read"),
        (("--workload", "poisson", "--measure"), 2, "--measure needs a MODEL"),
        (("--workload", "poisson", "--num-layers", "0"), 2, "--num-layers: 0 is below 1; raise it"),
        (("--workload", "poisson", "--depth", "3"), 2, "invalid choice: 3"),
        (("--workload", "poisson", "--write-trace", "no/t"), 3, "--write-trace: no/t cannot be written"),
        (
            ("--workload", "poisson", "--requests", "9000000", "--json", "no/t"),
            3,
            "--json: no/t cannot be written",
        ),
        (("./absent", "--workload", "poisson"), 2, "./absent"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    argv: tuple[str, ...],
    code: int,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *argv]) == code
    errors = capsys.readouterr().err
    assert part in errors
    assert "Traceback" not in errors
    assert "VT4" not in errors


def test_a_wrong_line_of_the_trace_is_an_error_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 0}\n')
    assert main(["simulate", "--trace", str(tmp_path / "t.jsonl")]) == 2
    assert "t.jsonl:1: output_tokens=0 is below 1" in capsys.readouterr().err


def test_priorities_have_rows_and_figures_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("simulate", "--workload", "poisson", "--requests", "60", "--rate", "40", "--max-num-seqs", "4")
    wanted = (*flags, "--priorities", "10=1,5=3", "--policy", "fcfs,priority")
    fcfs, own = report_of(capsys, *wanted)["policies"]
    assert list(own["priorities"]) == ["5", "10"]
    assert sum(one["num_requests"] for one in own["priorities"].values()) == 60
    assert own["priorities"]["5"]["mean_ttft_s"] < own["priorities"]["10"]["mean_ttft_s"]
    assert own["priorities"] != fcfs["priorities"]
    assert main([*wanted]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "TTFT p90 of priority 10 ms" in line)
    seconds = [one["priorities"]["10"]["p90_ttft_s"] for one in (fcfs, own)]
    assert row.split()[-2:] == [f"{1000 * value:,.1f}" for value in seconds]
    assert main([*flags]) == 0
    assert "of priority" not in capsys.readouterr().out


def test_a_trace_comes_through_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = b'{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 2}\n'
    (tmp_path / "t.jsonl").write_bytes(good)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(good)))
    piped = report_of(capsys, "simulate", "--trace", "-")
    assert piped["trace"]["about"] == "1 requests of stdin"
    assert piped["policies"] == report_of(capsys, "simulate", "--trace", tmp_path / "t.jsonl")["policies"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(good + b"{")))
    assert main(["simulate", "--trace", "-"]) == 2
    assert "stdin:2: it is no request" in capsys.readouterr().err


def test_the_shape_of_a_model_is_its_own(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(model), "--workload", "poisson", "--head-dim", "8"]) == 2
    assert "--head-dim is for a simulation without MODEL" in capsys.readouterr().err


def test_ctrl_c_ends_it_at_once_without_a_report(tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    argv = [
        "--workload",
        "poisson",
        "--requests",
        "50000",
        "--write-trace",
        str(trace),
        "--json",
        str(report),
    ]
    command = [sys.executable, "-m", "vtcore.cli.main", "simulate", *argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (trace.exists() and trace.read_bytes().count(b"\n") == 50000):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted while fcfs ran; no report is written" in errors
    assert "Traceback" not in errors
    assert out == ""
    assert not report.exists()
