"""A plugin's tests need vtcore, the plugin and what it declares, and run where nothing else is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import isolated_env
import plugin_tests
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDERS = isolated_env.all_folders()
PLUGINS = [folder for folder in FOLDERS if folder != isolated_env.ROOT]
IDS = [folder.name for folder in PLUGINS]


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """(top-level package, file and line) of every import in a folder's modules, in functions too."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                yield name.split(".")[0], f"{file.name}:{getattr(node, 'lineno', 0)}"


def declared(folder: Path) -> set[str]:
    """Distributions that a plugin names for itself and its tests, extras of vtcore resolved."""
    names: set[str] = set()
    project, core = isolated_env.read_project(folder), isolated_env.read_project(isolated_env.ROOT)
    test = project["optional-dependencies"][plugin_tests.TEST_EXTRA]
    for requirement in map(Requirement, [*project["dependencies"], *test]):
        names.add(canonicalize_name(requirement.name))
        if requirement.name == "vtcore":
            for extra in requirement.extras:
                texts = core["optional-dependencies"][extra]
                names |= {canonicalize_name(Requirement(text).name) for text in texts}
    return names


@pytest.mark.parametrize("folder", PLUGINS, ids=IDS)
def test_a_plugins_tests_import_what_it_declares_and_nothing_else(folder: Path) -> None:
    providers = metadata.packages_distributions()
    own = {path.name for path in (folder / "src").iterdir()} | {
        path.stem for path in (folder / "tests").rglob("*.py")
    }
    allowed = declared(folder)
    missing = []
    for package, place in imported(folder / "tests"):
        if package in sys.stdlib_module_names or package in own:
            continue
        names = {canonicalize_name(name) for name in providers.get(package, [package])}
        # In-tree distributions may be installed in place, where no list of packages is kept.
        names |= {canonicalize_name(package)}
        if not names & allowed:
            missing.append(f"{place} imports {package}")
    assert missing == []


def test_an_undeclared_import_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import os\ndef test_it():\n    from scipy import stats\n")
    assert list(imported(tmp_path)) == [("os", "test_it.py:1"), ("scipy", "test_it.py:3")]


def test_requirements_are_followed_to_their_end() -> None:
    folders, names = isolated_env.needed_by(["vtcore-qwen3-5-moe"], FOLDERS)
    assert [folder.name for folder in folders] == [isolated_env.ROOT.name, "qwen3_5_dense", "qwen3_5_moe"]
    assert {"attrs", "torch", "pluggy", "markupsafe"} <= set(names)
    assert not {"transformers", "pytest", "mypy", "ruff"} & set(names)
    _, with_tests = isolated_env.needed_by(["vtcore-qwen3-5-moe[test]"], FOLDERS)
    assert {"transformers", "pytest", "hypothesis"} <= set(with_tests)
    assert not {"mypy", "ruff"} & set(with_tests)


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("vtcore-qwen3-5-moe[tset]", "vtcore-qwen3-5-moe has no extra 'tset'; add it to its pyproject.toml"),
        ("nothing-of-this-name>=1", "nothing-of-this-name is declared and not installed for "),
    ],
)
def test_what_cannot_be_followed_is_said(requirement: str, said: str) -> None:
    with pytest.raises(isolated_env.IsolationError) as caught:
        isolated_env.needed_by([requirement], FOLDERS)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["qwen3_5_moe", "vtcore-qwen3-5-moe"])
def test_a_plugin_is_found_by_folder_and_by_distribution(name: str) -> None:
    assert plugin_tests.find_plugin(name, FOLDERS).name == "qwen3_5_moe"


@pytest.mark.parametrize("name", ["", "vtcore", "nothing"])
def test_an_unknown_plugin_is_answered_with_those_there_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plugin_tests.main([name]) == 3
    assert capsys.readouterr().err == (
        f"plugin_tests: no plugin is named {name!r}; there are {', '.join(IDS)}: make test-plugin P=NAME\n"
    )


@pytest.mark.slow
def test_a_plugins_tests_run_alone(tmp_path: Path) -> None:
    folder, place = plugin_tests.find_plugin("qwen3_5_moe", FOLDERS), tmp_path / "venv"
    python = plugin_tests.prepare(folder, place)

    def runs(code: str) -> bool:
        command = [str(python), "-P", "-c", code]
        environment = isolated_env.clean_environ(place)
        return subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0

    inside = "from pathlib import Path; assert Path({0}.__file__).is_relative_to({1!r})"
    for package in ("vtcore", "vtcore_qwen3_5_dense", "vtcore_qwen3_5_moe"):
        assert runs(f"import {package}; {inside.format(package, str(place))}")
    for package in ("vtcore_mistral", "ruff", "mypy", "xdist", "matplotlib"):
        assert not runs(f"import {package}")
    # All modules are imported to be collected; running all tests is what `make test-plugin` is for.
    assert plugin_tests.run_tests(folder, place, python, ["-q", "-k", "config"]) == 0
    # Five is pytest's code for no test: an empty run proves nothing.
    assert plugin_tests.run_tests(folder, place, python, ["-q", "-k", "nothing_of_this_name"]) == 5
