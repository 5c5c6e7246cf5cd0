"""The longest cached prefix that every pool can serve.

Does not: hold units, or change any order of eviction; looking is free of effects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

from attrs import frozen

from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.kv_cache.planner import PoolPlan
from vtcore.kv_cache.pool import UnitPool
from vtcore.kv_cache.spec_guard import SpecGuard
from vtcore.kv_cache.specs import RecurrentStateSpec


@frozen
class PrefixHit:
    """What a request can start from.

    Args:
        num_blocks: Leading blocks that need no computing.
        num_shared: Leading blocks that pools of blocks have, >= num_blocks; where states part from them.
        ids: By pool, the blocks (0 where not needed), or the one slot that holds the state after them.
    """

    num_blocks: int
    num_shared: int
    ids: tuple[tuple[int, ...], ...]


class HitFinder:
    """Asks the pools of one engine.

    Args:
        plans, pools: One of each per pool; borrowed.
        multiple: A hit is a multiple of so many blocks, >= 1.
    """

    def __init__(
        self, plans: Sequence[PoolPlan], pools: Sequence[UnitPool], guard: SpecGuard, multiple: int = 1
    ) -> None:
        self._plans = plans
        self._pools = pools
        self._guard = guard
        self._multiple = multiple
        every = [(i, spec) for i, plan in enumerate(plans) for spec in plan.specs]
        self._blocks = [(i, spec) for i, spec in every if not plans[i].is_slot]
        # Of blocks that are simply counted from the first one on, fewer are cached too: no second question.
        again = [(i, spec) for i, spec in every if type(spec).hit is not KVCacheSpec.hit or plans[i].is_slot]
        self._all = again if len(every) > len(self._blocks) else []

    def length(self, hashes: Sequence[bytes], limit: int) -> tuple[int, int]:
        """(num_blocks, num_shared) of a hit of at most `limit` blocks.

        The fixed point over pools, each of which may only shorten.
        """
        shared = self._fixed_point(self._blocks, hashes, limit)
        if not self._all or not shared:
            return shared, shared
        return self._fixed_point(self._all, hashes, shared), shared

    def find(self, hashes: Sequence[bytes], limit: int) -> PrefixHit:
        """The hit with its units."""
        length, shared = self.length(hashes, limit)
        if length:
            ids = [self._ids(index, hashes, length) for index in range(len(self._plans))]
            found = tuple(units for units in ids if units is not None)
            if len(found) == len(ids):
                return PrefixHit(length, shared, found)
        return PrefixHit(0, shared, tuple(() for _ in self._plans))

    def _fixed_point(
        self, asked: Sequence[tuple[int, KVCacheSpec]], hashes: Sequence[bytes], limit: int
    ) -> int:
        length, before = limit, -1
        while length != before and length:
            before = length
            # Slots last, and from the end: they are few, and what comes before is short by then.
            for index, spec in asked:
                by_hash = self._pools[index].by_hash
                if type(spec).hit is KVCacheSpec.hit:
                    length = _leading(self._pools[index], hashes, length)
                elif type(spec).hit is RecurrentStateSpec.hit:
                    length = _last(by_hash, hashes, length)
                else:
                    length = self._guard.hit(spec, partial(_is_cached, by_hash, hashes), length)
            # Whether the pools can serve the rounded length too is a question of its own.
            length -= length % self._multiple
            if len(asked) == 1 and self._multiple == 1:
                break
        return length

    def _ids(self, index: int, hashes: Sequence[bytes], length: int) -> tuple[int, ...] | None:
        """Units of one pool; None if one that is needed is not cached, whatever the spec said."""
        by_hash, plan = self._pools[index].by_hash, self._plans[index]
        if plan.is_slot:
            slot = by_hash.get(hashes[length - 1])
            return None if slot is None else (slot,)
        size = plan.specs[0].block_size
        needed = min(self._guard.first_needed(spec, length * size) for spec in plan.specs)
        ids = [by_hash.get(block_hash, 0) for block_hash in hashes[needed:length]]
        return None if 0 in ids else (*(0,) * needed, *ids)


def _is_cached(by_hash: Mapping[bytes, int], hashes: Sequence[bytes], block: int) -> bool:
    return hashes[block] in by_hash


def _last(by_hash: Mapping[bytes, int], hashes: Sequence[bytes], limit: int) -> int:
    """As `RecurrentStateSpec.hit`, without a call per block."""
    for block in range(limit - 1, -1, -1):
        if hashes[block] in by_hash:
            return block + 1
    return 0


def _leading(pool: UnitPool, hashes: Sequence[bytes], limit: int) -> int:
    """How many of the first `limit` hashes are cached without a gap."""
    by_hash = pool.by_hash
    if not pool.num_gaps:
        # A policy may ask this of many waiting prompts in one step, so few look-ups matter.
        return bisect_left(range(limit), True, key=lambda block: hashes[block] not in by_hash)
    for block in range(limit):
        if hashes[block] not in by_hash:
            return block
    return limit
