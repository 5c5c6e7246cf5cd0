"""docs/examples/vtcore-fair-share works for a stranger: installed beside vtcore, its own tests pass.

The how-to that shows it shows what it really holds.
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

from vtcore.cli.make_checkpoint import make_checkpoint

EXAMPLE = ROOT / "docs/examples/vtcore-fair-share"
PAGE = "docs/howto/add-a-scheduler.md"
LONG = ("every_request_ends", "does_not_depend")
"""Rules of the kit that take most of the time, by their names."""
MOST_LINES = 200


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
    def run(*words: str, code: int = 0) -> str:
        command = [str(place / "bin" / "vtcore"), *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environ(place), check=False, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "weighted fair queueing by tenant" in run("plugins", "list")
    bad = ("--policy", "fair_share", "--policy-config", '{"output_cost": 0}')
    assert "--policy-config.output_cost: 0 is refused" in run(
        "simulate", "--workload", "poisson", *bad, code=2
    )
    make_checkpoint("qwen3_5_dense", "tiny", tmp_path / "tiny")
    words = ("generate", "tiny", "--prompt", "Hello", "--max-tokens", "4", "--ignore-eos")
    assert run(*words, "--scheduling-policy", "fair_share", "--policy-config.default_weight", "2").strip()


def parts() -> list[Block]:
    """The page's blocks that are named after a file of the example."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    return [block for block in find_blocks(PAGE, text) if "fair_share" in (block.file or "")]


def is_part(block: Block) -> bool:
    """Whether a block stands in the example's file, as it is or indented as a class's."""
    text = (EXAMPLE / str(block.file)).read_text(encoding="utf-8")
    return any(f"\n{shown}" in f"\n{text}" for shown in (block.text, textwrap.indent(block.text, "    ")))


def test_every_part_that_the_page_shows_is_in_the_example() -> None:
    assert len(parts()) >= 2
    assert [f"{block.page}:{block.line}" for block in parts() if not is_part(block)] == []


def test_a_block_that_is_no_part_is_noticed() -> None:
    block = parts()[0]
    assert not is_part(Block(block.page, block.line, block.language, f"{block.text}x", file=block.file))


def test_the_page_can_be_read_in_one_go() -> None:
    assert len((ROOT / PAGE).read_text(encoding="utf-8").splitlines()) < MOST_LINES
