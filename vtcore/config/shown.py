"""How a user's value stands in a sentence: as Python writes it, but never long and never slow.

Does not: judge the value.
"""

from __future__ import annotations

import datetime
from reprlib import Repr
from typing import Any

MAX_INT_BITS = 64
"""Longest integer of any option; Python cannot even print one of more than 4300 digits."""


class _Short(Repr):
    """Python's own shortener, which by itself stops at integers that are too long to print."""

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 4 * MAX_INT_BITS:
            return f"an integer of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def repr_date(self, x: datetime.date, level: int) -> str:
        return f"the date {x.isoformat()}"

    def repr_time(self, x: datetime.time, level: int) -> str:
        return f"the time {x.isoformat()}"

    # `Repr` finds these by the name of a value's class; TOML and YAML have dates of their own.
    repr_datetime = repr_date


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlevel = 2


def shown(value: Any) -> str:
    """The value in at most a few hundred characters."""
    return _SHORT.repr(value)
