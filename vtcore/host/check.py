"""One row of the doctor's report.

Does not: gather facts or judge them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen

Status = Literal["ok", "note", "warning", "error"]


@frozen
class Check:
    """What was looked at, and what it means.

    Args:
        name: What was looked at; the same word for every row of one subject.
        status: "ok"; "note", nothing to do unless it is wanted; "warning", works but not as it should;
            "error", something does not work.
        message: One sentence with the facts.
        remedy: A command or a setting that mends it; "" for "ok".
    """

    name: str
    status: Status
    message: str
    remedy: str = ""


def count(checks: Iterable[Check], status: Status) -> int:
    """How many rows have that status."""
    return sum(check.status == status for check in checks)
