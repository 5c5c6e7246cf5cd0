"""docs/plugins.md says everything about every hook."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import fields
from attrs import has as is_attrs

from vtcore import hookspecs
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS, HookPoint
from vtcore.interfaces.model_arch import BuildContext, Model

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "plugins.md").read_text(encoding="utf-8")


def signature(hook: str) -> str:
    spec = getattr(hookspecs, hook)
    return f"def {hook}{inspect.signature(spec)}: ...".replace("'", "")


def section(point: HookPoint) -> str:
    """The section that shows the hook's signature, from heading to heading."""
    parts = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    found = [part for part in parts if f"\n{signature(point.hook)}\n" in part]
    assert len(found) == 1, f"{signature(point.hook)} must stand in exactly one section"
    return found[0]


def members(cls: type) -> dict[str, Any]:
    """What a class itself declares in public: methods, properties, class variables, attrs fields."""
    own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    own |= {name: None for name in inspect.get_annotations(cls) if not name.startswith("_")}
    if is_attrs(cls):
        own |= {field.name: None for field in fields(cls)}
    return own


def rows(text: str) -> dict[str, str]:
    """Code of the first cell, up to its parenthesis -> that code, for each table row."""
    cells = re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)
    return {cell.split("(")[0]: cell for cell in cells}


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.hook)
def test_every_hook_has_a_section_with_signature_version_and_moment(point: HookPoint) -> None:
    text = section(point)
    served = HOOK_VERSIONS[point.api]
    older = "" if served.oldest == served.current else f"; {served.oldest} is served too"
    assert f'Version {served.current} (`VTCORE_API = {{"{point.api}": "{served.current}"}}`){older}.' in text
    assert "Called once while the registry is built" in text
    assert f"`{point.entry.__name__}`" in text
    assert f"`{point.kind}`" in TEXT


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.hook)
def test_the_table_of_versions_has_every_hook(point: HookPoint) -> None:
    served = HOOK_VERSIONS[point.api]
    assert f"\n| `{point.api}` | {served.current} | {served.oldest} |" in TEXT


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.hook)
def test_every_field_of_an_entry_has_a_row(point: HookPoint) -> None:
    missing = {field.name for field in fields(point.entry)} - set(rows(section(point)))
    assert missing == set()


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.hook)
def test_every_member_of_an_interface_has_a_row_with_its_arguments(point: HookPoint) -> None:
    documented = rows(section(point))
    declared = members(point.interface)
    assert set(declared) - set(documented) == set()
    for name, value in declared.items():
        function = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(function):
            arguments = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
            assert documented[name] == f"{name}({', '.join(arguments)})"


def test_no_row_tells_of_something_that_does_not_exist() -> None:
    for point in HOOK_POINTS:
        known = {field.name for field in fields(point.entry)} | set(members(point.interface)) | {"__init__"}
        assert set(rows(section(point))) - known == set()


@pytest.mark.parametrize("cls", [BuildContext, Model])
def test_what_an_arch_is_given_and_must_return_is_named(cls: type) -> None:
    [paragraph] = [p for p in TEXT.split("\n\n") if p.startswith(f"`{cls.__name__}`, ")]
    named = {code.split("(")[0] for code in re.findall(r"`([^`]+)`", paragraph)}
    assert set(members(cls)) - named == set()
