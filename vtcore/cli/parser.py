"""The argument parser of every subcommand: nothing abbreviated, typos answered with a guess.

Does not: exit or print an error; it raises, and `main` reports.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from vtcore.errors import VtcoreError
from vtcore.suggest import did_you_mean


class UsageError(VtcoreError):
    """The command line has an unknown flag, a missing argument or a value of a wrong form."""


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError`; subparsers made from it are of the same class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the standard one, but whatever is unknown is an error here, where the flags are known."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", self.format_help()))
            word = unknown[0].split("=", 1)[0]
            kind = "flag" if word.startswith("-") else "argument"
            guess = did_you_mean(word, flags) if kind == "flag" else ""
            raise UsageError(f"unknown {kind} {word!r}{guess} (see {self.prog} --help)")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message} (see {self.prog} --help)")
