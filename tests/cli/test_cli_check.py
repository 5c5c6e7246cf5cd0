"""`vtcore check` shows what a start would do, from config.json alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore.checkpoint.dummy import DummyFormat
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.writer import write_json
from vtcore.cli import check as cli_check
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.errors import DeviceError
from vtcore.host.gpu_memory import GpuMemory
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

    monkeypatch.setattr(DummyFormat, "read", refuse)
    monkeypatch.setattr(SafetensorsFormat, "__init__", refuse)
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
    assert (
        "; --enable-prefix-caching turns it on, with 32 state checkpoints of 1.6 MiB together"
        in (off["prefix caching"])
    )
    assert "it computes on the host's own cores" in off["asynchronous scheduling"]


def test_state_checkpoints_take_what_was_foretold_once_they_are_on(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--num-blocks", "16", "--max-num-seqs", "3")
    off = check(capsys, full, *flags)
    assert off["prefix_caching"]["is_on"] is False
    assert off["prefix_caching"]["num_state_checkpoints"] == 12
    on = check(capsys, full, *flags, "--enable-prefix-caching")
    assert on["prefix_caching"] == {**off["prefix_caching"], "is_on": True}
    assert "prefix caching" not in on["off"]
    grown = on["memory"]["total_bytes"] - off["memory"]["total_bytes"]
    assert grown == on["prefix_caching"]["state_checkpoint_bytes"] > 0
    assert [pool["num_checkpoints"] for pool in on["memory"]["pools"]] == [0, 12]
    with LLM(full, num_blocks=16, max_num_seqs=3, enable_prefix_caching=True) as llm:
        plan = llm.engine.loaded.plan
        assert plan.checkpoint_bytes == grown
        assert plan.grid == on["prefix_caching"]["grid"]
    assert main(["check", str(full), *flags, "--enable-prefix-caching", "--num-state-checkpoints", "5"]) == 0
    text = capsys.readouterr().out
    assert f"of the pool above: 5, on a grid of {plan.grid} tokens" in text


def test_the_interval_of_state_checkpoints_is_shown_as_the_grid_lets_it_be(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--enable-prefix-caching", "--state-checkpoint-interval")
    report = check(capsys, full, *flags, "100")
    grid = report["prefix_caching"]["grid"]
    interval = -(-100 // grid) * grid
    assert interval > 100
    assert report["prefix_caching"]["state_checkpoint_interval"] == interval
    assert report["notes"] == [
        f"state_checkpoint_interval 100 is rounded up to the grid of {grid}: {interval}"
    ]
    assert check(capsys, full, *flags, grid)["notes"] == []
    [note] = check(capsys, full, *flags, 2**30)["notes"]
    assert "no prompt has regular state checkpoints" in note
    assert check(capsys, full, "--enable-prefix-caching", "--max-model-len", "100")["notes"] == []


def test_prefix_caching_that_can_never_hit_is_refused(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = check(capsys, full, "--enable-prefix-caching")["prefix_caching"]["grid"]
    # The longest prompt leaves one token for the output, and a hit one of the prompt to compute.
    report = check(capsys, full, "--enable-prefix-caching", "--max-model-len", grid + 2)
    assert report["prefix_caching"]["is_on"]
    assert main(["check", str(full), "--enable-prefix-caching", "--max-model-len", str(grid + 1)]) == 2
    shown = capsys.readouterr().err
    assert f"prefixes are kept every {grid} tokens (block_size 32), and a prompt has at most {grid}" in shown
    assert f"(max_model_len {grid + 1}); raise --max-model-len to {grid + 2}, or go without" in shown
    too_large = ("--enable-prefix-caching", "--block-size", "256", "--max-model-len", "200")
    assert main(["check", str(full), *too_large]) == 2
    assert "; lower --block-size, raise --max-model-len to 258, or go without" in capsys.readouterr().err
    check(capsys, full, "--max-model-len", grid)


def test_a_hash_seed_that_nothing_uses_is_refused_but_a_variable_is_left_alone(
    full: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", str(full), "--prefix-caching-hash-seed", "abc"]) == 2
    assert "--prefix-caching-hash-seed: 'abc' would have no effect" in capsys.readouterr().err
    check(capsys, full, "--prefix-caching-hash-seed", "abc", "--enable-prefix-caching")
    monkeypatch.setenv("VTCORE_PREFIX_CACHING_HASH_SEED", "abc")
    check(capsys, full)


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


def test_a_policy_that_misses_the_prefix_cache_is_warned_of_as_the_engine_does(
    full: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lpm = ("--scheduling-policy", "lpm")
    [warning] = check(capsys, full, *lpm)["warnings"]
    assert "LpmPolicy orders by what the prefix cache holds, and prefix caching is off" in warning
    with LLM(full, scheduling_policy="lpm"):
        assert warning in caplog.messages
    assert main(["check", str(full), *lpm]) == 0
    assert f"\nwarning: {warning}\n" in capsys.readouterr().out
    assert check(capsys, full, *lpm, "--enable-prefix-caching")["warnings"] == []
    assert check(capsys, full)["warnings"] == []


def test_sizes_stand_below_one_another_however_long_a_kind_is(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(capsys, full)
    report["memory"]["pools"][0]["kinds"] = ["a_kind_whose_name_is_far_longer_than_any_column"]
    cli_check._print(report)
    text = capsys.readouterr().out
    lines = text[text.index("memory (") : text.index("sampling defaults")].splitlines()[1:]
    ends = {re.search(r"\d (B|[KMG]iB)(?=  |$)", line).end() for line in lines}  # type: ignore[union-attr]
    assert len(lines) == 5
    assert len(ends) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_here_is_planned_for_and_its_memory_is_said_to_be_unknown(
    config_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for device in ("cuda", "cuda:1"):
        report = check(capsys, config_only, "--device", device)
        config, memory = report["config"], report["memory"]
        assert config["model.device"] == {"value": device, "origin": "command line"}
        assert config["scheduler.max_num_seqs"] == {"value": 256, "origin": f"device: {device}"}
        assert config["cache.gpu_memory_utilization"]["value"] == 0.92
        assert config["cache.num_blocks"]["value"] is None
        assert not {"asynchronous scheduling", "captured graphs"} & set(report["off"])
        # One request of the longest length fits; nobody knows how many more.
        length = config["model.max_model_len"]["value"]
        assert memory["num_blocks"] == -(-length // config["cache.block_size"]["value"])
        assert memory["max_model_len"] == length
        assert (memory["available_bytes"], memory["device"]) == (None, device)
        assert report["problems"] == []
        assert report["notes"] == [
            f"the memory of device {device} is unknown, since it is not seen here; the engine will fill "
            f"gpu_memory_utilization 0.92 of it, what is shown holds one request of {length} tokens"
        ]
    [note] = check(capsys, config_only, "--device", "cuda", "--num-blocks", "16")["notes"]
    assert note == "the memory of device cuda is unknown, since it is not seen here"
    assert main(["check", str(config_only), "--device", "cuda"]) == 0
    text = capsys.readouterr().out
    assert "of what cuda has, which is unknown here" in text
    assert "note: the memory of device cuda is unknown" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_here_starts_no_engine(full: Path) -> None:
    with pytest.raises(DeviceError, match=r"device 'cuda': no NVIDIA GPU is here; .* or choose device"):
        LLM(full, device="cuda")


def test_the_memory_of_a_gpu_sizes_the_pools_or_is_a_problem(
    config_only: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_memory(total: int, free: int) -> None:
        monkeypatch.setattr("vtcore.planning.read_gpu_memory", lambda device: GpuMemory(total, free))

    with_memory(2**30, 2**29)
    flags = ("--device", "cuda", "--max-num-seqs", "4")
    memory = check(capsys, config_only, *flags)["memory"]
    assert memory["available_bytes"] == int(0.92 * 2**30) - 2**29
    assert 0.9 * memory["available_bytes"] < memory["total_bytes"] <= memory["available_bytes"]
    assert check(capsys, config_only, *flags)["notes"] == []
    half = check(capsys, config_only, *flags, "--gpu-memory-utilization", "0.7")["memory"]
    assert half["num_blocks"] < memory["num_blocks"] / 2
    with_memory(2**30, 2**28)
    assert main(["check", str(config_only), *flags, "--gpu-memory-utilization", "0.7", "--json"]) == 2
    said = capsys.readouterr()
    assert "error[VT230]: --gpu-memory-utilization 0.7 of cuda leaves 0 bytes" in said.err
    report = json.loads(said.out)
    assert report["memory"]["available_bytes"] == 0
    assert report["memory"]["max_model_len"] == report["config"]["model.max_model_len"]["value"]
    assert len(report["problems"]) == 1


def test_batch_invariance_shows_in_budget_and_grid(
    config_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--device", "cuda", "--num-blocks", "64", "--max-num-seqs", "4", "--block-size", "16")
    budget = ("--max-num-batched-tokens", "8", "--enable-prefix-caching", "--batch-invariant")
    report = check(capsys, config_only, *flags, *budget)
    assert report["config"]["model.batch_invariant"] == {"value": True, "origin": "command line"}
    assert report["config"]["scheduler.max_num_batched_tokens"] == {
        "value": 67,
        "origin": "command line: 8 raised to max_num_seqs + 63, so that none starves",
    }
    assert report["prefix_caching"]["grid"] % 64 == 0
    assert main(["check", str(config_only), "--batch-invariant"]) == 2
    assert "--batch-invariant: true is not served on device 'cpu'" in capsys.readouterr().err


def test_op_overrides_are_checked_by_name(config_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("--op-overrides.rms_norm", "naive", "--op-overrides.gated_delta_net", "a.b:c")
    config = check(capsys, config_only, *overrides)["config"]
    assert config["model.op_overrides"]["value"] == {"rms_norm": "naive", "gated_delta_net": "a.b:c"}
    assert main(["check", str(config_only), "--op-overrides", '{"rms_nrom": "naive", "rope": "fast"}']) == 2
    said = capsys.readouterr().err
    assert "--op-overrides.rms_nrom: no such op; did you mean 'rms_norm'?" in said
    assert "--op-overrides.rope: no implementation 'fast' serves it; choose naive, or give" in said
    assert main(["check", str(config_only), "--device", "cuda", "--op-overrides.rms_norm", "cuda"]) == 0
