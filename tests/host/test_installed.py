"""Which plugins are announced, read without parsing whole metadata."""

from __future__ import annotations

import email.parser
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from vtcore.host.installed import announced_plugins, name_and_version, pip_command

BENCH = Path(__file__).parents[2] / "bench" / "plugins.py"


def test_the_head_of_the_metadata_says_the_same_as_all_of_it() -> None:
    known = list(distributions())
    assert known
    for distribution in known:
        read = name_and_version(distribution)
        assert read == (distribution.metadata["Name"], distribution.metadata["Version"])


def test_a_description_is_not_taken_for_the_head(install: Callable[..., Path]) -> None:
    install("head-dist")
    [info] = [info for _, info in announced_plugins()[0] if info.plugin == "head-dist"]
    assert (info.distribution, info.version) == ("head-dist", "1.0")


@pytest.mark.parametrize("text", ["", "Metadata-Version: 2.1\n", "Name: half\n", "Version: 1.0\n"])
def test_half_removed_metadata_is_no_plugin(install: Callable[..., Path], text: str) -> None:
    root = install("half-dist")
    [file] = root.glob("*.dist-info/METADATA")
    file.write_text(text)
    found, problems = announced_plugins()
    assert "half-dist" not in {info.plugin for _, info in found}
    assert "half-dist" not in {problem.plugin for problem in problems}


def test_metadata_without_a_file_is_no_plugin(install: Callable[..., Path]) -> None:
    root = install("bare-dist")
    [file] = root.glob("*.dist-info/METADATA")
    file.unlink()
    assert "bare-dist" not in {info.plugin for _, info in announced_plugins()[0]}


def test_stale_duplicates_name_both_folders_and_the_remedy(install: Callable[..., Path]) -> None:
    old = install("twice-dist", version="0.9")
    new = install("twice-dist", version="1.0")
    [problem] = [p for p in announced_plugins()[1] if p.distribution == "twice-dist"]
    assert f"1.0 (used) in {new} and 0.9 in {old}" in problem.message
    assert problem.error is None
    assert f"{pip_command('uninstall', '-y', 'twice-dist')}, until pip finds none" in problem.remedy


def test_finding_plugins_parses_no_whole_metadata(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("some-dist")

    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise AssertionError("whole metadata was parsed")

    monkeypatch.setattr(email.parser.Parser, "parse", refuse)
    with pytest.raises(AssertionError, match="was parsed"):
        assert next(iter(distributions())).metadata
    assert "some-dist" in {info.plugin for _, info in announced_plugins()[0]}


def test_entry_points_of_others_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    original = Distribution.entry_points.fget  # type: ignore[attr-defined]

    def counted(self: Distribution) -> object:
        parsed.append(self.read_text("entry_points.txt") or "")
        return original(self)

    monkeypatch.setattr(Distribution, "entry_points", property(counted))
    announced_plugins()
    assert parsed
    assert all("vtcore.plugins" in text for text in parsed)


def test_a_hundred_plugins_resolve_and_import_no_implementation() -> None:
    """How long it takes is bench/plugins.py's to say; this runs it."""
    command = [sys.executable, str(BENCH), "--plugins", "100", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["archs_found"] == 100
    assert figures["implementations_imported"] == 0
    assert 0 < figures["min_ms"] <= figures["max_ms"]


@pytest.mark.parametrize("text", [b"[vtcore.plugins]\nno equals sign\n", b"[other]\n\xff = a:b\n"])
def test_entry_points_that_cannot_be_read_are_one_problem(install: Callable[..., Path], text: bytes) -> None:
    root = install("torn-dist")
    install("sound-dist")
    [file] = root.glob("*.dist-info/entry_points.txt")
    file.write_bytes(text)
    found, problems = announced_plugins()
    assert "sound-dist" in {info.plugin for _, info in found}
    [problem] = [problem for problem in problems if str(file.parent) in problem.message]
    assert "cannot be read" in problem.message
    assert str(file.parent) in problem.remedy


def test_a_name_that_is_no_text_is_one_problem(install: Callable[..., Path]) -> None:
    root = install("latin-dist", metadata="Author: M\u00fcller\n")
    [file] = root.glob("*.dist-info/METADATA")
    file.write_bytes(file.read_text(encoding="utf-8").encode("latin-1"))
    [problem] = [p for p in announced_plugins()[1] if str(file.parent) in p.message]
    assert "UnicodeDecodeError" in problem.message
