"""The repository's distributions: names, folders, requirements, entry points."""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import pages
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(file.parent for file in (ROOT / "plugins").glob("*/pyproject.toml"))


def project(folder: Path) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def requirements(folder: Path) -> list[Requirement]:
    table = project(folder)
    extras = table.get("optional-dependencies", {})
    return [Requirement(text) for text in sum(extras.values(), table["dependencies"])]


def test_every_plugin_folder_is_a_distribution() -> None:
    folders = [path for path in (ROOT / "plugins").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert PLUGINS
    assert sorted(folders) == PLUGINS


def test_dev_requirements_list_the_core_and_every_plugin_in_place() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    editable = [line for line in lines if line.startswith("-e ")]
    assert editable == ["-e .", *(f"-e ./plugins/{folder.name}" for folder in PLUGINS)]


def test_dev_requirements_name_triton_where_it_has_wheels() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    (triton,) = [Requirement(line) for line in lines if line.startswith("triton")]
    assert triton.marker is not None
    for machine in ("x86_64", "aarch64"):
        assert triton.marker.evaluate({"sys_platform": "linux", "platform_machine": machine})
    assert not triton.marker.evaluate({"sys_platform": "darwin", "platform_machine": "arm64"})


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda folder: folder.name)
def test_requirements_have_floors_and_no_caps(folder: Path) -> None:
    assert project(folder)["requires-python"] == ">=3.11"
    for requirement in requirements(folder):
        assert {specifier.operator for specifier in requirement.specifier} <= {">=", "!="}, requirement


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_plugin_names_follow_its_folder(folder: Path) -> None:
    packages = [path.name for path in (folder / "src").iterdir() if (path / "__init__.py").exists()]
    assert packages == [f"vtcore_{folder.name}"]
    assert project(folder)["name"] == f"vtcore-{folder.name.replace('_', '-')}"
    assert "vtcore" in {requirement.name for requirement in requirements(folder)}
    assert (folder / "README.md").is_file()
    assert (folder / "tests").is_dir()


def test_no_package_file_above_src_and_none_among_the_tests() -> None:
    above = [ROOT / "plugins", *PLUGINS, *(folder / "src" for folder in PLUGINS)]
    assert [path for path in above if (path / "__init__.py").exists()] == []
    tests = [ROOT / "tests", *(folder / "tests" for folder in PLUGINS)]
    assert [path for folder in tests for path in folder.rglob("__init__.py")] == []


def test_test_files_have_unique_names() -> None:
    tests = [ROOT / "tests", *(folder / "tests" for folder in PLUGINS)]
    names = [path.name for folder in tests for path in folder.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("folder", ["", "plugins/any/", "docs/examples/any/"])
def test_what_an_installation_from_the_tree_leaves_behind_is_ignored(folder: str, tmp_path: Path) -> None:
    litter = [f"{folder}build/lib/any/arch.py", f"{folder}src/vtcore_any.egg-info/PKG-INFO"]
    source = f"{folder}src/vtcore_any/arch.py"
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", *litter, source],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == litter
    for path in (*litter, source):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).with_name("page.md").write_text("a page")
    top = tmp_path / "docs" / "page.md"
    top.parent.mkdir(exist_ok=True)
    top.write_text("a page")
    assert "docs/page.md" in pages(tmp_path)
    assert not [page for page in pages(tmp_path) if "build" in page or "egg-info" in page]


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_installed_entry_points_are_the_declared_ones(folder: Path) -> None:
    declared = project(folder)["entry-points"]["vtcore.plugins"]
    installed = metadata.distribution(project(folder)["name"]).entry_points.select(group="vtcore.plugins")
    assert {point.name: point.value for point in installed} == declared
    assert declared == {folder.name: f"vtcore_{folder.name}.plugin"}


def test_core_command_is_installed() -> None:
    (command,) = metadata.distribution("vtcore").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("vtcore", "vtcore.cli.main:main")
    assert callable(command.load())


def test_core_is_typed_and_licensed() -> None:
    assert (ROOT / "vtcore" / "py.typed").is_file()
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in (ROOT / "LICENSE").read_text(
        "utf-8"
    )
