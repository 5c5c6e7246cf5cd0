"""`vtcore doctor`: what is wrong with this machine and installation, and what mends it.

`--json` prints one object: `errors`, `warnings` and `notes` are counts, `checks` a list of objects with
`name`, `status` ("ok", "note", "warning", "error"), `message` and `remedy` ("" where nothing is to do).
Fields may be added; these stay.

Does not: repair anything. Exit code 3 when there is an error, else 0.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from attrs import asdict

from vtcore.cli.engine_flags import add_plugin_flags, given_from_args, options_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError
from vtcore.host.check import Check, count
from vtcore.host.doctor import diagnose

EXIT_UNHEALTHY = 3
"""An error was found; that of every error about the machine."""

_MAX_NAME = 36
"""Longer names get a line of their own, so that the rest stays aligned."""


def add_parser(subparsers: Any) -> None:
    """Add `doctor`."""
    parser = subparsers.add_parser("doctor", help="find what is wrong with this machine and installation")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_plugin_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report; 3 when anything is an error."""
    options, problems = options_despite_problems(args)
    with others_print_to_stderr():
        checks = diagnose(options, problems)
    return print_checks(checks, args.json)


def options_despite_problems(args: argparse.Namespace) -> tuple[UserOptions, tuple[str, ...]]:
    """Options from flags and environment; and what is wrong in the latter, which then does not count.

    Raises:
        ConfigError: A flag's value is wrong.
    """
    flags = options_from_args(args)
    try:
        return given_from_args(args).options, ()
    except ConfigError as error:
        return flags, error.problems


def print_checks(checks: Sequence[Check], as_json: bool) -> int:
    """Print rows, then a summary line; or all as JSON.

    Returns:
        The exit code.
    """
    errors = count(checks, "error")
    if as_json:
        print(json.dumps(checks_as_json(checks), indent=2))
    else:
        print("\n".join(_lines(checks)))
        print(summary(checks))
    return EXIT_UNHEALTHY if errors else 0


def checks_as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "errors": count(checks, "error"),
        "warnings": count(checks, "warning"),
        "notes": count(checks, "note"),
        "checks": [asdict(check) for check in checks],
    }


def summary(checks: Sequence[Check]) -> str:
    """How many rows are of each status, the worst first."""
    parts = [(count(checks, "error"), "error"), (count(checks, "warning"), "warning")]
    parts += [(count(checks, "note"), "note")]
    said = [f"{number} {word}{'s' * (number > 1)}" for number, word in parts if number]
    return f"{len(checks)} check{'s' * (len(checks) != 1)}: {', '.join(said) or 'all well'}"


def _lines(checks: Sequence[Check]) -> list[str]:
    width = max((len(check.name) for check in checks if len(check.name) <= _MAX_NAME), default=0)
    indent = " " * (len("warning") + width + 4)
    lines = []
    for check in checks:
        head = f"{check.status:<7}  {check.name:<{width}}  "
        if len(check.name) > width:
            lines.append(head.rstrip())
            head = indent
        lines.append(head + " ".join(check.message.split()))
        if check.remedy:
            lines.append(textwrap.indent(f"remedy: {check.remedy}", indent))
    return lines
