"""`vtcore check` shows what a start would do, from config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vtcore.planning
from vtcore.checkpoint.writer import write_json
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.llm import LLM


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", out)
    return out


@pytest.fixture
def config_only(full: Path, tmp_path: Path) -> Path:
    """A directory with nothing but config.json."""
    (tmp_path / "config.json").write_text((full / "config.json").read_text())
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main(["check", *map(str, argv), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_it_needs_nothing_but_config_json_and_predicts_the_real_engine(
    full: Path, config_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--num-blocks", "16", "--max-num-seqs", "3", "--dtype", "float32"]
    report = check(capsys, config_only, *flags)
    with LLM(full, num_blocks=16, max_num_seqs=3, dtype="float32") as llm:
        plan, parameters = llm.engine.loaded.plan, llm.engine.loaded.parameters
        assert report["memory"]["weight_bytes"] == parameters.num_bytes
        assert [pool["num_bytes"] for pool in report["memory"]["pools"]] == [p.num_bytes for p in plan.pools]
        assert report["memory"]["total_bytes"] == plan.total_bytes
        assert report["memory"]["max_model_len"] == plan.max_model_len
        real = json.loads(json.dumps(llm.config.values()))
    shown = {path: row["value"] for path, row in report["config"].items()}
    places = {"model.model", "frontend.served_model_name"}
    assert {k: v for k, v in shown.items() if k not in places} == (
        {k: v for k, v in real.items() if k not in places}
    )


def test_no_weight_is_read_and_none_is_drawn(
    config_only: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a tensor was asked for")

    monkeypatch.setattr(vtcore.planning.DummyFormat, "read", refuse)
    monkeypatch.setattr(vtcore.planning.SafetensorsFormat, "__init__", refuse)
    assert check(capsys, config_only)["model"]["num_parameters"] > 500_000


def test_each_value_has_the_origin_of_its_strongest_source(
    config_only: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "options.toml"
    file.write_text("max_num_seqs = 3\nnum_blocks = 9\nblock_size = 16\n")
    for name, value in (("BLOCK_SIZE", "64"), ("NUM_BLOCKS", "11"), ("SEED", "5")):
        monkeypatch.setenv(f"VTCORE_{name}", value)
    config = check(capsys, config_only, "--config", file, "--max-num-seqs", "2")["config"]
    assert config["scheduler.max_num_seqs"] == {"value": 2, "origin": "command line"}
    assert config["cache.num_blocks"] == {"value": 9, "origin": f"config file: {file}"}
    assert config["cache.block_size"] == {"value": 16, "origin": f"config file: {file}"}
    assert config["model.seed"] == {"value": 5, "origin": "environment: VTCORE_SEED"}
    assert config["model.dtype"] == {"value": "bfloat16", "origin": "checkpoint"}


def test_sampling_defaults_come_with_their_files(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    override = json.dumps({"top_k": 7})
    defaults = check(capsys, full, "--override-generation-config", override)["sampling_defaults"]
    assert defaults["top_k"] == {"value": 7, "origin": "override_generation_config"}
    assert defaults["temperature"] == {"value": 0.6, "origin": str(full / "generation_config.json")}
    assert defaults["max_tokens"] == {
        "value": 16,
        "origin": "default; in chat and on the command line the context is the limit",
    }
    assert defaults["min_tokens"] == {"value": 0, "origin": "default"}
    assert check(capsys, full, "--generation-config", "neutral")["sampling_defaults"]["temperature"] == {
        "value": 1.0,
        "origin": "default",
    }


def test_files_that_options_name_are_looked_for(
    config_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--chat-template", "--tokenizer", "--generation-config"):
        missing = tmp_path / "missing"
        assert main(["check", str(config_only), option, str(missing)]) == 2
        assert str(missing) in capsys.readouterr().err
    assert main(["check", str(config_only), "--tokenizer", str(tmp_path)]) == 2
    assert f"error[VT201]: --tokenizer: {str(tmp_path)!r} is no directory" in capsys.readouterr().err


def test_a_file_of_options_may_name_the_model(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.toml"
    file.write_text(f"model = {json.dumps(str(full))}\nnum_blocks = 16\nskip_tokenizer_init = true\n")
    assert check(capsys, "--config", file)["config"]["model.model"] == {
        "value": str(full),
        "origin": f"config file: {file}",
    }
    with LLM(config=file) as llm:
        assert llm.config.model.model == str(full)
        with pytest.raises(TypeError, match="cannot be changed"):
            llm.config.origins.clear()  # type: ignore[attr-defined]
    assert main(["check", "--json"]) == 2
    assert "error[VT201]: MODEL: no model is given" in capsys.readouterr().err


def test_what_is_off_says_why(config_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off = check(capsys, config_only)["off"]
    assert set(off) == {
        "prefix caching",
        "asynchronous scheduling",
        "jump-forward",
        "captured graphs",
    }
    assert "is recurrent" in off["prefix caching"]
    assert "one step in flight" in off["asynchronous scheduling"]


def test_flags_that_are_always_so_are_noted(config_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = check(capsys, config_only, "--trust-remote-code", "--tensor-parallel-size", "1")["notes"]
    assert len(notes) == 2
    assert any("no remote code" in note for note in notes)


def test_too_little_memory_shows_everything_and_then_refuses(
    config_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(config_only), "--num-blocks", "4000000000"]) == 2
    said = capsys.readouterr()
    assert "cache.num_blocks" in said.out
    assert "problem: num_blocks=4000000000" in said.out
    assert "error[VT230]: --num-blocks 4000000000" in said.err
    assert "the largest --num-blocks that fits is" in said.err


def test_a_model_that_nothing_serves_is_refused_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Unheard"], "model_type": "unheard"})
    assert main(["check", str(tmp_path)]) == 2
    assert "error[VT221]: no installed plugin serves" in capsys.readouterr().err


def test_flags_are_never_abbreviated(config_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(config_only), "--max-num-seq", "2"]) == 2
    assert "did you mean '--max-num-seqs'?" in capsys.readouterr().err


def test_the_text_names_arch_pools_and_what_is_off(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(full)]) == 0
    text = capsys.readouterr().out
    for part in (
        "served by arch qwen3_5_dense (vtcore-qwen3-5-dense",
        "pool full_attention",
        "pool recurrent_state",
        "prefix caching: cache.enable_prefix_caching is false",
        "temperature",
        "are those of SamplingParams",
    ):
        assert part in text
    assert "bad_words" not in text
