"""Copies what a caller sends into plain data: dicts, lists, texts, numbers, nothing with methods of its own.

Does not: know messages; messages.py says what must be in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from vtcore.errors import RequestError
from vtcore.tokenization.template_limits import MAX_SIZE

MAX_DEPTH = 64
"""Levels of lists and objects in one value; tool schemas have about ten."""


def to_plain(value: Any, path: str, depth: int = 0) -> Any:
    """A deep copy in plain data; the caller's objects are never seen by a template.

    Args:
        value: JSON-like data; objects of pydantic (as OpenAI's client returns) and attrs count as mappings.
        path: How an error names it.

    Raises:
        RequestError: Something in it is no JSON, or it nests too deeply, or a text is too long.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _plain_text(value, path)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RequestError(f"{path}: {float(value)} is no JSON; send a finite number, or a text")
        return float(value)
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        value = _as_mapping(value, path)
    for key in value:
        if not isinstance(key, str):
            raise RequestError(f"{path}: the key {key!r} is no text")
    return {str(key): to_plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}


def _plain_text(value: str, path: str) -> str:
    if len(value) > MAX_SIZE:
        raise RequestError(f"{path}: {len(value):,} characters, at most {MAX_SIZE:,} are served")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{path}: a lone surrogate at character {error.start}; send valid text") from error
    return str.__str__(value)


def _as_mapping(value: Any, path: str) -> Mapping[str, Any]:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        found = dump()
        if isinstance(found, Mapping):
            return found
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise RequestError(
        f"{path}: type {type(value).__name__} is no JSON; send texts, numbers, lists and objects"
    )
