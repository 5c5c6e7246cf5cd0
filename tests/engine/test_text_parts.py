"""What is wrong with the text side stops a start before any weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.config.layers import gather_options
from vtcore.errors import CheckpointError, ConfigError, VtcoreError
from vtcore.lifetime import LifetimeEvent
from vtcore.llm import load_engine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("text") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", out)
    return out


def cut(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_template(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{% for %}")


def hot(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"temperature": -1}')


@pytest.mark.parametrize(
    ("harm", "options", "error", "sentence"),
    [
        (lambda d: cut(d, "tokenizer.json"), {}, CheckpointError, "tokenizer.json is not a usable tokenizer"),
        (lambda d: (d / "tokenizer.json").unlink(), {}, CheckpointError, "has no tokenizer.json"),
        (no_template, {}, CheckpointError, "does not parse"),
        (hot, {}, CheckpointError, "temperature"),
        (lambda d: None, {"tokenizer": "nowhere"}, ConfigError, r"\$\.tokenizer"),
        (lambda d: None, {"chat_template": "nowhere"}, ConfigError, r"\$\.chat_template"),
        (lambda d: None, {"override_generation_config": {"n": 0}}, ConfigError, "n"),
    ],
)
def test_a_fault_of_the_text_side_is_found_in_step_4(
    harm: Callable[[Path], object],
    options: dict[str, object],
    error: type[VtcoreError],
    sentence: str,
    whole: Path,
    tmp_path: Path,
) -> None:
    directory = copytree(whole, tmp_path / "tiny")
    harm(directory)
    begun: list[int] = []

    def note(event: LifetimeEvent) -> None:
        if event.kind == "begin":
            begun.append(event.number)

    with pytest.raises(error, match=sentence):
        load_engine(gather_options({"model": str(directory), **options}), on_event=note)
    assert begun == [1, 2, 3, 4]
