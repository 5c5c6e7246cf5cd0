"""The generated pages are up to date, complete, and the same on every machine."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import reference
import reference_tables
from attrs import fields

from vtcore.cli.main import COMMANDS
from vtcore.cli.parser import CommandParser
from vtcore.config.env import NAMES
from vtcore.config.options import UserOptions
from vtcore.config.vllm_names import VLLM_FLAGS
from vtcore.request import SamplingParams

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_page_is_what_the_code_says(page: str) -> None:
    written = (ROOT / page).read_text(encoding="utf-8")
    assert written == reference.PAGES[page](), (
        f"{page} is out of date; run `make docs` and look at what changed"
    )


def test_check_fails_for_an_old_page_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    assert reference.main([], tmp_path) == 0
    assert reference.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs/cli.md"
    page.write_text(page.read_text(encoding="utf-8").replace("Flags are never", "Flags are always"))
    capsys.readouterr()
    assert reference.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr().err
    assert "docs/cli.md is out of date; run `make docs`" in shown
    assert "+Flags are never" in shown
    assert "configuration.md is" not in shown


def test_pages_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    first = reference.cli_page()
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    assert reference.cli_page() == first


def test_every_option_parameter_and_variable_has_a_row() -> None:
    page = reference.configuration_page()
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    names = {field.name for cls in (UserOptions, SamplingParams) for field in fields(cls)}
    assert names - set(rows) == set()
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_every_option_has_a_flag_and_a_meaning() -> None:
    flags = reference.flags_by_option()
    for option in fields(UserOptions):
        assert option.metadata["about"]
        assert option.name == "model" or flags[option.name].startswith("--")


def test_every_flag_of_vllm_is_named() -> None:
    section = reference.configuration_page().split("## Flags of vLLM")[1]
    named = re.findall(r"`(--[\w-]+)`", section)
    assert {reference_tables.flag_name(flag) for flag in VLLM_FLAGS.values()} - set(named) == set()


def test_every_command_has_a_section_with_its_own_flags() -> None:
    page = reference.cli_page()
    for command in COMMANDS:
        assert f"\n## vtcore {command}" in page
    section = page.split("\n## vtcore make-checkpoint\n")[1].split("\n## ")[0]
    for flag in ("`OUT`", "`--arch ARCH`", "`--force`"):
        assert flag in section
    assert "--max-num-seqs" not in page.split("\n## vtcore generate\n")[1].split("\n## ")[0]


def test_a_flag_is_shown_with_what_follows_it() -> None:
    parser = CommandParser(prog="x")
    shown = [
        reference.shown(action)
        for action in (
            parser.add_argument("out", metavar="OUT"),
            parser.add_argument("more", nargs="*"),
            parser.add_argument("--kind", choices=["a", "b"]),
            parser.add_argument("--many", nargs="+", metavar="TEXT"),
            parser.add_argument("--switch", action="store_true"),
            parser.add_argument("--on", action=argparse.BooleanOptionalAction),
        )
    ]
    assert shown == [
        "`OUT`",
        "`[MORE]`",
        "`--kind {a,b}`",
        "`--many TEXT ...`",
        "`--switch`",
        "`--on`, `--no-on`",
    ]


def test_pipes_in_cells_do_not_end_them() -> None:
    assert reference_tables.table(["a"], [["x|y\nz"]]) == ["| a |", "|---|", "| x\\|y z |"]


def test_a_docstrings_arguments_may_share_a_line_and_go_on_in_the_next() -> None:
    doc = "Does.\n\n    Args:\n        a, b: One\n            two.\n        c: Three.\n\n    Raises:\n"
    assert reference.argument_texts(doc) == {"a": "One two.", "b": "One two.", "c": "Three."}
