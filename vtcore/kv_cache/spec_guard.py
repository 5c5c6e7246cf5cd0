"""Asks cache specs what they are asked while requests run, and checks the answers.

Does not: decide anything. A bad answer costs the spec its say: no hit, no cut, nothing freed before its
lifetime allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Window

log = logging.getLogger(__name__)
T = TypeVar("T")
"""What a spec is asked for."""


class SpecGuard:
    """The specs of an engine as its memory may use them.

    Attributes:
        breaches: Bad answers so far; the first one of each kind and question is logged.
    """

    def __init__(self) -> None:
        self.breaches = 0
        self._logged: set[tuple[str, str]] = set()

    def hit(self, spec: KVCacheSpec, present: Callable[[int], bool], limit: int) -> int:
        """Longest usable prefix, 0 to `limit` blocks."""

        def ask() -> int:
            blocks = spec.hit(present, limit)
            if type(blocks) is not int or not 0 <= blocks <= limit:
                raise ValueError(f"{blocks!r} is no number of blocks from 0 to {limit}")
            return blocks

        return self._ask(spec, "hit", ask, 0)

    def first_needed(self, spec: KVCacheSpec, num_committed: int) -> int:
        """First block that a query after `num_committed` tokens may read."""

        def ask() -> int:
            needed = spec.needed(num_committed)
            end = -(-num_committed // spec.block_size)
            if type(needed) is not range or not 0 <= needed.start <= end:
                raise ValueError(f"{needed!r} is no range that starts from 0 to {end}")
            return needed.start

        return self._ask(spec, "needed", ask, _first_in_window(spec, num_committed))

    def cuts(self, spec: KVCacheSpec, start: int, end: int, grid: int) -> Iterable[int]:
        """Positions inside (start, end) where a chunk must end."""

        def ask() -> Iterable[int]:
            cuts = tuple(spec.cuts(start, end, grid))
            if not all(type(cut) is int and start < cut < end for cut in cuts):
                raise ValueError(f"{cuts!r} are no positions inside ({start}, {end})")
            return cuts

        return self._ask(spec, "cuts", ask, ())

    def _ask(self, spec: KVCacheSpec, question: str, ask: Callable[[], T], fallback: T) -> T:
        try:
            return ask()
        except (Exception, SystemExit) as error:
            self.breaches += 1
            if (spec.kind, question) not in self._logged:
                self._logged.add((spec.kind, question))
                log.warning("KV-cache spec %s: %s: %s", spec.kind, question, error)
            return fallback


def _first_in_window(spec: KVCacheSpec, num_committed: int) -> int:
    """What the lifetime alone says; a pool sized for windows cannot keep more of every request."""
    lifetime = spec.lifetime
    if not isinstance(lifetime, Window):
        return 0
    return max(0, num_committed - lifetime.tokens + 1) // spec.block_size
