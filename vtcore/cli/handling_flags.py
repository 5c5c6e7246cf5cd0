"""The flags that say how requests are queued and cached: priority, tenant, policy_args, cache_salt.

Does not: ask the scheduler policy about its arguments; the engine does, once there is one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from vtcore.cli.engine_flags import merged_mapping
from vtcore.cli.flag_words import MAPPING_METAVAR
from vtcore.config.text_values import parse_int
from vtcore.errors import ConfigError, RequestError
from vtcore.request_handling import HANDLING_NAMES, Handling, check_handling

_ABOUT: Mapping[str, tuple[str, str]] = {
    "priority": ("N", "smaller goes first under the policy priority; fcfs does not look at it; default 0"),
    "tenant": ("TEXT", "whose requests these are, for policies that share between tenants"),
    "policy_args": (MAPPING_METAVAR, "what else the scheduler policy takes with a request"),
    "cache_salt": ("TEXT", "share cached prefixes only with requests of the same salt"),
}
"""Field of `Handling` -> metavar and help of its flag."""


def add_handling_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field of `Handling`."""
    group = parser.add_argument_group("queue and cache (nothing here changes the output)")
    for name, (metavar, about) in _ABOUT.items():
        how: dict[str, Any] = {"action": "append"} if metavar == MAPPING_METAVAR else {}
        group.add_argument(_flag(name), dest=name, metavar=metavar, default=None, help=about, **how)


def handling_from_args(args: argparse.Namespace) -> Handling:
    """What the flags say; a command without them has the defaults.

    Raises:
        ConfigError: Values have a wrong form or are outside their range; all are named at once.
    """
    given: dict[str, Any] = {}
    problems: list[str] = []
    for name in HANDLING_NAMES:
        value = vars(args).get(name)
        if value is None:
            continue
        try:
            given[name] = _read(name, value)
            check_handling(Handling(**{name: given[name]}))
        except ValueError as error:
            problems.append(f"{_flag(name)}: {error}")
        except RequestError as error:
            problems.append(_named(name, str(error)))
    if problems:
        raise ConfigError(*problems)
    return Handling(**given)


def _named(name: str, sentence: str) -> str:
    """`tenant has ...` with the flag for the name, and `priority=x is ...` as other flags' sentences are."""
    rest = sentence.removeprefix(name)
    return f"{_flag(name)}: {rest[1:]}" if rest.startswith("=") else _flag(name) + rest


def _read(name: str, value: Any) -> Any:
    if name == "policy_args":
        return merged_mapping(value, strict=True)
    return parse_int(value) if _ABOUT[name][0] == "N" else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
