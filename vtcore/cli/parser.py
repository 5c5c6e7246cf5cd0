"""The argument parser of every subcommand: nothing abbreviated, typos answered with a guess, all at once.

Does not: exit or print an error; it raises, and `main` reports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from vtcore.cli.flag_words import errors_as_typed, names_of_flags, respell
from vtcore.errors import ConfigError, UsageError
from vtcore.suggest import did_you_mean

_REQUIRED = "the following arguments are required: "
"""Argparse's words for what is missing."""
DEBUG_FLAG = "--debug"
"""Shows the traceback of an error; every parser has it, so it may stand anywhere."""


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError`; subparsers made from it are of the same class.

    Attributes:
        check: Raises `ConfigError` for wrong options of a namespace; called when the command line has other
            faults, so that one run shows all there is to mend. None where a command has no options.

    What it parses has `typed_flags`, destination -> the flag as typed, and `flag_names`, both for
    `errors_as_typed`.
    """

    check: Callable[[argparse.Namespace], object] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        # Python 3.14 colours its help; what this program prints has no control characters.
        self.color = False
        self._bad_values: list[str] = []
        # SUPPRESS, so that a subparser's default does not undo what its parent has seen.
        self.add_argument(
            DEBUG_FLAG, action="store_true", default=argparse.SUPPRESS, help="show an error's traceback"
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the standard one, but whatever is unknown is an error here, where the flags are known."""
        words = list(sys.argv[1:] if args is None else args)
        typed: dict[str, str] = {}
        if self._subparsers is None:
            takes_model = any(action.dest == "model" for action in self._get_positional_actions())
            spelled = respell(words, self._option_string_actions, takes_model)
            words, typed = spelled.words, spelled.typed
        self._bad_values.clear()
        known, unknown = super().parse_known_args(words, namespace)
        if self._subparsers is None:
            known.typed_flags = typed
            known.flag_names = names_of_flags(self._actions)
        problems = [*self._bad_values, *self._unknown(unknown)]
        if problems:
            problems[-1] += f" (see {self.prog} --help)"
            self._raise(problems, known)
        return known, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            # Kept, so that what comes after it on the command line is judged too.
            self._bad_values.append(str(error))
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if self._subparsers is not None:
            super()._check_value(action, value)
        elif value is not None:
            try:
                super()._check_value(action, value)
            except argparse.ArgumentError as error:
                self._bad_values.append(str(error))

    def _unknown(self, words: Sequence[str]) -> list[str]:
        if not words:
            return []
        flags = [word.split("=", 1)[0] for word in words if word.startswith("-") and word != "--"]
        if not flags:
            return [f"unknown argument {words[0]!r}"]
        known = list(self._option_string_actions)
        return [f"unknown flag {flag!r}{did_you_mean(flag, known, list_all=False)}" for flag in flags]

    def _raise(self, problems: Sequence[str], known: argparse.Namespace) -> NoReturn:
        try:
            if self.check is not None:
                with errors_as_typed(known.typed_flags):
                    self.check(known)
        except ConfigError as error:
            raise ConfigError(*problems, *error.problems) from error
        raise UsageError(*problems)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: Always.
        """
        # argparse's own words for a value behind a switch sound as if it were let through.
        message = message.replace("ignored explicit argument", "takes no value, found")
        for action in self._actions:
            if action.option_strings or message != f"{_REQUIRED}{action.metavar}":
                continue
            if action.choices is not None:
                message = f"{action.metavar} is missing; give one of {', '.join(map(str, action.choices))}"
        raise UsageError(f"{message} (see {self.prog} --help)")
