"""Values that every layer of a step needs and only the first computes.

Does not: outlive the step object the values are kept on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from vtcore.interfaces.step import PagedPool, StepInputs

Value = TypeVar("Value")


def once(owner: StepInputs | PagedPool, key: Hashable, make: Callable[[], Value]) -> Value:
    """The value kept on `owner` under `key`, made at the first call."""
    kept = owner.__dict__.setdefault("_once", {})
    if key not in kept:
        kept[key] = make()
    return cast("Value", kept[key])
