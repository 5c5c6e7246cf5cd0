"""Turns untyped mappings into options and back, reporting everything that is wrong at once, by path.

Does not: coerce (a text is no number, a boolean no integer) or resolve defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from attrs import fields
from cattrs import Converter
from cattrs.errors import (
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)

from vtcore.config.options import UserOptions, option_problems
from vtcore.errors import ConfigError
from vtcore.suggest import did_you_mean

T = TypeVar("T")

_WORDS: Mapping[type, str] = {int: "an integer", bool: "true or false", str: "a text", float: "a number"}


def _strict(value: Any, wanted: type[Any]) -> Any:
    if type(value) is wanted:
        return value
    if wanted is float and type(value) is int:
        return float(value)
    raise TypeError(f"{value!r} is not {_WORDS[wanted]}")


def _mapping(value: Any, _: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not a mapping of texts")
    if not all(type(item) is str for pair in value.items() for item in pair):
        raise TypeError(f"{dict(value)!r} is not a mapping of texts")
    return dict(value)


def _texts(value: Any, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(type(item) is str for item in value):
        raise TypeError(f"{value!r} is not a list of texts")
    return tuple(value)


def build_converter() -> Converter:
    """A converter that forbids unknown keys and never coerces."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for primitive in _WORDS:
        converter.register_structure_hook(primitive, _strict)
    converter.register_structure_hook_func(lambda cls: cls == Mapping[str, str], _mapping)
    converter.register_structure_hook_func(lambda cls: cls == tuple[str, ...], _texts)
    return converter


_CONVERTER = build_converter()


def structure(data: Mapping[str, Any], cls: type[T], converter: Converter = _CONVERTER) -> T:
    """Make an attrs object of a mapping.

    Raises:
        ConfigError: One problem per unknown key, missing key or wrong type, as `$.path: sentence`.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"$: {data!r} is not a mapping of options")
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
    elif isinstance(error, KeyError):
        yield f"{path}: missing; it has no default"
    else:
        yield f"{path}: {error}"


def _extra_problems(error: BaseException, path: str) -> Iterator[str]:
    if not isinstance(error, ForbiddenExtraKeysError):
        yield f"{path}: {error}"
        return
    known = [option.name for option in fields(error.cl)]
    for key in sorted(error.extra_fields, key=str):
        yield f"{path}.{key}: no such option{did_you_mean(str(key), known)}"


def structure_options(data: Mapping[str, Any]) -> UserOptions:
    """Make options of what a caller or a JSON file wrote; None everywhere means "decide for me".

    Raises:
        ConfigError: Every unknown key, wrong type and illegal value at once.
    """
    problems: list[str] = []
    try:
        options = structure(data, UserOptions)
    except ConfigError as error:
        if not isinstance(data, Mapping):
            raise
        problems += error.problems
        # What is well-typed is still checked, so that one run shows all there is to mend.
        bad = {problem.split(":", 1)[0].removeprefix("$.") for problem in problems}
        options = structure({key: value for key, value in data.items() if str(key) not in bad}, UserOptions)
    problems += option_problems(options)
    if problems:
        raise ConfigError(*problems)
    return options


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
    except json.JSONDecodeError as error:
        raise ConfigError(f"$: not JSON: {error}") from error
    return structure_options(data)
