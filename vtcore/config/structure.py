"""Turns untyped mappings into options and back, reporting everything that is wrong at once, by path.

Does not: coerce (a text is no number, a boolean no integer) or resolve defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, TypeVar

from attrs import fields
from cattrs import Converter
from cattrs.errors import (
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)

from vtcore.config.options import REFERENCE, UserOptions, option_problems, unserved_problems
from vtcore.config.shown import MAX_INT_BITS, shown
from vtcore.config.vllm_names import KNOWN_NAMES
from vtcore.errors import ConfigError, NotServedError
from vtcore.suggest import did_you_mean

T = TypeVar("T")

MAX_NESTING = 32
"""Levels of a mapping's value: a limit below Python's own, so that a text of brackets is one sentence."""

_UNQUOTED = (int, float, date)
"""What a text is read as in a file when it has no quotes: a revision 0123, a name 2020-01-01."""

_WORDS: Mapping[type, str] = {int: "an integer", bool: "true or false", str: "a text", float: "a number"}


def _check_length(value: Any) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise TypeError(f"the integer has more than {MAX_INT_BITS} bits; lower it")


def _strict(value: Any, wanted: type[Any]) -> Any:
    _check_length(value)
    if wanted is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is not a finite number")
        return float(value)
    if type(value) is wanted:
        return value
    quotes = "; write it in quotes" if wanted is str and isinstance(value, _UNQUOTED) else ""
    raise TypeError(f"{shown(value)} is not {_WORDS[wanted]}{quotes}")


class _NestedError(ValueError):
    """Problems inside of one value: (path below the value, sentence)."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {sentence}" for path, sentence in problems))


def _mapping(value: Any, _: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{shown(value)} is not a mapping of texts")
    if not all(type(item) is str for pair in value.items() for item in pair):
        raise TypeError(f"{shown(dict(value))} is not a mapping of texts")
    return dict(value)


def _json_mapping(value: Any, _: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{shown(value)} is not a mapping")
    problems: list[tuple[str, str]] = []
    copy: dict[str, Any] = _json_value(value, "", problems, MAX_NESTING)
    if problems:
        raise _NestedError(problems)
    return copy


def _json_value(value: Any, path: str, problems: list[tuple[str, str]], depth: int) -> Any:
    """A copy of the value, which the caller may then change; what JSON cannot say is noted."""
    if depth == 0:
        problems.append((path, f"more than {MAX_NESTING} levels are nested"))
    elif isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                problems.append((path, f"the key {shown(key)} is not a text"))
        return {key: _json_value(item, f"{path}.{key}", problems, depth - 1) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        return [_json_value(item, f"{path}[{i}]", problems, depth - 1) for i, item in enumerate(value)]
    elif type(value) is int and value.bit_length() > MAX_INT_BITS:
        problems.append((path, f"the integer has more than {MAX_INT_BITS} bits; lower it"))
    elif type(value) is float and not math.isfinite(value):
        problems.append((path, f"{value} is not a finite number"))
    elif value is not None and type(value) not in (str, bool, int, float):
        problems.append((path, f"{shown(value)} is not a value that JSON has"))
    return value


def _optional_int_or_word(value: Any, _: Any) -> int | str | None:
    _check_length(value)
    # Which words the option takes is among its limits.
    if value is None or type(value) is int or type(value) is str:
        return value
    raise TypeError(f"{shown(value)} is not an integer or a word")


def _texts(value: Any, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(type(item) is str for item in value):
        raise TypeError(f"{shown(value)} is not a list of texts")
    return tuple(value)


def build_converter() -> Converter:
    """A converter that forbids unknown keys and never coerces."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for primitive in _WORDS:
        converter.register_structure_hook(primitive, _strict)
    converter.register_structure_hook_func(lambda cls: cls == Mapping[str, str], _mapping)
    converter.register_structure_hook_func(lambda cls: cls == Mapping[str, Any], _json_mapping)
    converter.register_structure_hook_func(lambda cls: cls == tuple[str, ...], _texts)
    converter.register_structure_hook_func(lambda cls: cls == int | str | None, _optional_int_or_word)
    return converter


_CONVERTER = build_converter()


def structure(data: Mapping[str, Any], cls: type[T], converter: Converter = _CONVERTER) -> T:
    """Make an attrs object of a mapping.

    Raises:
        ConfigError: One problem per unknown key, missing key or wrong type, as `$.path: sentence`.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"$: {shown(data)} is not a mapping of options")
    try:
        return converter.structure(data, cls)
    except ClassValidationError as error:
        raise ConfigError(*_problems(error, "$")) from error


def _problems(error: BaseException, path: str) -> Iterator[str]:
    """Walk cattrs' tree of errors; its notes say to which attribute or index each branch belongs."""
    if isinstance(error, ClassValidationError):
        attributes, extra = error.group_exceptions()
        for cause, note in attributes:
            yield from _problems(cause, f"{path}.{note.name}")
        for other in extra:
            yield from _extra_problems(other, path)
    elif isinstance(error, IterableValidationError):
        items, _ = error.group_exceptions()
        for cause, place in items:
            yield from _problems(cause, f"{path}[{place.index!r}]")
    elif isinstance(error, _NestedError):
        for below, sentence in error.problems:
            yield f"{path}{below}: {sentence}"
    elif isinstance(error, KeyError):
        yield f"{path}: missing; it has no default"
    else:
        yield f"{path}: {error}"


def _extra_problems(error: BaseException, path: str) -> Iterator[str]:
    if not isinstance(error, ForbiddenExtraKeysError):
        yield f"{path}: {error}"
        return
    own = {option.name for option in fields(error.cl)}
    known = own | KNOWN_NAMES if error.cl is UserOptions else own
    for key in sorted(error.extra_fields, key=str):
        name = str(key)
        guess = did_you_mean(name, known - {name}, list_all=False) or did_you_mean(name, own, see=REFERENCE)
        yield f"{path}.{key}: no such option{guess}"


def structure_options(data: Mapping[str, Any]) -> UserOptions:
    """Make options of what a caller or a JSON file wrote; None everywhere means "decide for me".

    Raises:
        ConfigError: Every unknown key, wrong type and illegal value at once.
        NotServedError: The same, when each is merely something that this version does not serve.
    """
    problems: list[str] = []
    try:
        options = structure(data, UserOptions)
    except ConfigError as error:
        if not isinstance(data, Mapping):
            raise
        problems += error.problems
        # What is well-typed is still checked, so that one run shows all there is to mend.
        good = {key: value for key, value in data.items() if not _is_named(str(key), problems)}
        options = structure(good, UserOptions)
    problems += option_problems(options)
    not_served = unserved_problems(options)
    if problems or not_served:
        raise (ConfigError if problems else NotServedError)(*problems, *not_served)
    return options


def _is_named(key: str, problems: list[str]) -> bool:
    """Whether a problem is about this option or about something inside of it."""
    path = f"$.{key}"
    return any(problem.startswith((f"{path}:", f"{path}.", f"{path}[")) for problem in problems)


def options_to_json(options: UserOptions) -> str:
    """The options that were given, as canonical JSON (sorted keys, no spaces)."""
    data = {key: value for key, value in _CONVERTER.unstructure(options).items() if value is not None}
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def options_from_json(text: str) -> UserOptions:
    """The inverse of `options_to_json`.

    Raises:
        ConfigError: The text is no JSON, or as `structure_options`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"$: not JSON: {error}") from error
    return structure_options(data)
