"""Every fenced block of every page runs as it stands, page by page and in order, or says why it does not.

Does not: check links and prose; test_docs_links.py and test_docs_readme.py do.
"""

from __future__ import annotations
import __future__

import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_blocks import ROOT, Block, Command, find_blocks, pages, split_commands

from vtcore.cli.explain import read_explanations
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.config.layers import gather_options

PARSERS: dict[str, Callable[[str], Any]] = {
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
}
LANGUAGES = {"python", "sh", "text", *PARSERS}
OPTION_FILES = ("toml", "yaml", "json")

MARKS: dict[str, int] = {"README.md": 1, "docs/benchmarking.md": 2, "docs/quickstart.md": 2}
"""How many blocks of each page do not run, or are not checked as options. One more is a decision: change the
number together with the page."""

NAMES_OF_THE_CHECKPOINT = ("MODEL", ".demo/qwen3_5_dense-tiny")
"""What pages call a checkpoint that is already there."""

SHELL = re.compile(r"[|&;<>$`*?(]")
OWN_PROCESS = re.compile(r"(TRITON_INTERPRET|PYTHONPATH)=")
"""Begins a command whose variables Python or Triton read when they start."""


def blocks_of(page: str) -> list[Block]:
    return find_blocks(page, (ROOT / page).read_text(encoding="utf-8"))


ALL_BLOCKS = [block for page in pages() for block in blocks_of(page)]
PAGES = sorted({block.page for block in ALL_BLOCKS})


def place(block: Block) -> str:
    return f"{block.page}:{block.line}"


class Reader:
    """Someone who reads one page from the top, in an empty folder, and does what it says."""

    def __init__(self, page: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.page, self.folder, self.patch = page, folder, patch
        self.site = folder / ".site"
        tree = re.search(
            r"^    ([\w-]+)/\n(?:      .*\n)+", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
        )
        self.tree = tree[1] if tree else "."

    def follow(self, block: Block) -> None:
        """Write, run or parse one block."""
        if block.mark == "not run":
            return
        if block.file is not None:
            file = self.folder / self.tree / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        if block.language in PARSERS:
            data = PARSERS[block.language](block.text)
            if block.language in OPTION_FILES and not block.mark and "project" not in data:
                options = self.folder / f"options.{block.language}"
                options.write_text(block.text, encoding="utf-8")
                gather_options({}, config_file=options)
        elif block.language == "sh":
            for command in split_commands(block.text):
                code = self.run(command)
                assert code == command.exit_code, f"{place(block)}: {command.text!r} gave exit code {code}"
        elif block.language == "text":
            # The only text that pages show by itself is an error's.
            message = re.fullmatch(r"error\[(VT\d{3})\]: .+\n", block.text)
            assert message is not None, f"{place(block)}: a text that nothing checks"
            assert message[1] in read_explanations()
        elif block.file is not None:
            compile(block.text, block.file, "exec")
        else:
            self.run_python(block)

    def run_python(self, block: Block) -> None:
        """Each block by itself, as someone would paste it; its tests too."""
        # Signatures quoted in a page name types that the page does not import.
        flags = __future__.annotations.compiler_flag
        names: dict[str, Any] = {"__name__": "block"}
        exec(compile("\n" * block.line + block.text, block.page, "exec", flags=flags), names)
        for name, value in list(names.items()):
            if name.startswith("test_"):
                value()
            elif name.startswith("Test"):
                for method in dir(value):
                    if method.startswith("test_"):
                        getattr(value(), method)()

    def run(self, command: Command) -> int:
        """One command: in this process where that is the same, for each start of torch takes seconds."""
        text = command.text
        if (target := re.fullmatch(r"cat > (\S+)", text)) and command.stdin is not None:
            Path(target[1]).write_text(command.stdin, encoding="utf-8")
            return 0
        if install := re.fullmatch(r"python -m pip install (\./\S+)", text):
            return self.install(install[1])
        if entered := re.fullmatch(r"mkdir -p (\w+) && cd \1", text):
            self.folder /= entered[1]
            self.folder.mkdir(exist_ok=True)
            self.patch.chdir(self.folder)
            return 0
        if text.startswith("TRITON_INTERPRET=") and find_spec("triton") is None:
            # It has no wheels for this system; where it has, a CI run without it fails.
            return command.exit_code
        if SHELL.search(text) is None and OWN_PROCESS.match(text) is None:
            words = shlex.split(text)
            if words[0] == "export":
                self.patch.setenv(*words[1].split("=", 1))
                return 0
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "stdin", io.StringIO(command.stdin or ""))
                while re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    patch.setenv(*words.pop(0).split("=", 1))
                if words[0] == "vtcore":
                    return self.call(words[1:])
                if words[0] == "python" and len(words) == 2:
                    runpy.run_path(words[1], run_name="__main__")
                    return 0
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(self.site)}
        environment["TRITON_CACHE_DIR"] = str(self.folder / ".triton")
        shell = ["sh", "-c", text]
        return subprocess.run(
            shell, input=command.stdin or "", env=environment, text=True, check=False
        ).returncode

    def call(self, words: list[str]) -> int:
        """`vtcore` with these words."""
        try:
            return main(words)
        except SystemExit as end:
            return int(end.code or 0)

    def install(self, project: str) -> int:
        """Install a project as pip would, but without an index and only for this page."""
        flags = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(self.site), project]
        code = subprocess.run(command, check=False).returncode
        self.patch.syspath_prepend(str(self.site))
        return code


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoint") / "tiny"
    make_checkpoint("qwen3_5_dense", "tiny", out)
    return out


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the checkpoint that pages take for granted, and nothing else."""
    for name in NAMES_OF_THE_CHECKPOINT:
        link = tmp_path / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    # Pages show a machine without a GPU, whatever this one has.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    before = set(sys.modules)
    yield tmp_path
    # What a page installed is gone afterwards.
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs_in_order(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(page, folder, monkeypatch)
    for block in blocks_of(page):
        assert block.language in LANGUAGES, (
            f"{place(block)}: {block.language!r} is no language that is checked"
        )
        reader.follow(block)


def test_as_many_blocks_are_marked_as_were_agreed() -> None:
    assert dict(Counter(block.page for block in ALL_BLOCKS if block.mark)) == MARKS


def test_every_mark_gives_a_reason() -> None:
    assert [place(block) for block in ALL_BLOCKS if block.mark and len(block.reason.split()) < 3] == []


def test_no_comment_looks_like_a_mark_without_being_one() -> None:
    for page in pages():
        comments = re.findall(r"<!-- *(?:not|only)\b", (ROOT / page).read_text(encoding="utf-8"))
        assert len(comments) == sum(bool(block.mark) for block in blocks_of(page)), page


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert False\n```",
        "```python\ndef test_it():\n    assert False\n```",
        "```python\nclass TestIt:\n    def test_it(self):\n        assert False\n```",
        "```sh\nvtcore generate\n```",
        "```sh\nvtcore --version # exit 2\n```",
        "```sh\ntest -f absent && true\n```",
        "```toml\nmax_num_seqs = 0\n```",
        "```yaml\nmax_num_seq: 4\n```",
        "```json\n{'a': 1}\n```",
        "```jsonl\n{}\nx\n```",
        "```text\nhello\n```",
        "```text\nerror[VT299]: no such code\n```",
        "`a.py`: a file.\n\n```python\ndef\n```",
    ],
)
def test_a_block_that_is_wrong_is_noticed(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = find_blocks("README.md", text)
    with pytest.raises(Exception):  # noqa: B017, PT011  # each language has an error of its own
        Reader("README.md", folder, monkeypatch).follow(block)


def test_blocks_and_commands_are_found_as_written() -> None:
    text = (
        "`a/b.toml`: a file\nof two lines.\n\n```toml\nx = 1\n```\n\n<!-- not run: needs the moon -->\n\n"
        "```sh\n# why\ncat > f <<'EOF'\nhello\nEOF\nvtcore a \\\n  b  # exit 2\n```\n"
    )
    file, shell = find_blocks("page.md", text)
    assert (file.file, file.line, file.text) == ("a/b.toml", 4, "x = 1\n")
    assert (shell.mark, shell.reason, shell.file) == ("not run", "needs the moon", None)
    assert list(split_commands(shell.text)) == [
        Command("cat > f", "hello\n"),
        Command("vtcore a    b", exit_code=2),
    ]
    with pytest.raises(ValueError, match=r"page\.md:1: the block is not closed"):
        find_blocks("page.md", "```sh\n")
