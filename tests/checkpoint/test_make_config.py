"""`vtcore make-checkpoint --config-only`: published shapes, and enough for dummy weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main

SIZES = {
    "0.8b": (1024, 24, 8, 2, 16, 3584, True),
    "2b": (2048, 24, 8, 2, 16, 6144, True),
    "4b": (2560, 32, 16, 4, 32, 9216, True),
    "9b": (4096, 32, 16, 4, 32, 12288, False),
    "27b": (5120, 64, 24, 4, 48, 17408, False),
}
"""Width, layers, query, key-value and GDN value heads, inner width, tied. Source: config.json of releases."""


def write(out: Path, arch: str, size: str) -> Any:
    assert main(["make-checkpoint", "--arch", arch, "--size", size, "--config-only", str(out)]) == 0
    assert [file.name for file in out.iterdir()] == ["config.json"]
    return json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("size", SIZES)
def test_the_dense_releases(tmp_path: Path, size: str) -> None:
    config = write(tmp_path / "m", "qwen3_5_dense", size)
    text = config["text_config"]
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("linear_num_value_heads", "intermediate_size")
    assert (*(text[name] for name in names), config["tie_word_embeddings"]) == SIZES[size]
    assert (text["vocab_size"], text["head_dim"], text["max_position_embeddings"]) == (248_320, 256, 262_144)


def test_the_release_with_experts(tmp_path: Path) -> None:
    text = write(tmp_path / "m", "qwen3_5_moe", "35b-a3b")["text_config"]
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    assert [text[name] for name in names] == [2048, 40, 256, 8, 512]


def test_an_unknown_size_is_refused_with_the_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    words = ["make-checkpoint", "--arch", "qwen3_5_dense", "--size", "8b", "--config-only", str(out)]
    assert main(words) == 2
    shown = capsys.readouterr().err
    for size in ("tiny", *SIZES):
        assert size in shown
    assert not out.exists()


def test_weights_of_a_release_are_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "m")
    assert main(["make-checkpoint", "--arch", "qwen3_5_dense", "--size", "9b", out]) == 2
    assert "only the config is written, by --config-only" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["qwen3_5_dense", "qwen3_5_moe"])
def test_dummy_weights_need_no_more_than_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str
) -> None:
    write(tmp_path / "m", arch, "tiny")
    capsys.readouterr()
    words = ["generate", str(tmp_path / "m"), "--load-format", "dummy", "--skip-tokenizer-init", "--json"]
    assert main([*words, "--prompt-token-ids", "1,2,3", "--max-tokens", "4", "--ignore-eos"]) == 0
    assert len(json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]) == 4
