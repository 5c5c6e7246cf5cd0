"""Reads an option's value from text: an environment variable, a flag, a quoted value of a YAML file.

Does not: check limits or choices; `options.py` does, whatever the value came from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, get_type_hints

from vtcore.config.options import UserOptions
from vtcore.config.shown import shown

MAX_DIGITS = 40
"""Longest number that is read: far beyond any option's limit, far below what Python itself refuses."""

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_HUMAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])", re.ASCII)
_BOOLS: Mapping[str, bool] = {
    "true": True,
    "1": True,
    "on": True,
    "false": False,
    "0": False,
    "off": False,
}
_KINDS: Mapping[Any, str] = {
    str | None: "text",
    bool | None: "bool",
    int | None: "int",
    float | None: "float",
    int | str | None: "int or word",
    tuple[str, ...] | None: "texts",
    Mapping[str, str] | None: "mapping",
    Mapping[str, Any] | None: "mapping",
}
KINDS: Mapping[str, str] = {name: _KINDS[hint] for name, hint in get_type_hints(UserOptions).items()}
"""Option -> "text", "bool", "int", "float", "int or word", "texts" (a tuple) or "mapping"."""


def parse_int(text: str) -> int:
    """Read a whole number: 4096, 32k = 32,000, 25.6k = 25,600, 1K = 1,024, 4G = 4 * 2**30.

    Args:
        text: ASCII digits; k, m, g, t count in thousands and K, M, G, T in 1,024s, which take no decimals.

    Raises:
        ValueError: Another text, or a number that is not whole.

    Source: vLLM engine/arg_utils.py, human_readable_int.
    """
    if _INT.fullmatch(text) and len(text) <= MAX_DIGITS:
        return int(text)
    found = _HUMAN.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if found is None:
        raise ValueError(f"{shown(text)} is not an integer such as 4096, 32k (32,000) or 32K (32,768)")
    digits, unit = found.groups()
    if unit in _BINARY:
        if "." in digits:
            raise ValueError(
                f"{shown(text)} has decimals with a unit of 1,024s; write {digits}{unit.lower()} for "
                f"thousands"
            )
        return int(digits) * _BINARY[unit]
    number = Decimal(digits) * _DECIMAL[unit]
    if number != int(number):
        raise ValueError(f"{shown(text)} is {number.normalize():f}, not a whole number")
    return int(number)


def parse_float(text: str) -> float:
    """Read a finite number.

    Raises:
        ValueError: Another text, an infinity or NaN.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{shown(text)} is not a number")
    return number


def parse_bool(text: str) -> bool:
    """Read true, 1, on, false, 0 or off, in any case.

    Raises:
        ValueError: Another text.
    """
    if text.lower() not in _BOOLS:
        raise ValueError(f"{shown(text)} is not true or false (also 1, 0, on, off)")
    return _BOOLS[text.lower()]


def parse_texts(text: str) -> tuple[str, ...]:
    """Read texts between commas; blanks around each are dropped.

    Raises:
        ValueError: An item is empty or repeated.
    """
    items = tuple(item.strip() for item in text.split(","))
    if "" in items or len(set(items)) < len(items):
        raise ValueError(f"{shown(text)} has an empty or repeated item; write texts between commas")
    return items


def parse_mapping(text: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: No JSON, no object, or a key given twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_int=_json_int)
    except RecursionError:
        raise ValueError("the JSON object is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{shown(text)} is not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{shown(text)} is not a JSON object")
    return value


def _json_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the JSON object has an integer of {len(digits)} digits; lower it")
    return int(digits)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"the JSON object has the key {shown(repeated)} twice")
    return value


def _int_or_word(text: str) -> int | str:
    # A word is letters only; whether it is one of the option's words is checked with the other limits.
    return text if text.isalpha() else parse_int(text)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "bool": parse_bool,
    "int": parse_int,
    "float": parse_float,
    "int or word": _int_or_word,
    "texts": parse_texts,
    "mapping": parse_mapping,
}


def parse_value(option: str, text: str) -> Any:
    """Read the value of an option.

    Args:
        option: Name of a field of `UserOptions`.
        text: As the user wrote it; blanks around it are kept in texts and dropped elsewhere.

    Returns:
        The value, well-typed; its limits are unchecked.

    Raises:
        ValueError: The text is no value of the option's type; the message names the text, not the option.
    """
    kind = KINDS[option]
    return _PARSERS[kind](text if kind == "text" else text.strip())
