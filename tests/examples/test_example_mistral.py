"""docs/examples/vtcore-mistral works for a stranger: installed beside vtcore alone, its own tests pass.

The how-tos that show it show what it really holds.
Does not: fetch anything; see tools/plugin_tests.py.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import plugin_tests
import pytest
from doc_blocks import ROOT, Block, find_blocks
from isolated_env import clean_environ

EXAMPLE = ROOT / "docs/examples/vtcore-mistral"
PAGES = ("docs/howto/add-a-model.md", "docs/howto/add-a-kv-cache-spec.md")
LONG = ("any_schedule", "seeded_schedules", "served_many")
"""Rules of the kit that take seconds each, by their names."""
MOST_LINES = 250
"""Of a how-to; what is longer is not read to its end."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with vtcore, the example and what they declare."""
    place = tmp_path_factory.mktemp("stranger") / "venv"
    plugin_tests.prepare(EXAMPLE, place)
    return place


def run_tests(place: Path, *arguments: str) -> int:
    return plugin_tests.run_tests(EXAMPLE, place, place / "bin" / "python", ["-q", *arguments])


def test_its_own_tests_pass_with_nothing_undeclared(place: Path) -> None:
    assert run_tests(place, "-m", "not slow", "-k", f"not ({' or '.join(LONG)})") == 0


@pytest.mark.slow
def test_its_long_tests_pass_too(place: Path) -> None:
    assert run_tests(place, "-m", "slow") == 0
    assert run_tests(place, "-m", "not slow", "-k", " or ".join(LONG)) == 0


def test_the_command_line_serves_it_in_that_environment(place: Path, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [str(place / "bin" / "vtcore"), *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environ(place), check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "qwen" not in run("plugins", "list")
    run("make-checkpoint", "--arch", "mistral", "--size", "tiny", "tiny")
    assert "pool mistral_sliding_window" in run("check", "tiny")
    assert run("generate", "tiny", "--prompt", "The quick brown fox", "--max-tokens", "8", "--ignore-eos")


def parts(page: str) -> list[Block]:
    """The page's blocks that are named after a file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for block in find_blocks(page, text) if block.file is not None]


def is_part(block: Block) -> bool:
    """Whether a block stands in the example's file, as it is or indented as a method."""
    assert block.file is not None
    text = (EXAMPLE / block.file).read_text(encoding="utf-8")
    return any(f"\n{shown}" in f"\n{text}" for shown in (block.text, textwrap.indent(block.text, "    ")))


@pytest.mark.parametrize("page", PAGES)
def test_every_part_that_the_page_shows_is_in_the_example(page: str) -> None:
    shown = parts(page)
    assert len(shown) >= 8
    assert [f"{block.page}:{block.line}" for block in shown if not is_part(block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_page_can_be_read_in_one_go(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_pages_mention_every_file_that_a_plugin_like_this_has() -> None:
    named = {block.file for page in PAGES for block in parts(page)}
    sources = {file.name for file in (EXAMPLE / "src/vtcore_mistral").glob("*.py") if file.stat().st_size}
    assert {Path(str(name)).name for name in named if str(name).startswith("src/")} | {"sizes.py"} == sources


def test_a_block_that_is_no_part_is_noticed() -> None:
    block = parts(PAGES[0])[0]
    assert is_part(block)
    assert not is_part(Block(block.page, block.line, block.language, f"{block.text}x", file=block.file))
