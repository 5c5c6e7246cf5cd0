"""The flags that set sampling parameters, one per field of `SamplingParams`.

Does not: list types or limits; a new parameter needs a line of help here and is a flag by itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from attrs import fields

from vtcore.cli.engine_flags import given_from_args
from vtcore.cli.flag_words import SAMPLING
from vtcore.cli.handling_flags import handling_from_args
from vtcore.engine.sampling_defaults import SamplingDefaults, value_problem
from vtcore.errors import ConfigError, RequestError
from vtcore.request import SamplingParams

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions

ABOUT: Mapping[str, str] = {
    "n": "samples of the prompt",
    "temperature": "0 is greedy",
    "top_p": "mass of the most likely ids that stay; 1 is all",
    "top_k": "number of ids that stay; 0 is all",
    "min_p": "share of the largest probability below which ids go; 0 is none",
    "repetition_penalty": "over ids of prompt and output; 1 is off",
    "presence_penalty": "over ids of the output, -2 to 2; 0 is off",
    "frequency_penalty": "over ids of the output by their count, -2 to 2; 0 is off",
    "seed": "seed of the request; default: made of the engine's --seed",
    "max_tokens": "output tokens at most; default: what the prompt leaves of the context",
    "min_tokens": "no end before that many output tokens",
    "stop": "end at this text (repeatable)",
    "stop_token_ids": "end at one of these ids: 1,2,3",
    "ignore_eos": "do not end at the model's own end",
    "logprobs": "most likely ids reported per output token; -1 is all",
    "prompt_logprobs": "most likely ids reported per prompt token; -1 is all",
    "logit_bias": "added to logits, by id: '{\"42\": -5}'",
    "allowed_token_ids": "draw only these ids: 1,2,3",
    "bad_words": "never complete this text (repeatable)",
    "include_stop_str_in_output": "keep the stop text at the end",
    "skip_special_tokens": "leave special tokens out of the text; default: on",
    "detokenize": "make text; default: on",
}
"""Parameter -> help of its flag."""

_RENAMED: Mapping[str, str] = {"seed": "sampling-seed"}
"""`--seed` is the engine's."""


def flag_of(name: str) -> str:
    """The flag of a parameter, with its dashes."""
    return "--" + _RENAMED.get(name, name.replace("_", "-"))


def add_sampling_flags(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """Add a flag for each sampling parameter.

    Args:
        leave_out: Parameters that the command has no use for.
    """
    group = parser.add_argument_group("sampling (defaults: the checkpoint's)")
    hints = get_type_hints(SamplingParams)
    for parameter in fields(SamplingParams):
        name = parameter.name
        if name in leave_out:
            continue
        how: dict[str, Any] = {
            "dest": SAMPLING + name,
            "default": None,
            "help": ABOUT[name].replace("%", "%%"),
        }
        if hints[name] is bool:
            how["action"] = argparse.BooleanOptionalAction
        elif hints[name] == tuple[str, ...]:
            how |= {"action": "append", "metavar": "TEXT"}
        else:
            how["metavar"] = _FORMS[hints[name]][0]
        group.add_argument(flag_of(name), **how)


def sampling_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Parameter -> value, of the flags that were given.

    Raises:
        ConfigError: A value has a wrong form or is outside its range; all are named at once.
    """
    given: dict[str, Any] = {}
    problems: list[str] = []
    hints = get_type_hints(SamplingParams)
    for parameter in fields(SamplingParams):
        name = parameter.name
        value = vars(args).get(SAMPLING + name)
        if value is None:
            continue
        try:
            given[name] = _FORMS[hints[name]][1](value) if isinstance(value, str) else value
        except ValueError as error:
            problems.append(f"{flag_of(name)}: {value!r} is not {error}")
            continue
        sentence = value_problem(name, given[name]) or _text_problem(given[name])
        if sentence is not None:
            problems.append(f"{flag_of(name)}: {sentence.removeprefix(f'{name}=')}")
    if problems:
        raise ConfigError(*problems)
    return given


def read_flags(args: argparse.Namespace) -> tuple[dict[str, Any], GivenOptions]:
    """Sampling parameters and engine options, after a look at the flags of `handling_from_args`.

    Raises:
        ConfigError: Values are wrong or do not go together; the problems of all are said at once.
    """
    problems: list[str] = []
    given: dict[str, Any] = {}
    try:
        given = sampling_from_args(args)
        # Whether the flags go together; with the model's defaults they are judged again.
        SamplingParams.from_dict({"max_tokens": None, **given})
    except RequestError as error:
        problems.append(str(error))
    except ConfigError as error:
        problems += error.problems
    try:
        handling_from_args(args)
    except ConfigError as error:
        problems += error.problems
    try:
        options = given_from_args(args)
    except ConfigError as error:
        if not problems:
            raise
        raise ConfigError(*problems, *error.problems) from error
    if problems:
        raise ConfigError(*problems)
    return given, options


def cli_params(defaults: SamplingDefaults, given: Mapping[str, Any]) -> SamplingParams:
    """Parameters of a request of the command line: flags, then the model's defaults, then the whole context.

    Args:
        given: As `sampling_from_args` returns it.

    Raises:
        ConfigError: The values do not go together.
    """
    try:
        return defaults.params(**{**with_whole_context(defaults), **given})
    except RequestError as error:
        raise ConfigError(str(error)) from error


def with_whole_context(defaults: SamplingDefaults) -> dict[str, Any]:
    """`max_tokens` for the command line: as the defaults set it, otherwise the rest of the context."""
    return {"max_tokens": defaults.given.get("max_tokens")}


def _text_problem(value: Any) -> str | None:
    for text in value if isinstance(value, list) else ():
        if isinstance(text, str) and (at := surrogate_at(text)) is not None:
            return f"the text is not UTF-8 at character {at}; set a UTF-8 locale and write it again"
    return None


def surrogate_at(text: str) -> int | None:
    """Index of the first character that is no text: a byte that was not UTF-8, or half a pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("an integer") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError("a list of ids like 1,2,3") from None


def _bias(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError('a JSON object like {"42": -5}')
    return value


_FORMS: Mapping[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("N", _int),
    int | None: ("N", _int),
    float: ("X", _float),
    tuple[int, ...]: ("IDS", _ids),
    tuple[int, ...] | None: ("IDS", _ids),
    dict[int, float] | None: ("JSON", _bias),
}
"""Type of a parameter -> (metavar, reader that raises ValueError with what would have been right)."""
