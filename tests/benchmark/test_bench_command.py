"""`vtcore bench` from command line to report, on the CPU and tiny models; on a GPU only the ops differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main

ENGINE = ("--load-format", "dummy", "--device", "cpu")


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories that hold config.json and nothing else."""
    out = tmp_path_factory.mktemp("configs")
    for arch in ("qwen3_5_dense", "qwen3_5_moe"):
        words = ["make-checkpoint", "--arch", arch, "--size", "tiny", "--config-only", str(out / arch)]
        assert main(words) == 0
        assert [file.name for file in (out / arch).iterdir()] == ["config.json"]
    return out


def report_of(tmp_path: Path, *words: str) -> Any:
    file = tmp_path / "report.json"
    assert main(["bench", *words, *ENGINE, "--output", str(file)]) == 0
    return json.loads(file.read_text())


def check_origin(report: Any) -> None:
    assert report["schema"] == "vtcore.bench/1"
    assert report["machine"]["versions"].keys() >= {"vtcore", "torch", "numpy"}
    assert {"date", "commit", "version", "command"} <= report.keys()
    assert report["ceilings"]["copy_tb_per_s"] > 0
    assert report["ceilings"]["matmul_tflop_per_s"] > 0
    assert report["config"]["cache.enable_prefix_caching"]["value"] is False
    assert report["config"]["scheduler.max_num_batched_tokens"]["value"] == 8192
    assert report["compiles_after_warm_up"] == 0


@pytest.mark.parametrize("routing", ["model", "skewed"])
def test_latency_of_experts(configs: Path, tmp_path: Path, routing: str) -> None:
    report = report_of(
        tmp_path,
        "latency",
        str(configs / "qwen3_5_moe"),
        *("--prompt-tokens", "24", "--ttft-tokens", "24,40", "--output-tokens", "9"),
        *("--batch-sizes", "1,3", "--repeats", "2", "--routing", routing),
    )
    check_origin(report)
    cells = report["cells"]
    assert list(cells) == ["ttft_24", "ttft_40", "decode_b1", "e2e_b1", "decode_b3", "e2e_b3"]
    for name, cell in cells.items():
        assert len(cell["samples"]) == 2
        assert cell["roof"] > 0
        bound = cell["value"] / cell["roof"] if cell["unit"] == "tok/s" else cell["roof"] / cell["value"]
        assert cell["share"] == pytest.approx(bound, rel=1e-4), name
    assert cells["ttft_24"]["value"] == min(cells["ttft_24"]["samples"])
    assert cells["e2e_b3"]["value"] == max(cells["e2e_b3"]["samples"])
    seconds = cells["decode_b3"]["seconds"]
    assert cells["decode_b3"]["value"] == pytest.approx(
        3 * 8 / (min(seconds["9"]) - min(seconds["1"])), rel=1e-3
    )
    # Two of eight experts for each token.
    assert report["groups"]["1"]["distinct_groups"] == 2
    assert 2 <= report["groups"]["3"]["distinct_groups"] <= 6
    assert 1 <= report["groups"]["3"]["largest_group_rows"] <= 3
    assert cells["decode_b1"]["distinct_groups"] == 2
    assert report["host"]["batch"] == 3
    assert report["host"]["exposed_us_p50"] > 0
    assert report["start"]["value"] > sum(report["start"]["phases_s"].values()) * 0.5
    assert "weights" in report["start"]["phases_s"]


def test_skewed_routing_prefers_some_experts(configs: Path, tmp_path: Path) -> None:
    fullest = {}
    for routing in ("model", "skewed"):
        report = report_of(
            tmp_path,
            "latency",
            str(configs / "qwen3_5_moe" / "config.json"),
            *("--prompt-tokens", "8", "--ttft-tokens", "8", "--output-tokens", "2"),
            *("--batch-sizes", "8", "--repeats", "1", "--routing", routing),
        )
        fullest[routing] = report["groups"]["8"]["largest_group_rows"]
    assert fullest["skewed"] > 1.2 * fullest["model"]


def test_throughput_of_a_closed_loop(configs: Path, tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        "throughput",
        str(configs / "qwen3_5_dense"),
        *("--prompt-tokens", "16", "--output-tokens", "4", "--clients", "1,3", "--repeats", "2"),
    )
    check_origin(report)
    assert {name: cell["requests"] for name, cell in report["cells"].items()} == {
        "closed_c1": 4,
        "closed_c3": 6,
    }
    for cell in report["cells"].values():
        assert cell["value"] == max(cell["samples"])
        assert len(cell["samples"]) == 2


def test_where_the_time_of_a_step_goes(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(
        tmp_path,
        "kernels",
        str(configs / "qwen3_5_dense"),
        *("--context-tokens", "16", "--batch-sizes", "1,2", "--prefill-tokens", "32", "--steps", "2"),
    )
    check_origin(report)
    assert list(report["steps"]) == ["decode_b1", "decode_b2", "prefill_32"]
    assert [step["tokens"] for step in report["steps"].values()] == [1, 2, 32]
    for step in report["steps"].values():
        assert sum(one["share"] for one in step["kernels"]) == pytest.approx(1, abs=0.01)
        assert sum(one["us"] for one in step["groups"].values()) == pytest.approx(step["busy_us"], rel=0.01)
        micros = [one["us"] for one in step["kernels"]]
        assert micros == sorted(micros, reverse=True)
        assert step["groups"]["products"]["bytes"] > 500_000
        assert step["roof_us"] > 0
    assert "decode_b2:" in capsys.readouterr().out


def test_the_report_may_go_to_stdout(configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "throughput", str(configs / "qwen3_5_dense"), *ENGINE, "--output", "-"]
    words += ["--prompt-tokens", "4", "--output-tokens", "2", "--clients", "1", "--requests", "1"]
    assert main([*words, "--commit", "abc"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"] == "abc"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["latency", "--output-tokens", "1"], "--output-tokens: 1 is below 2"),
        (["latency", "--batch-sizes", "1,0"], "0 is not from 1 to 65536"),
        (["latency", "--repeats", "x"], "--repeats"),
        (
            ["throughput", "--output", "nodir/x.json"],
            "--output: the folder nodir does not exist; make it or give another",
        ),
        (
            ["latency", "--batch-sizes", "1,2", "--max-num-seqs", "1"],
            "--batch-sizes 2 is above --max-num-seqs 1, so that these requests would not run at once; lower "
            "--batch-sizes to 1, or raise --max-num-seqs to 2",
        ),
        (["throughput", "--clients", "4", "--max-num-seqs", "1"], "--clients 4 is above --max-num-seqs 1"),
        (
            ["kernels", "--batch-sizes", "4", "--max-num-seqs", "3"],
            "--batch-sizes 4 is above --max-num-seqs 3",
        ),
        (
            ["throughput", "--clients", "1,4", "--requests", "2"],
            "--clients 4 is above --requests 2, so that some would have no request; lower --clients to 2, or "
            "raise --requests to 4",
        ),
        (
            ["latency", "--prompt-tokens", "40000", "--output-tokens", "5"],
            "--prompt-tokens 40000 and --output-tokens 5 are 40005 tokens; the model takes 32768; lower "
            "--prompt-tokens to 32763\n",
        ),
        (
            ["throughput", "--prompt-tokens", "4", "--output-tokens", "32768"],
            "are 32772 tokens; the model takes 32768; lower --output-tokens to 32764\n",
        ),
        (
            ["latency", "--ttft-tokens", "8,40000"],
            "--ttft-tokens 40000 and one output token are 40001 tokens; the model takes 32768; lower "
            "--ttft-tokens to 32767\n",
        ),
        (
            ["kernels", "--context-tokens", "40000", "--batch-sizes", "1", "--steps", "2"],
            "--context-tokens 40000 and 31 decoded after them are 40031 tokens; the model takes 32768; lower "
            "--context-tokens to 32739\n",
        ),
        (["kernels", "--prefill-tokens", "32768"], "lower --prefill-tokens to 32767\n"),
        (
            ["throughput", "--prompt-tokens", "60", "--output-tokens", "5", "--num-blocks", "1"],
            "--prompt-tokens 60 and --output-tokens 5 are 65 tokens; --num-blocks 1 holds 32; lower "
            "--prompt-tokens to 27, or raise --num-blocks to",
        ),
        (
            ["throughput", "--prompt-tokens", "16", "--output-tokens", "5", "--max-model-len", "8"],
            "--prompt-tokens 16 and --output-tokens 5 are 21 tokens; --max-model-len 8 is less; lower "
            "--prompt-tokens to 3, or raise --max-model-len to 24",
        ),
        (
            ["latency", "--prompt-tokens", "16", "--output-tokens", "5", "--max-model-len", "40"],
            "the look at the host's time takes requests of 81 tokens; --max-model-len 40 is less; raise",
        ),
        (["kernels", "--steps", "0"], "0 is not from 1 to 1000"),
        (["kernels", "--routing", "even"], "--routing"),
        (["latency", "--routing", "skewed"], "--routing: qwen3_5_dense has no groups"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_loaded(
    configs: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    action, *flags = words
    code = main(["bench", action, str(configs / "qwen3_5_dense"), *ENGINE, *flags])
    shown = capsys.readouterr()
    assert code in (2, 3)
    assert sentence in shown.err
    assert "$." not in shown.err
    assert "loaded" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("words", "context"),
    [(["--max-model-len", "40"], 17), (["--max-model-len", "23"], None), (["--num-blocks", "2"], 41)],
)
def test_the_context_that_an_error_names_fits(
    configs: Path, capsys: pytest.CaptureFixture[str], words: list[str], context: int | None
) -> None:
    words = ["bench", "kernels", str(configs / "qwen3_5_dense"), *ENGINE, *words]
    words += ["--batch-sizes", "1", "--prefill-tokens", "8", "--steps", "2", "--context-tokens"]
    assert main([*words, "100"]) == 2
    said = capsys.readouterr().err
    if context is None:
        assert "lower --context-tokens, --steps and --batch-sizes, or raise --max-model-len to 123" in said
        return
    assert f"lower --context-tokens to {context}" in said
    assert main([*words, str(context + 1)]) == 2
    capsys.readouterr()
    assert main([*words, str(context)]) == 0


def test_an_option_of_a_file_is_named_with_the_file(
    configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.toml"
    file.write_text("max_num_seqs = 1\n")
    words = ["bench", "throughput", str(configs / "qwen3_5_dense"), *ENGINE, "--config", str(file)]
    assert main([*words, "--clients", "2"]) == 2
    said = capsys.readouterr().err
    assert "--clients 2 is above --max-num-seqs 1 (from config file: " in said
    assert "loaded" not in said


def test_auto_is_the_length_that_the_cells_need(configs: Path, tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        "throughput",
        str(configs / "qwen3_5_dense"),
        *("--prompt-tokens", "16", "--output-tokens", "4", "--clients", "1", "--max-model-len", "auto"),
    )
    assert report["memory"]["max_model_len"] == 24


def test_a_skewed_routing_has_no_batch_invariant_form(
    configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan of a GPU needs none."""
    words = ["bench", "latency", str(configs / "qwen3_5_moe"), "--load-format", "dummy", "--device", "cuda"]
    assert main([*words, "--routing", "skewed", "--batch-invariant"]) == 2
    shown = capsys.readouterr().err
    assert "--routing: skewed replaces sparse_moe by forms that batch_invariant does not cover" in shown
    assert "leave one of the two out" in shown


def test_requests_that_do_not_fit_together_are_no_measurement(
    configs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "throughput", str(configs / "qwen3_5_dense"), *ENGINE, "--num-blocks", "5"]
    words += ["--prompt-tokens", "60", "--output-tokens", "60", "--clients", "2", "--requests", "2"]
    assert main(words) == 2
    assert "the caches do not hold 2 requests at once" in capsys.readouterr().err
