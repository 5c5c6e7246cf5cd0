"""The flags that every command with an engine shares, one per field of `UserOptions`.

Does not: list them; a new option of the engine is a new flag by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from attrs import Attribute, fields

from vtcore.config.options import UserOptions
from vtcore.config.structure import structure_options
from vtcore.errors import ConfigError

_POSITIONAL = "model"


def add_plugin_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--plugin FILE.py` and `--plugin-owner KIND:NAME=DISTRIBUTION`, both repeatable."""
    group = parser.add_argument_group("plugins")
    group.add_argument(
        "--plugin",
        dest="plugin_files",
        metavar="FILE.py",
        action="append",
        help="load a single-file plugin (repeatable)",
    )
    group.add_argument(
        "--plugin-owner",
        dest="plugin_owners",
        metavar="KIND:NAME=DISTRIBUTION",
        action="append",
        help="which distribution serves a contested name (repeatable)",
    )


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option of the engine, and the plugin flags; `model` stays the command's own."""
    group = parser.add_argument_group("engine")
    for option in fields(UserOptions):
        if option.name != _POSITIONAL and not option.name.startswith("plugin_"):
            group.add_argument("--" + option.name.replace("_", "-"), **_how(option))
    add_plugin_flags(parser)


def _how(option: Attribute[Any]) -> dict[str, Any]:
    about = option.metadata["about"].replace("%", "%%")
    if "bool" in str(option.type):
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": about}
    choices = option.metadata["choices"]
    if choices:
        about += f" ({', '.join(choices)})"
    is_int = "int" in str(option.type)
    return {"type": int if is_int else str, "metavar": "N" if is_int else "NAME", "help": about}


def options_from_args(args: argparse.Namespace) -> UserOptions:
    """Make options of parsed flags; flags that the command did not add count as not given.

    Args:
        args: Parsed by a parser that `add_engine_flags` or `add_plugin_flags` has seen.

    Raises:
        ConfigError: Every illegal value at once.
    """
    given = vars(args)
    data = {
        option.name: given[option.name]
        for option in fields(UserOptions)
        if given.get(option.name) is not None
    }
    if "plugin_owners" in data:
        data["plugin_owners"] = _owners(data["plugin_owners"])
    return structure_options(data)


def _owners(pairs: Sequence[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for pair in pairs:
        key, equals, distribution = pair.partition("=")
        if not (equals and ":" in key and distribution) or key in owners:
            raise ConfigError(f"--plugin-owner: {pair!r} is no KIND:NAME=DISTRIBUTION, or names a key twice")
        owners[key] = distribution
    return owners
