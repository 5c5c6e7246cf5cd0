"""The frozen descriptions that hooks return: a name, what it matches, and where its implementation is.

Does not: import the implementation; the registry does that when it is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from attrs import Attribute, field, frozen

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _check_name(entry: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{attribute.name} is {value!r}, not a word of letters, digits, '_', '-' and '.'")


def _check_path(entry: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not _DOTTED_PATH.fullmatch(value):
        raise ValueError(
            f"{attribute.name} is {value!r}, not a dotted path of the form 'package.module:Class'"
        )


def _check_text(entry: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{attribute.name} is {value!r}, not a text")


def _check_flag(entry: object, attribute: Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{attribute.name} is {value!r}, not True or False")


def _names(value: Any) -> Any:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _check_names(entry: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, str) and _NAME.fullmatch(v) for v in value):
        raise ValueError(f"{attribute.name} is {value!r}, not a sequence of names")


@frozen(kw_only=True)
class ArchEntry:
    """One model architecture. It must match something: architectures, model types or both.

    Args:
        name: Registry name of the arch, owned by one distribution.
        architectures: Values of `architectures` in config.json that this arch serves; asked first.
        model_types: Values of the outer `model_type` that this arch serves; asked second.
        implementation: `package.module:Class`, a `ModelArch`.
        description: One line for `vtcore plugins list`.
    """

    name: str = field(validator=_check_name)
    architectures: tuple[str, ...] = field(default=(), converter=_names, validator=_check_names)
    model_types: tuple[str, ...] = field(default=(), converter=_names, validator=_check_names)
    implementation: str = field(validator=_check_path)
    description: str = field(default="", validator=_check_text)

    def __attrs_post_init__(self) -> None:
        if not self.architectures and not self.model_types:
            raise ValueError("architectures and model_types are both empty, so no checkpoint could match")


@frozen(kw_only=True)
class KVCacheSpecEntry:
    """One kind of KV-cache spec.

    Args:
        name: Registry name; equals the class's `kind`.
        implementation: `package.module:Class`, a `KVCacheSpec`.
        description: One line for `vtcore plugins list`.
    """

    name: str = field(validator=_check_name)
    implementation: str = field(validator=_check_path)
    description: str = field(default="", validator=_check_text)


@frozen(kw_only=True)
class SchedulerPolicyEntry:
    """One scheduler policy.

    Args:
        name: Registry name; the value of the option `scheduling_policy`.
        implementation: `package.module:Class`, a `SchedulerPolicy`.
        description: One line for `vtcore plugins list`.
    """

    name: str = field(validator=_check_name)
    implementation: str = field(validator=_check_path)
    description: str = field(default="", validator=_check_text)


@frozen(kw_only=True)
class CheckpointSourceEntry:
    """One checkpoint source.

    Args:
        name: Registry name; MODEL reaches the source as `NAME` or `NAME://...`.
        implementation: `package.module:Class`, a `CheckpointSource`.
        serves_bare_ids: It serves a MODEL that is neither a directory nor a name or URI of a source. One
            source at most does.
        description: One line for `vtcore plugins list`.
    """

    name: str = field(validator=_check_name)
    implementation: str = field(validator=_check_path)
    serves_bare_ids: bool = field(default=False, validator=_check_flag)
    description: str = field(default="", validator=_check_text)


Entry = ArchEntry | KVCacheSpecEntry | SchedulerPolicyEntry | CheckpointSourceEntry
"""Any description a hook may return."""
