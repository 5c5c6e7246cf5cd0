"""One decided setting: its value, where it came from, and what is wrong with it.

Does not: decide; `rules.py` and `resolve.py` do.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from attrs import frozen

from vtcore.config.engine_config import Origin

T = TypeVar("T")


@frozen(kw_only=True)
class Decision(Generic[T]):
    """A value with its origin.

    Args:
        value: As decided, also when there is a problem, so that the other settings can still be checked.
        problem: One sentence why the user's values cannot be; "" when they can.
        not_served: Sentences why this version does not serve the value; none when it does.
    """

    value: T
    origin: Origin
    problem: str = ""
    not_served: tuple[str, ...] = ()


@frozen
class Given(Generic[T]):
    """What the user said about an option, if anything.

    Args:
        value: None means "decide for me".
        origin: Of the value.
    """

    value: T | None
    origin: Origin

    @property
    def where(self) -> str:
        """As in " (from config file: a.toml)", for error sentences; "" when the user has just said it."""
        return f" (from {self.origin})" if self.origin.source in ("config file", "environment") else ""

    def origin_or(self, source: str, note: str = "") -> Origin:
        """The user's origin where there is a value, else the named one."""
        return Origin(source, note) if self.value is None else self.origin
