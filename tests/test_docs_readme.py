"""What the documents say holds: named paths exist, the lifetime table is the loader's.

Does not: run the blocks of the pages or follow their links; test_docs_blocks.py and test_docs_links.py do.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from doc_blocks import pages

from vtcore.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / page for page in pages(ROOT)]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
EXAMPLES = sorted((ROOT / "docs/examples").glob("*/"))
TEMPLATES = ROOT / "vtcore/data/templates"
TOP = ("vtcore", "plugins", "tests", "docs", "bench", "tools", ".ci")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)


def named_paths(page: str) -> set[str]:
    """Words in backticks that name a file or folder of this repository."""
    words = {word for word in INLINE.findall(prose(page)) if re.fullmatch(r"[\w.\-/]+", word)}
    return {word for word in words if "/" in word and word.split("/")[0] in TOP}


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder as `make demo` leaves it."""
    monkeypatch.chdir(tmp_path)
    out = ".demo/qwen3_5_dense-tiny"
    assert out in text("Makefile")
    assert main(["make-checkpoint", "--arch", "qwen3_5_dense", "--size", "tiny", out]) == 0


@pytest.mark.usefixtures("demo")
def test_the_readmes_example_generates_text(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = BLOCK.findall(text("README.md"))
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {"__name__": "block of README.md"})
    shown = capsys.readouterr().out
    assert re.search(r"^The quick brown fox -> .+ \((length|stop)\)$", shown, re.MULTILINE | re.DOTALL)
    assert "Once upon a time -> " in shown


def test_the_readme_names_both_commands_first() -> None:
    first_screen = text("README.md").splitlines()[:12]
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for command in ("demo", "test"):
        assert any(line.startswith(f"make {command} ") for line in first_screen)
        assert command in targets


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_every_named_path_exists(page: str) -> None:
    # A how-to also names files in the folder that its reader writes.
    folders = [ROOT, *EXAMPLES] if page.startswith("docs/howto/") else [ROOT]
    missing = {path for path in named_paths(page) if not any((folder / path).exists() for folder in folders)}
    written = {path for path in missing if list(TEMPLATES.glob(f"*/{path}.tmpl"))}
    assert missing - written == set()


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_pages_name_enough_paths_for_the_check_to_mean_something(page: str) -> None:
    assert len(named_paths(page)) >= 20


def test_the_map_has_every_folder_of_the_core_and_every_plugin() -> None:
    folders = {f"vtcore/{file.parent.name}/" for file in ROOT.glob("vtcore/*/*.py")}
    folders |= {f"plugins/{file.parent.name}/" for file in ROOT.glob("plugins/*/pyproject.toml")}
    section = text("README.md").split("## Map")[1]
    assert folders - set(INLINE.findall(section)) == set()


def test_the_lifetime_table_has_the_loaders_steps() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", text("docs/architecture.md"), re.MULTILINE)
    steps = [
        tuple(argument.value for argument in call.args if isinstance(argument, ast.Constant))
        for call in ast.walk(ast.parse(text("vtcore/loader.py")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "lifetime.step"
    ]
    assert [(int(number), name) for number, name in rows] == sorted(steps)
    numbers = re.findall(r"^\| (\d+) \|(?: `\w+`)? \|", text("docs/architecture.md"), re.MULTILINE)
    assert [int(number) for number in numbers[:15]] == list(range(1, 16))


def test_decisions_are_numbered_without_gaps_and_have_their_four_parts() -> None:
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert [int(file.name[:4]) for file in records] == list(range(1, len(records) + 1))
    for file in records:
        content = file.read_text(encoding="utf-8")
        assert content.startswith(f"# {file.name[:4]} ")
        for part in ("Context", "Decision", "Reason", "Consequence"):
            assert f"\n**{part}.**" in content, f"{file.name} lacks {part}"


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    lines = [*project["dependencies"], *text("requirements-dev.txt").splitlines()]
    names = {match[0] for line in lines if (match := re.match(r"[\w-]+", line)) and not line.startswith("-")}
    cells = " ".join(re.findall(r"^\| ([^|]+) \|", text("docs/decisions/0004-dependencies.md"), re.MULTILINE))
    assert names - set(re.findall(r"[\w-]+", cells)) == set()
