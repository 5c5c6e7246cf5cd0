"""What the documents say holds: named paths exist, the lifetime table is the loader's, the model how-to runs.

Does not: run the blocks of the pages or follow their links; test_docs_blocks.py and test_docs_links.py do.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.loader import load_core
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.request import SamplingParams

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    file
    for pattern in ("*.md", "docs/**/*.md", "bench/*.md", "plugins/*/*.md")
    for file in ROOT.glob(pattern)
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_BLOCK = re.compile(
    r"^`([^`\n]+)`:[^`]*?(?:`[^`\n]+`[^`]*?)*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
INLINE = re.compile(r"`([^`\n]+)`")
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
    assert [path for path in sorted(named_paths(page)) if not (ROOT / path).exists()] == []


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


# The model how-to: its files are written out, made a checkpoint of, and run.


@pytest.fixture
def one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginRegistry]:
    contents = dict(FILE_BLOCK.findall(text("docs/howto/add-a-model.md")))
    assert len(contents) == 4
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    points = tomllib.loads(contents["pyproject.toml"])["project"]["entry-points"]["vtcore.plugins"]
    yield build_registry(extra=[import_module(points["one_layer"])], entry_points=False)
    for name in [name for name in sys.modules if name.startswith("vtcore_one_layer")]:
        del sys.modules[name]


def engine(model: Path, registry: PluginRegistry, budget: int | None = None) -> Engine:
    options = UserOptions(
        model=str(model), dtype="float64", block_size=4, max_num_seqs=2, max_num_batched_tokens=budget
    )
    return build_frontend(load_core(options, registry=registry))


def test_the_how_tos_model_runs_and_no_schedule_changes_its_tokens(
    tmp_path: Path, one_layer: PluginRegistry
) -> None:
    model = tmp_path / "checkpoint"
    make_checkpoint("one_layer", "tiny", model, registry=one_layer)
    assert json.loads((model / "config.json").read_text())["architectures"] == ["OneLayerForCausalLM"]
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=3, ignore_eos=True)
    prompts = ["The quick brown fox jumps over the lazy dog", "Once", "The quick brown fox jumps high"]
    seen = []
    for budget in (None, 2):
        running = engine(model, one_layer, budget)
        seen.append(running.generate([(prompt, params) for prompt in prompts]))
        again = running.generate([(prompts[0], params)])
        running.close()
        assert again[0].num_cached_tokens > 0
        assert again[0].outputs[0].token_ids == seen[-1][0].outputs[0].token_ids
    first, second = ([output.outputs[0].token_ids for output in outputs] for outputs in seen)
    assert first == second
    assert all(len(tokens) == 12 for tokens in first)
