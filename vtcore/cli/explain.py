"""`vtcore explain [CODE]`: what an error's code means and what to do; docs/errors.md says the same.

Does not: hold the texts (vtcore/data/errors.toml) or the codes (vtcore/errors.py).
"""

from __future__ import annotations

import argparse
import re
import textwrap
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from attrs import frozen

from vtcore.errors import UsageError
from vtcore.suggest import did_you_mean

_WIDTH = 100
_PAGE_WIDTH = 118
_FAMILIES = {"2": "configuration", "3": "environment", "4": "engine"}
"""First digit of a code, which is the exit code, and what it stands for."""


@frozen
class Explanation:
    """What is said about one code.

    Args:
        code: "VT" and three digits.
        title: A few words.
        what: What happened, one to three sentences.
        causes: Common ones, at least one.
        remedies: What to do, at least one.
        example: A message that carries the code.
    """

    code: str
    title: str
    what: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    example: str

    @property
    def exit_code(self) -> int:
        """Of the command line."""
        return int(self.code[2])


def read_explanations() -> dict[str, Explanation]:
    """Read all explanations, by code, in the order of the codes.

    Raises:
        TypeError: An entry lacks a part or has one too many.
    """
    table = tomllib.loads(files("vtcore.data").joinpath("errors.toml").read_text(encoding="utf-8"))
    return {code: Explanation(code, **_frozen(parts)) for code, parts in sorted(table.items())}


def _frozen(parts: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in parts.items()}


def add_parser(subparsers: Any) -> None:
    """Add `explain`."""
    parser = subparsers.add_parser("explain", help="explain an error's code")
    parser.add_argument("code", metavar="CODE", nargs="?", help="such as VT201 or 201; none lists all codes")


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or the list of codes.

    Raises:
        UsageError: No error has that code.
    """
    explanations = read_explanations()
    if args.code is None:
        for code, explanation in explanations.items():
            print(f"{code}  exit {explanation.exit_code}  {explanation.title}")
        return 0
    word = args.code.strip().upper()
    code = f"VT{word}" if re.fullmatch(r"\d+", word) else word
    if code not in explanations:
        beginning = [known for known in explanations if known.startswith(code)]
        guess = ""
        if beginning and code != "V":
            guess = f"; these begin so: {', '.join(beginning)}"
        elif re.fullmatch(r"VT\d{3,}", code):
            guess = did_you_mean(code, explanations)
        raise UsageError(
            f"no error has the code {args.code!r}{guess or '; vtcore explain, without a code, lists them'}"
        )
    print("\n".join(_lines(explanations[code])))
    return 0


def _wrapped(text: str, width: int, bullet: str = "") -> list[str]:
    """Lines of a text; a flag such as `--max-num-seqs` stays whole."""
    return textwrap.wrap(
        text, width, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False
    )


def _lines(explanation: Explanation) -> Iterable[str]:
    family = _FAMILIES[explanation.code[2]]
    yield f"{explanation.code}: {explanation.title} ({family}, exit code {explanation.exit_code})"
    yield ""
    yield from _wrapped(explanation.what, _WIDTH)
    for heading, items in (("Common causes:", explanation.causes), ("What to do:", explanation.remedies)):
        yield ""
        yield heading
        for item in items:
            yield from _wrapped(item, _WIDTH, "- ")
    yield ""
    yield "Example:"
    yield f"  error[{explanation.code}]: {explanation.example}"


def errors_markdown() -> str:
    """The page docs/errors.md, whole, with an anchor per code (`VtcoreError.doc`)."""
    explanations = read_explanations()
    parts = [
        "# Errors\n",
        "Every error has a code. Its first digit is the exit code of the command line: 2 configuration "
        "(options, model,\nrequest), 3 environment (machine, installation, network), 4 engine. Ctrl-C exits "
        "with 130, SIGTERM with 143, a closed\noutput with 141. `vtcore explain CODE` prints the same; "
        "`--debug` shows an error's traceback.\n",
        "| code | exit | what |\n|---|---|---|",
    ]
    rows = [
        f"| [{code}](#{code.lower()}) | {explanation.exit_code} | {explanation.title} |"
        for code, explanation in explanations.items()
    ]
    sections = [_section(explanation) for explanation in explanations.values()]
    return "\n".join([*parts, *rows, "", *sections]).rstrip("\n") + "\n"


def _section(explanation: Explanation) -> str:
    def bullets(items: Iterable[str]) -> str:
        return "\n".join(line for item in items for line in _wrapped(item, _PAGE_WIDTH, "- "))

    return "\n\n".join(
        (
            f"## {explanation.code}",
            f"**{explanation.title}.** Exit code {explanation.exit_code}.",
            "\n".join(_wrapped(explanation.what, _PAGE_WIDTH)),
            f"Common causes:\n\n{bullets(explanation.causes)}",
            f"What to do:\n\n{bullets(explanation.remedies)}",
            f"```text\nerror[{explanation.code}]: {explanation.example}\n```\n",
        )
    )
