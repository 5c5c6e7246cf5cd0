"""docs/compatibility.md tells the truth about names, floors, devices and dtypes, as far as code can tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from attrs import fields
from packaging.requirements import Requirement

from vtcore import LLM
from vtcore.config.options import DEVICES, DTYPES
from vtcore.host.verdicts import TESTED_TRITON, TRITONS_TORCH, triton_check
from vtcore.outputs import CompletionOutput, RequestOutput
from vtcore.plugins import build_registry

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")


def rows(text: str = TEXT) -> dict[str, str]:
    """First cell -> the rest of its line, for each table row."""
    return dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", text, re.MULTILINE))


def test_names_said_to_be_the_same_exist_and_absent_ones_do_not() -> None:
    same, absent = TEXT.split("\nAbsent: ")
    named = set(re.findall(r"^\| `LLM\.(\w+)`", same, re.MULTILINE))
    assert len(named) >= 4
    assert [name for name in named if not callable(vars(LLM).get(name))] == []
    public = {name for name, value in vars(LLM).items() if callable(value) and not name.startswith("_")}
    assert public - named == {"close"}, "every public method has a row"
    missing = re.findall(r"`LLM\.(\w+)`", absent)
    assert len(missing) >= 4
    assert [name for name in missing if name in vars(LLM)] == []


def test_every_field_of_an_output_is_named() -> None:
    for cls in (RequestOutput, CompletionOutput):
        named = re.findall(r"`(\w+)`", rows()[f"`{cls.__name__}`"])
        assert set(named) == {field.name for field in fields(cls)}


def test_floors_and_tested_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "torch"]
    pinned = re.search(
        r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert pinned is not None
    assert rows()["torch"].startswith(f"{str(torch.specifier).removeprefix('>=')} or newer | {pinned[1]} ")
    assert rows()["Python"].startswith(f"{project['requires-python'].removeprefix('>=')} or newer")


def test_what_is_said_of_triton_is_what_the_start_judges_and_tests_install() -> None:
    needed, tested = rows()["triton"].split(" | ")
    assert needed.startswith(f"{TESTED_TRITON} on Linux")
    pinned = re.search(
        r"^triton==([\d.]+);", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert pinned is not None
    assert tested.startswith(f"{pinned[1]} alone")
    assert f"torch {TRITONS_TORCH}." in tested
    assert triton_check(pinned[1], has_gpu=True).status == "ok"
    for part, path in re.findall(r"`([\w.]+\._\w+)` \(`([\w/.]+)`\)", tested):
        assert part in (ROOT / path).read_text(encoding="utf-8")


def test_every_dtype_and_device_that_is_served_is_named_as_served() -> None:
    for dtype in set(DTYPES) - {"auto"}:
        assert "not yet" not in rows()[f"`{dtype}`"]
    names = {"cpu": "CPU", "cuda": "NVIDIA GPU"}
    assert set(names) == set(DEVICES) - {"auto"}
    for name in names.values():
        assert rows()[name].startswith("served")


def test_every_installed_architecture_of_this_repository_is_named() -> None:
    registry = build_registry()
    ours = [arch for arch in registry.archs.values() if arch.distribution.startswith("vtcore-")]
    assert ours
    for arch in ours:
        assert f"`{arch.distribution}`" in TEXT
        assert all(f"`{name}`" in TEXT for name in arch.entry.architectures)
