"""Reads the small JSON files of a checkpoint and says where a broken one is broken.

Does not: judge what the values mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vtcore.errors import CheckpointError

_REMEDY = "mend the file, or fetch it again"


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a UTF-8 JSON file whose outermost value is an object.

    Raises:
        CheckpointError: The file cannot be read, is not UTF-8, is not JSON (with line and column), or is no
            object.
    """
    try:
        # Editors on Windows put a mark in front.
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is not UTF-8 text: bad byte at offset {error.start}; {_REMEDY}"
        ) from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}; {_REMEDY}"
        ) from error
    except (ValueError, RecursionError) as error:
        # Python reads no integer of more than some thousand digits.
        what = (
            "it is nested too deeply" if isinstance(error, RecursionError) else "a number in it is too long"
        )
        raise CheckpointError(f"{path} is not usable JSON: {what}; {_REMEDY}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, found {_kind(value)}; {_REMEDY}")
    return value


def read_json_object_if_present(path: Path) -> dict[str, Any]:
    """`read_json_object`, or an empty dict when there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")
