"""`vtcore make-checkpoint`: the form of what it writes, that it repeats bit for bit, what it refuses."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from vtcore import hookimpl
from vtcore.checkpoint.parameters import load_parameters
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.shards import INDEX_FILE
from vtcore.checkpoint.source import open_checkpoint
from vtcore.checkpoint.staged_folder import STAGING_PREFIX
from vtcore.checkpoint.writer import plan_shards
from vtcore.cli import make_checkpoint as command
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.errors import ConfigError, HostError, PluginError
from vtcore.interfaces.model_arch import ModelArch
from vtcore.interfaces.registry_entries import ArchEntry
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.tokenization.eos import resolve_eos_token_ids
from vtcore.tokenization.tokenizer import Tokenizer


@pytest.fixture(name="registry")
def fixture_registry(toy_class: type[ModelArch]) -> PluginRegistry:
    """A registry whose only architecture is the toy."""
    entry = ArchEntry(
        name="toy",
        architectures=("ToyForCausalLM",),
        implementation=f"{toy_class.__module__}:{toy_class.__name__}",
    )

    def vtcore_register_archs() -> Iterable[ArchEntry]:
        return [entry]

    module = ModuleType("toy_plugin")
    module.__dict__["VTCORE_API"] = {"archs": "0.1"}
    module.__dict__["vtcore_register_archs"] = hookimpl(vtcore_register_archs)
    return build_registry(extra=[module], entry_points=False)


def contents(directory: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in directory.iterdir()}


def test_the_checkpoint_has_the_released_form(tmp_path: Path, registry: PluginRegistry) -> None:
    count = make_checkpoint("toy", "tiny", tmp_path / "out", registry=registry)
    assert set(contents(tmp_path / "out")) == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        INDEX_FILE,
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    opened = open_checkpoint(tmp_path / "out")
    tokenizer = Tokenizer.from_directory(opened.directory)
    vocab_size = opened.hf_config["text_config"]["vocab_size"]
    assert opened.hf_config["vtcore_random_weights"] is True
    assert tokenizer.vocab_size == 512
    assert vocab_size == 576
    end_of_text, end_of_turn = tokenizer.token_id("<|endoftext|>"), tokenizer.token_id("<|im_end|>")
    assert opened.hf_config["text_config"]["eos_token_id"] == end_of_text
    assert opened.generation_config["eos_token_id"] == [end_of_turn, end_of_text]
    eos = resolve_eos_token_ids(
        opened.generation_config, opened.tokenizer_config, opened.hf_config, tokenizer.token_id
    )
    assert eos == (end_of_turn, end_of_text)
    fmt = SafetensorsFormat(opened.directory)
    assert {i.dtype for i in fmt.names().values()} == {"BF16"}
    assert {i.file for i in fmt.names().values()} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    index = json.loads((opened.directory / INDEX_FILE).read_text())
    assert index["weight_map"] == {name: info.file for name, info in sorted(fmt.names().items())}
    assert index["metadata"]["total_size"] == 2 * count


def test_what_is_written_loads_and_gives_wide_logits(tmp_path: Path, registry: PluginRegistry) -> None:
    make_checkpoint("toy", "tiny", tmp_path, registry=registry)
    opened = open_checkpoint(tmp_path)
    arch = registry.load(registry.arch_for(opened.hf_config))(opened.hf_config)
    loaded = load_parameters(arch, SafetensorsFormat(tmp_path), torch.float32, "cpu")
    assert loaded.skipped == ()
    hidden_NH = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    hidden_NH /= hidden_NH.square().mean(-1, keepdim=True).sqrt()
    assert 5 < (hidden_NH @ loaded.tensors["embed"].T).std().item() < 7


def test_the_same_seed_gives_the_same_bytes_and_another_other_weights(
    tmp_path: Path, registry: PluginRegistry
) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        make_checkpoint("toy", "tiny", tmp_path / name, seed, registry)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert {name for name in a if a[name] != c[name]} == {n for n in a if n.endswith(".safetensors")}


def test_other_sizes_get_the_larger_tokenizer(tmp_path: Path, registry: PluginRegistry) -> None:
    make_checkpoint("toy", "wide", tmp_path, registry=registry)
    tokenizer = Tokenizer.from_directory(tmp_path)
    padded = open_checkpoint(tmp_path).hf_config["text_config"]["vocab_size"]
    assert tokenizer.vocab_size > 2048
    assert padded % 64 == 0
    assert tokenizer.vocab_size < padded <= tokenizer.vocab_size + 64


def test_an_unknown_arch_or_size_or_seed_is_refused_before_anything_is_written(
    tmp_path: Path, registry: PluginRegistry
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"--arch: 'toi' is offered by no installed plugin.*installed: toy"):
        make_checkpoint("toi", "tiny", out, registry=registry)
    with pytest.raises(ConfigError, match="--size: ToyArch has sizes tiny and wide, not 'huge'"):
        make_checkpoint("toy", "huge", out, registry=registry)
    for seed in (-1, 2**63):
        with pytest.raises(ConfigError, match="--seed must be in"):
            make_checkpoint("toy", "tiny", out, seed, registry)
    assert not out.exists()


def test_other_files_are_never_overwritten_unasked(tmp_path: Path, registry: PluginRegistry) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty; give another directory or --force"):
        make_checkpoint("toy", "tiny", tmp_path, registry=registry)
    with pytest.raises(ConfigError, match="is a file"):
        make_checkpoint("toy", "tiny", tmp_path / "note.txt", registry=registry)
    assert contents(tmp_path) == {"note.txt": b"mine"}
    with pytest.raises(ConfigError, match=r"holds note\.txt"):
        make_checkpoint("toy", "tiny", tmp_path, registry=registry, force=True)
    assert contents(tmp_path) == {"note.txt": b"mine"}


def test_force_overwrites_an_earlier_random_checkpoint_but_no_real_one(
    tmp_path: Path, registry: PluginRegistry
) -> None:
    make_checkpoint("toy", "wide", tmp_path, registry=registry)
    make_checkpoint("toy", "tiny", tmp_path, registry=registry, force=True)
    assert open_checkpoint(tmp_path).hf_config["text_config"]["hidden_size"] == 16
    (tmp_path / "config.json").write_text('{"architectures": ["ToyForCausalLM"]}')
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="holds a real checkpoint"):
        make_checkpoint("toy", "tiny", tmp_path, registry=registry, force=True)
    assert contents(tmp_path) == before


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("flags", [[], ["--config-only"]])
def test_an_interrupt_leaves_nothing_behind(
    flags: list[str],
    tmp_path: Path,
    registry: PluginRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "registry_for", lambda options, environment: registry)
    monkeypatch.setattr(command, "write_json", interrupted)
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a" / "b" / "out", tmp_path / "empty"):
        argv = ["make-checkpoint", "--arch", "toy", "--size", "tiny", str(out), *flags]
        assert main(argv) == 130
        assert capsys.readouterr() == ("", "interrupted: nothing was written\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("broken", ["write_shards", "write_json"])
def test_an_older_checkpoint_stays_until_the_new_one_is_whole(
    broken: str, tmp_path: Path, registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint("toy", "tiny", tmp_path, 1, registry)
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(command, broken, interrupted)
        with pytest.raises(KeyboardInterrupt, match="nothing was written"):
            make_checkpoint("toy", "tiny", tmp_path, 2, registry, force=True)
    assert contents(tmp_path) == before
    # What a process that was killed has left goes with the next one.
    (tmp_path / f"{STAGING_PREFIX}00").mkdir()
    make_checkpoint("toy", "tiny", tmp_path, 2, registry, force=True)
    assert contents(tmp_path).keys() == before.keys()
    assert contents(tmp_path) != before


def test_an_interrupt_that_comes_too_late_says_that_all_is_written(
    tmp_path: Path, registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def renames_and_is_interrupted(source: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", renames_and_is_interrupted)
    with pytest.raises(KeyboardInterrupt, match="out is whole"):
        make_checkpoint("toy", "tiny", tmp_path / "out", registry=registry)
    assert open_checkpoint(tmp_path / "out").hf_config["vtcore_random_weights"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, registry: PluginRegistry) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match=r"^OUT: \S+/file/out cannot be written: Not a directory; "):
        make_checkpoint("toy", "tiny", tmp_path / "file" / "out", registry=registry)


def test_the_command_line_reports_errors_and_knows_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make-checkpoint", "--arch", "nope", "--size", "tiny", str(tmp_path / "out")]) == 2
    assert "--arch: 'nope' is offered by no installed plugin" in capsys.readouterr().err
    assert main(["make-checkpoint", "--sise", "tiny"]) == 2
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["make-checkpoint", "--arch", "toy", "--size", "tiny", "out", "--force"])
    assert (args.arch, args.size, args.out, args.seed, args.force) == ("toy", "tiny", Path("out"), 0, True)


def test_the_command_writes_what_the_function_writes(
    tmp_path: Path,
    registry: PluginRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "registry_for", lambda options, environment: registry)
    out = str(tmp_path / "cli")
    assert main(["make-checkpoint", "--arch", "toy", "--size", "tiny", out, "--seed", "2"]) == 0
    count = make_checkpoint("toy", "tiny", tmp_path / "direct", 2, registry)
    assert contents(tmp_path / "cli") == contents(tmp_path / "direct")
    assert f"toy tiny, {count:,} random parameters, bfloat16, seed 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sizes", "num_shards", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([10, 1, 1], 2, [1, 2]),
        ([1, 1, 10], 2, [2, 1]),
        ([5, 5, 5], 1, [3]),
        ([1, 1, 1], 3, [1, 1, 1]),
        ([0, 0, 9], 3, [1, 1, 1]),
    ],
)
def test_shards_are_consecutive_and_about_equal(
    sizes: list[int], num_shards: int, expected: list[int]
) -> None:
    plan = plan_shards({f"t{i}": size for i, size in enumerate(sizes)}, num_shards)
    assert [len(shard) for shard in plan.shards] == expected
    assert [name for shard in plan.shards for name in shard] == [f"t{i}" for i in range(len(sizes))]


@pytest.mark.parametrize(
    ("member", "fault", "said"),
    [
        (
            "checkpoint_config",
            classmethod(lambda *args: {}["sizes"]),
            "checkpoint_config('tiny', 64) failed: KeyE",
        ),
        (
            "checkpoint_config",
            classmethod(lambda *args: None),
            "checkpoint_config('tiny', 64) is None, not a map",
        ),
        ("param_rules", lambda *args: 1 // 0, "param_rules() failed: ZeroDivisionError"),
        ("random_init", lambda *args: None, "random_init("),
        (
            "random_init",
            lambda *args: {"kind": "magic"},
            "the architecture asks for an unknown random draw for ",
        ),
    ],
)
def test_an_arch_that_fails_is_named_with_its_distribution(
    member: str, fault: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = build_registry()
    registered = registry.archs["qwen3_5_dense"]
    monkeypatch.setattr(registry.load(registered), member, fault)
    with pytest.raises(PluginError) as caught:
        make_checkpoint("qwen3_5_dense", "tiny", tmp_path, registry=registry)
    assert str(caught.value).startswith(f"arch {registered}: {said}")
