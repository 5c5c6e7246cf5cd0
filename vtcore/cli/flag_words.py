"""The words of a command line, brought into the one spelling that the parser knows, and back in messages.

Does not: parse values. Known spellings are those of vLLM: underscores for dashes, short forms of several
letters (`-tp 1`, `-O3`), keys of a mapping one by one (`--override-generation-config.top_k 5`) and
`--model MODEL`; beside these `--enforce-eager=true`, which files of flags for other tools hold.

The short forms are resolved here and not by argparse, which in some versions of Python abbreviates flags with
one dash even where abbreviation is switched off.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from vtcore.config.vllm_names import VLLM_FLAGS
from vtcore.errors import ConfigError, UsageError, VtcoreError

MAPPING_METAVAR = "JSON"
"""Marks a flag whose value is a mapping, so that its keys may be given one by one."""
SAMPLING = "sampling_"
"""Before the name in the destination of a sampling parameter's flag."""
HIDDEN = "vllm:"
"""Before the name in the destination of a flag that only vLLM has, so that no command's own is hit."""

_FLAG = re.compile(r"--?[A-Za-z][\w-]*(\.[\w.-]+\+?)?")
_LEVEL = re.compile(r"-O=?(\d)")
_PATH = re.compile(r"\$\.(\w+)")
_LINE = re.compile(r"\S[^$]*?:(\d+: | \$\.)")
_SETTING = re.compile(r"(?<![\w.\[$'\"-])([a-z][a-z_]*)=(\{[^{}]*\}|[^\s,;:()]*[^\s,;:().])")
_NAME = r"[a-z]+(?:_[a-z]+)+\b(?![\[.=])"
_REMEDY = re.compile(rf"\b((?:raise|lower|set|without|largest|with|no|or|and) )({_NAME}(?:, {_NAME})*)")
_SHORT: Mapping[str, str] = {
    short: "--" + flag.name.replace("_", "-") for flag in VLLM_FLAGS.values() for short in flag.short
}


@frozen
class FlagWords:
    """A command line in the parser's spelling.

    Args:
        words: What the parser gets.
        typed: Destination -> the flag as it was typed.
    """

    words: list[str]
    typed: dict[str, str]


def respell(words: Sequence[str], actions: Mapping[str, argparse.Action], takes_model: bool) -> FlagWords:
    """Bring flags into the parser's spelling; what is no flag, or unknown, is left as it is.

    Args:
        words: As typed.
        actions: The parser's flags, by spelling.
        takes_model: Whether the parser has the positional MODEL, which `--model` then stands for.
    """
    out: list[str] = []
    typed: dict[str, str] = {"model": "MODEL"} if takes_model else {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return FlagWords([*out, word, *rest], typed)
        level = _LEVEL.fullmatch(word)
        given, equals, value = ("-O", "=", level[1]) if level else word.partition("=")
        if not _FLAG.fullmatch(given):
            out.append(word)
            continue
        start, dot, path = given.partition(".")
        flag = _spelling(start, actions)
        action = actions.get(flag)
        if flag == "--model" and action is None and takes_model and (equals or rest):
            out.insert(0, value if equals else rest.pop(0))
            typed["model"] = start
        elif action is None:
            out.append(word)
        elif not dot:
            out.append(
                _switch(flag, value) if equals and _is_switch(action, flag, value) else flag + equals + value
            )
            typed[option_of(action.dest)] = start
        elif action.metavar == MAPPING_METAVAR and (equals or rest):
            out.append(f"{flag}={json.dumps(_nested(path, value if equals else rest.pop(0)))}")
            typed[option_of(action.dest)] = start
        else:
            out.append(word)
    return FlagWords(out, typed)


def _spelling(flag: str, actions: Mapping[str, argparse.Action]) -> str:
    if flag in actions:
        return flag
    plain = _SHORT.get(flag, flag)
    return "--" + plain[2:].replace("_", "-") if plain.startswith("--") else plain


def _is_switch(action: argparse.Action, flag: str, value: str) -> bool:
    is_switch = isinstance(action, argparse.BooleanOptionalAction) and flag == action.option_strings[0]
    return is_switch and value.lower() in ("true", "false")


def _switch(flag: str, value: str) -> str:
    return flag if value.lower() == "true" else "--no" + flag[1:]


def option_of(dest: str) -> str:
    """The option that a destination of the namespace sets, as errors name it."""
    name = dest.removeprefix(HIDDEN)
    flag = VLLM_FLAGS.get(name)
    return name if flag is None or flag.to is None else flag.to


def _nested(path: str, text: str) -> Any:
    """The mapping that `path` (a.b, or a.b+ for a list between commas) and a value make."""
    value: Any = text.split(",") if path.endswith("+") else text
    if value is text:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
    for key in reversed(path.removesuffix("+").split(".")):
        value = {key: value}
    return value


def _as_typed(problem: str, typed: Mapping[str, str]) -> str:
    # What begins otherwise stands in a file or in the environment.
    if not problem.startswith("$."):
        return problem
    return _PATH.sub(lambda found: typed.get(found[1], found[0]), problem)


def names_of_flags(actions: Iterable[argparse.Action]) -> dict[str, str]:
    """Option or sampling parameter -> its flag, of a command's own; what both have is the parameter's."""
    flags = {action.dest: action.option_strings[0] for action in actions if action.option_strings}
    sampling = {
        dest.removeprefix(SAMPLING): flag for dest, flag in flags.items() if dest.startswith(SAMPLING)
    }
    return {**{dest: flag for dest, flag in flags.items() if not dest.startswith(HIDDEN)}, **sampling}


def settings_as_flags(problem: str, flags: Mapping[str, str]) -> str:
    """Show settings as a command line has them: `max_model_len=16` becomes `--max-model-len 16`, and `raise
    max_model_len` becomes `raise --max-model-len`.

    A problem of a file's line (`in.jsonl:3: ...`) or of a file of options keeps its own spelling.

    Args:
        flags: As of `names_of_flags`; other names are left as they are.
    """
    if _LINE.match(problem):
        return problem
    problem = _SETTING.sub(lambda found: _as_flag(found, flags), problem)
    return _REMEDY.sub(
        lambda found: found[1] + ", ".join(flags.get(name, name) for name in found[2].split(", ")), problem
    )


def _as_flag(found: re.Match[str], flags: Mapping[str, str]) -> str:
    name, value = found[1], found[2]
    flag = flags.get(name)
    if flag is None:
        return found[0]
    if value in ("True", "False", "None"):
        return {"True": flag, "False": "--no" + flag[1:], "None": f"no {flag}"}[value]
    if name == "plugin_owners":
        return flag + " " + value.strip("{}").replace('": "', "=").strip('"')
    return f"{flag} {value}"


@contextmanager
def errors_as_typed(typed: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Iterator[None]:
    """Make errors name options as the user typed them: `$.max_model_len` becomes `--max-model-len`.

    Args:
        typed: As in `FlagWords`; options that are not in it were not typed and keep their path.
        flags: As of `settings_as_flags`; None leaves settings as they are.
    """
    try:
        yield
    except (ConfigError, UsageError) as error:
        error.problems = tuple(
            settings_as_flags(_as_typed(problem, typed), flags or {}) for problem in error.problems
        )
        error.args = ("; ".join(error.problems),)
        raise
    except VtcoreError as error:
        error.args = (settings_as_flags(_as_typed(str(error), typed), flags or {}),)
        raise
