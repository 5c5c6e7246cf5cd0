"""Each kind of error has a code of its own and an explanation, and the command line exits accordingly."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vtcore
from vtcore.cli import main as cli
from vtcore.cli.explain import errors_markdown, read_explanations
from vtcore.errors import VtcoreError

ROOT = Path(__file__).parent.parent
EXPLANATIONS = read_explanations()


def all_modules() -> list[ModuleType]:
    """Every module of vtcore that can be imported here; kernels need Triton."""
    found = []
    for info in pkgutil.walk_packages(vtcore.__path__, "vtcore."):
        try:
            found.append(importlib.import_module(info.name))
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
    return found


def error_classes() -> list[type[VtcoreError]]:
    assert len(all_modules()) > 50

    def below(cls: type[VtcoreError]) -> list[type[VtcoreError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in below(sub))]

    return [cls for cls in below(VtcoreError) if cls.__module__.startswith("vtcore.")]


def by_code() -> dict[str, type[VtcoreError]]:
    return {cls.code: cls for cls in error_classes()}


def test_each_class_has_a_code_of_its_own() -> None:
    classes = error_classes()
    assert len(classes) > 20
    assert len({cls.code for cls in classes}) == len(classes)
    assert [cls for cls in classes if "code" not in vars(cls)] == []
    assert [cls for cls in classes if not re.fullmatch(r"VT[234]\d\d", cls.code)] == []


def test_codes_and_explanations_are_the_same_set() -> None:
    assert set(by_code()) == set(EXPLANATIONS)


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_an_explanation_has_every_part(code: str) -> None:
    explanation = EXPLANATIONS[code]
    for text in (explanation.title, explanation.what, explanation.example):
        assert isinstance(text, str)
        assert text.strip()
    assert explanation.what.endswith(".")
    assert not explanation.title.endswith(".")
    assert "\n" not in explanation.example
    for items in (explanation.causes, explanation.remedies):
        assert items
        assert all(isinstance(item, str) and item.endswith(".") for item in items)


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_the_example_is_what_the_command_line_prints_with_that_exit_code(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = by_code()[code](EXPLANATIONS[code].example)

    def add_parser(subparsers: Any) -> None:
        subparsers.add_parser("act")

    def run(args: object) -> int:
        raise error

    module = ModuleType("vtcore_test_errors")
    module.__dict__.update(add_parser=add_parser, run=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "act": (module.__name__, "act")})
    assert cli.main(["act"]) == EXPLANATIONS[code].exit_code == error.exit_code
    assert capsys.readouterr().err == (
        f"error[{code}]: {EXPLANATIONS[code].example}\nmore: vtcore explain {code}\n"
    )


def test_the_page_of_errors_is_up_to_date() -> None:
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == errors_markdown()


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_an_errors_anchor_is_a_heading_of_the_page(code: str) -> None:
    file, _, anchor = by_code()[code]("x").doc.partition("#")
    assert file == "docs/errors.md"
    headings = re.findall(r"^## (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings.count(anchor.upper()) == 1
