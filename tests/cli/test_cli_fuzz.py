"""Checkpoints broken at random: whatever their small files say, an error is one sentence."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

NUM_SEEDS = 40
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 1.5, -0.5, 1e308, float("nan"), float("inf")),
    *(2**31, 2**63, 10**9, 10**30, 10**400, "", "x", "8", "\ud800"),
    *([], [1], [None], ["a"], [[]], [2**70], {}, {"a": 1}, {"full_attention": 5}, {"content": 5}),
]
FILES = (
    *("config.json",) * 5,
    *("generation_config.json", "tokenizer_config.json", "model.safetensors.index.json") * 2,
    *("model-00001-of-00002.safetensors",) * 2,
    *("tokenizer.json", "chat_template.jinja"),
)
NEW_KEYS = {
    "config.json": (
        "dtype",
        "torch_dtype",
        "quantization_config",
        "auto_map",
        "eos_token_id",
        "vision_config",
    ),
    "generation_config.json": ("repetition_penalty", "min_p", "max_new_tokens", "stop_strings"),
    "tokenizer_config.json": ("chat_template", "added_tokens_decoder", "add_bos_token", "model_max_length"),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "model"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from paths_of(part, (*path, key))


def mutated(rng: random.Random, name: str, value: Any) -> Any:
    """One or two entries with other values, other names, gone, or new."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        if name in NEW_KEYS and rng.random() < 0.3:
            value[rng.choice(NEW_KEYS[name])] = rng.choice(VALUES)
            continue
        *outer, key = rng.choice(list(paths_of(value)))
        holder = value
        for step in outer:
            holder = holder[step]
        kind = rng.random()
        if kind < 0.2:
            del holder[key]
        elif kind < 0.3 and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        else:
            holder[key] = rng.choice(VALUES)
    return value


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Cut, or with other bytes."""
    if rng.random() < 0.4:
        return raw[: rng.randrange(len(raw) + 1)]
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(changed)


def break_at_random(rng: random.Random, tiny: Path, out: Path) -> str:
    """Link every file but one, write that one broken, and return its name."""
    name = rng.choice(FILES)
    out.mkdir()
    for file in tiny.iterdir():
        if file.name != name:
            os.link(file, out / file.name)
    raw = (tiny / name).read_bytes()
    if name.endswith(".safetensors"):
        end = 8 + int.from_bytes(raw[:8], "little")
        if rng.random() < 0.7:
            header = json.dumps(mutated(rng, name, json.loads(raw[8:end]))).encode()
            raw = len(header).to_bytes(8, "little") + header + raw[end:]
        else:
            raw = damaged(rng, raw[:end]) + rng.choice((b"", raw[end:]))
    elif name.endswith(".jinja") or rng.random() < 0.2:
        raw = damaged(rng, raw)
    else:
        raw = json.dumps(mutated(rng, name, json.loads(raw))).encode()
    (out / name).write_bytes(raw)
    return name


def test_a_checkpoint_broken_at_random_is_served_or_refused_in_one_sentence(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes: set[int] = set()
    for seed in range(NUM_SEEDS):
        name = break_at_random(random.Random(seed), tiny, tmp_path / "model")
        for argv in (["check", "model"], ["generate", "model", "--prompt", "hi", "--max-tokens", "1"]):
            code = main(argv)
            out, err = capsys.readouterr()
            what = f"seed {seed}, {name}, {argv[0]}: {err}"
            assert code in (0, 2, 3), what
            assert "Traceback" not in err, what
            assert "VT400" not in err, what
            if code:
                *problems, more = err.splitlines()
                assert problems, what
                assert more.startswith("more: vtcore explain VT"), what
                assert all(line.startswith("error[VT") and len(line) < 700 for line in problems), what
                assert argv[0] == "check" or not out, what
            codes.add(code)
        shutil.rmtree(tmp_path / "model")
    assert codes >= {0, 2}, "the damage is too small or too great to tell anything"
