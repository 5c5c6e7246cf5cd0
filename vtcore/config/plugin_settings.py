"""Settings that a plugin declares as a frozen attrs class, made of what a user wrote.

Does not: know any plugin; it is told the class and how the settings are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, StructureHandlerNotFoundError

from vtcore.config.shown import shown
from vtcore.config.structure import build_converter, structure
from vtcore.errors import ConfigError, PluginError
from vtcore.suggest import did_you_mean


def _one_of(value: Any, wanted: Any) -> Any:
    """A member of an Enum, or one of a Literal's values."""
    members = list(wanted) if _is_enum(wanted) else []
    pairs = [(m.value, m) for m in members] or [(choice, choice) for choice in get_args(wanted)]
    # By type too: to Python 1, 1.0 and true are equal.
    for written, choice in pairs:
        if type(value) is type(written) and value == written:
            return choice
    raise ValueError(f"{shown(value)} is none of {', '.join(repr(written) for written, _ in pairs)}")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_literal(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is Literal


def _build_converter() -> Converter:
    converter = build_converter()
    converter.register_structure_hook_func(_is_literal, _one_of)
    converter.register_structure_hook_func(_is_enum, _one_of)
    return converter


_CONVERTER = _build_converter()


def check_settings_class(cls: Any, what: str) -> None:
    """See that a class can hold settings: frozen, made with attrs, and usable without any.

    Args:
        cls: What the plugin names.
        what: How the class is called in a sentence: "options_class of scheduler policy x".

    Raises:
        PluginError: It is no such class, a field has no default or a type that cannot be read from JSON, or
            its defaults are refused by its own validators.
    """
    remedy = "make it a class under @attrs.frozen whose every field has a default"
    if not isinstance(cls, type) or not attrs.has(cls):
        raise PluginError(f"{what} is {shown(cls)}, which is no attrs class; {remedy}")
    try:
        fields = attrs.fields(attrs.resolve_types(cls))
    except NameError as error:
        raise PluginError(
            f"{what}, {cls.__qualname__}, has a type that its module does not define: {error}"
        ) from error
    bare = [field.name for field in fields if field.init and field.default is attrs.NOTHING]
    if bare:
        raise PluginError(f"{what}, {cls.__qualname__}, has no default for {', '.join(bare)}; {remedy}")
    try:
        instance = cls()
    except Exception as error:
        raise PluginError(
            f"{what}, {cls.__qualname__}, refuses its own defaults: {type(error).__name__}: {error}"
        ) from error
    for field in fields:
        try:
            setattr(instance, field.name, None)
        except attrs.exceptions.FrozenError:
            continue
        except Exception:
            # Whatever a setter says: it was asked.
            pass
        raise PluginError(f"{what}, {cls.__qualname__}, is not frozen; {remedy}")
    try:
        for field in fields:
            _CONVERTER.get_structure_hook(Any if field.type is None else field.type)
    except StructureHandlerNotFoundError as error:
        raise PluginError(
            f"{what}, {cls.__qualname__}: no JSON can be read as {field.name}: {error}"
        ) from error


def read_settings(data: Mapping[str, Any], cls: type[Any], path: str) -> Any:
    """Make an instance of a class that `check_settings_class` accepts.

    Args:
        data: As the user wrote it: what JSON can say, keyed by the fields' names.
        path: Where it stands: "$.policy_config".

    Raises:
        ConfigError: Each unknown key, wrong type and refused value, as `path.key: sentence`.
        PluginError: The class fails on a value with something other than a ValueError or TypeError.
    """
    try:
        # A look at all of it first: types like Any let pass what JSON cannot say.
        copy = structure({"data": data}, _Json, _CONVERTER).data
    except ConfigError as error:
        raise ConfigError(*(path + problem.removeprefix("$.data") for problem in error.problems)) from error
    problems: list[str] = []
    good: dict[str, Any] = {}
    for key, value in copy.items():
        found = _problems_of(key, value, cls, path)
        problems += found
        if not found:
            good[key] = value
    try:
        settings = structure(good, cls, _CONVERTER)
    except ConfigError as error:
        # Each value alone, so that what a validator says is said of the value it refused.
        alone = [
            p for key, value in good.items() for p in _refusals_of({key: value}, cls, f"{path}.{key}", value)
        ]
        problems += alone or _refusals_of(good, cls, path, good)
        raise ConfigError(*problems) from error
    if problems:
        raise ConfigError(*problems)
    return settings


@attrs.frozen
class _Json:
    data: Mapping[str, Any]


def _problems_of(key: str, value: Any, cls: type[Any], path: str) -> list[str]:
    """Whether a key is known and its value of the field's type; a validator's refusal is not looked at."""
    known = [field.alias for field in attrs.fields(cls) if field.init]
    if key not in known:
        return [f"{path}.{key}: no such setting{did_you_mean(key, known)}"]
    problems = list(_misfits({key: value}, cls, path))
    if not problems:
        try:
            structure({key: value}, cls, _CONVERTER)
        except ConfigError as error:
            if not _raised_by_class(error):
                problems = [path + problem.removeprefix("$") for problem in error.problems]
    return problems


def _refusals_of(data: Mapping[str, Any], cls: type[Any], at: str, value: Any) -> list[str]:
    """What the class's validators say to well-typed values, with what is refused and a remedy."""
    try:
        structure(data, cls, _CONVERTER)
    except ConfigError as error:
        refusals = _raised_by_class(error)
        for refusal in refusals:
            if not isinstance(refusal, ValueError | TypeError):
                raise PluginError(
                    f"{at}: {cls.__qualname__} fails on {shown(value)}: {type(refusal).__name__}: {refusal}"
                ) from refusal
        # Validators of attrs add what they judged behind their sentence.
        sentences = [refusal.args[0] if refusal.args else "no reason is given" for refusal in refusals]
        remedy = "change it, or leave it out for the default"
        return [f"{at}: {shown(value)} is refused: {sentence}; {remedy}" for sentence in sentences]
    return []


def _raised_by_class(error: ConfigError) -> list[BaseException]:
    """What was raised while the object itself was made, not one of its values."""
    cause = error.__cause__
    if not isinstance(cause, ClassValidationError):
        return []
    return [one for one in cause.group_exceptions()[1] if not isinstance(one, ForbiddenExtraKeysError)]


def _misfits(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Mappings and lists that are neither; by itself the converter takes a text for a list of letters."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        if len(kinds) == 1 and value is not None:
            yield from _misfits(value, kinds[0], path)
    elif not isinstance(origin, type):
        return
    elif attrs.has(origin) or issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            yield f"{path}: {shown(value)} is not a mapping"
            return
        inner = get_args(kind)[1:]
        known = {field.alias: field.type for field in attrs.fields(origin)} if attrs.has(origin) else {}
        for key, item in value.items():
            yield from _misfits(item, known.get(key, inner[0] if inner else Any), f"{path}.{key}")
    elif issubclass(origin, Collection) and not issubclass(origin, str | bytes):
        if not isinstance(value, list | tuple):
            yield f"{path}: {shown(value)} is not a list"
            return
        inner = get_args(kind)[:1]
        for index, item in enumerate(value):
            yield from _misfits(item, inner[0] if inner else Any, f"{path}[{index}]")
