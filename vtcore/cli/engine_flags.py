"""The flags that every command with an engine shares: one per field of `UserOptions`, and vLLM's, unlisted.

Does not: list them; a new option of the engine is a new flag by itself, and vLLM's flags are data.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Attribute, fields

from vtcore.cli.flag_words import HIDDEN, MAPPING_METAVAR, option_of
from vtcore.cli.parser import CommandParser
from vtcore.cli.terminal import say
from vtcore.config.layers import GivenOptions, gather_options
from vtcore.config.options import UserOptions
from vtcore.config.structure import structure_options
from vtcore.config.text_values import KINDS, parse_mapping, parse_value
from vtcore.config.vllm_names import VLLM_FLAGS, VllmFlag
from vtcore.errors import ConfigError

_POSITIONAL = "model"

_METAVARS: Mapping[str, str] = {
    "int": "N",
    "float": "X",
    "text": "TEXT",
    "texts": "TEXT",
    "mapping": MAPPING_METAVAR,
}


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
    """Add `--config`, a flag for each option of the engine, the plugin flags, and vLLM's flags.

    Call it after the command has added its own flags; a flag of vLLM that the command has too is the
    command's. `model` stays the command's own positional, which a file or VTCORE_MODEL may stand in for.
    """
    group = parser.add_argument_group(
        "engine",
        "Flags of `vllm serve` are known too: what is always so is accepted, what is not served is named. "
        f"{MAPPING_METAVAR} may be given by its keys: --override-generation-config.top_k 20.",
    )
    group.add_argument(
        "--config",
        dest="config_file",
        metavar="FILE",
        help="options from a TOML file, or one of YAML or JSON when its name ends so",
    )
    for option in fields(UserOptions):
        if option.name != _POSITIONAL and not option.name.startswith("plugin_"):
            group.add_argument(_flag(option.name), dest=option.name, **_how(option))
    add_plugin_flags(parser)
    for action in parser._get_positional_actions():
        if action.dest == _POSITIONAL:
            # A file or VTCORE_MODEL may name it. With nargs="?" it would have to stand before every flag.
            action.required = False
    taken = parser._option_string_actions
    for flag in VLLM_FLAGS.values():
        if flag.name != _POSITIONAL and _flag(flag.name) not in taken:
            group.add_argument(
                _flag(flag.name), dest=HIDDEN + flag.name, help=argparse.SUPPRESS, **_how_hidden(flag)
            )
    if isinstance(parser, CommandParser):
        parser.check = given_from_args


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _how(option: Attribute[Any]) -> dict[str, Any]:
    """Values stay texts here: `given_from_args` reads them, so that all wrong ones are reported at once."""
    about, kind = option.metadata["about"].replace("%", "%%"), KINDS[option.name]
    if kind == "bool":
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": about}
    if choices := option.metadata["choices"]:
        about += f" ({', '.join(choices)})"
    how = {"metavar": _METAVARS.get(kind) or "|".join(("N", *option.metadata["words"])), "help": about}
    if kind == "texts":
        return how | {"nargs": "+", "action": "extend"}
    return how | {"action": "append"} if kind == "mapping" else how


def _how_hidden(flag: VllmFlag) -> dict[str, Any]:
    if flag.takes == "none":
        return {"action": "store_const", "const": True}
    if flag.takes == "bool":
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if flag.takes == "optional":
        return {"nargs": "?", "const": True}
    if flag.takes == "many":
        return {"nargs": "+", "action": "extend"}
    return {"action": "append", "metavar": MAPPING_METAVAR} if flag.takes == "json" else {}


def given_from_args(args: argparse.Namespace) -> GivenOptions:
    """Gather options from parsed flags, the file that `--config` names, and the environment.

    Args:
        args: Parsed by a parser that `add_engine_flags` or `add_plugin_flags` has seen; flags that the
            command did not add count as not given.

    Raises:
        ConfigError: Every wrong value at once, by paths like `$.max_num_seqs`, which `errors_as_typed` makes
            flags.
        NotServedError: Everything given is legal, but not all of it is served.
    """
    data, problems = _read(args)
    try:
        given = gather_options(data, config_file=vars(args).get("config_file"), where="command line")
    except ConfigError as error:
        if not problems:
            raise
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    if _POSITIONAL in vars(args):
        # Commands name the model in what they print, wherever it was given.
        args.model = given.options.model
    return given


def notes_as_typed(given: GivenOptions) -> list[str]:
    """Which options were accepted because they are always so, and why; flags spelled as flags."""
    return [re.sub(r"^\$\.(\w+)", lambda found: _flag(found[1]), note) for note in given.notes]


def print_notes(given: GivenOptions) -> None:
    """Print them on stderr."""
    for note in notes_as_typed(given):
        say(f"note: {note}")


def options_from_args(args: argparse.Namespace) -> UserOptions:
    """Make options of parsed flags alone, for commands that have the plugin flags and no engine.

    Args:
        args: As of `given_from_args`.

    Raises:
        ConfigError: Every illegal value at once.
    """
    data, problems = _read(args)
    if problems:
        raise ConfigError(*problems)
    return structure_options(data)


def _read(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The values of the engine's flags by option, and a sentence per text that is no such value."""
    data: dict[str, Any] = {}
    problems: list[str] = []
    for dest, value in vars(args).items():
        try:
            if value is None:
                continue
            if dest.startswith(HIDDEN):
                name = dest.removeprefix(HIDDEN)
                data[name] = _vllm_value(VLLM_FLAGS[name], value)
            elif dest == "plugin_owners":
                data[dest] = _owners(value)
            elif KINDS.get(dest) == "mapping":
                data[dest] = merged_mapping(value, strict=True)
            elif dest in KINDS:
                data[dest] = parse_value(dest, value) if isinstance(value, str) else value
        except ValueError as error:
            problems.append(f"$.{option_of(dest)}: {error}")
    return data, problems


def _vllm_value(flag: VllmFlag, value: Any) -> Any:
    if flag.to is not None:
        return parse_value(flag.to, value)
    return merged_mapping(value, strict=False) if flag.takes == "json" else value


def merged_mapping(texts: Sequence[str], *, strict: bool) -> Any:
    """One mapping of several JSON texts, the later ones winning key by key.

    Args:
        texts: As given.
        strict: Whether a text that is no JSON object is an error; else the last such text is returned.

    Raises:
        ValueError: If strict.
    """
    found: dict[str, Any] = {}
    for text in texts:
        try:
            _merge(found, parse_mapping(text))
        except ValueError:
            if strict:
                raise
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
    return found


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        inner = into.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            _merge(inner, value)
        else:
            into[key] = value


def _owners(pairs: Sequence[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for pair in pairs:
        key, equals, distribution = pair.partition("=")
        if not (equals and ":" in key and distribution) or key in owners:
            raise ValueError(f"{pair!r} is no KIND:NAME=DISTRIBUTION, or names a key twice")
        owners[key] = distribution
    return owners
