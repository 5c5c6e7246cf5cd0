"""What requests hold of the pools: admission, growth, prefix hits, publication and release.

Does not: choose who is admitted or preempted. All lengths are tokens unless named otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from vtcore.interfaces.batch import CopyOp, TableDelta
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.kv_cache.block_hash import extend_hashes
from vtcore.kv_cache.planner import MemoryPlan, PoolPlan
from vtcore.kv_cache.pool import UnitPool

if TYPE_CHECKING:
    from vtcore.scheduling.request_state import RequestState


@frozen
class PrefixHit:
    """Cached blocks a request can start from: how many, and by pool their ids (0 where not needed)."""

    num_blocks: int
    ids: tuple[tuple[int, ...], ...]


class RequestMemory:
    """The pools and the rules of holding their units.

    Args:
        plan: Pools and sizes.
        prefix_caching: Whether full blocks are hashed, published and found.
        root: Parent hash of first blocks.
        lookahead: Positions beyond a query that the drafter may write.
    """

    def __init__(self, plan: MemoryPlan, prefix_caching: bool, root: bytes, lookahead: int) -> None:
        self.plans: tuple[PoolPlan, ...] = plan.pools
        self.pools = self._new_pools()
        self.block_size = plan.block_size
        self.lookahead = lookahead
        self.prefix_caching = prefix_caching
        self._root = root
        self._paged = [i for i, pool in enumerate(plan.pools) if not pool.is_slot]
        self._slot = [i for i, pool in enumerate(plan.pools) if pool.is_slot]
        self._whole = [i for i in self._paged if isinstance(plan.pools[i].lifetime, Whole)]
        self._window = [i for i in self._paged if i not in self._whole]

    @property
    def num_free(self) -> tuple[int, ...]:
        """Free units by pool."""
        return tuple(pool.num_free for pool in self.pools)

    @property
    def generation(self) -> int:
        """Changes whenever a hit may."""
        return sum(self.pools[i].generation for i in self._paged)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that cover `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def update_hashes(self, request: RequestState) -> None:
        """Hash the request's known full blocks."""
        if self.prefix_caching:
            extend_hashes(request.hashes, request.tokens, self.block_size, self._root)

    def find_hit(self, request: RequestState) -> PrefixHit:
        """The longest cached prefix that every pool can serve; pure.

        The fixed point over pools, each of which may only shorten; one token is left to compute.
        """
        empty = PrefixHit(0, tuple(() for _ in self.pools))
        if not self.prefix_caching or self._slot or not request.reads_cache:
            return empty
        limit = min((len(request.tokens) - 1) // self.block_size, len(request.hashes))
        length, before = limit, -1
        while length != before:
            before = length
            for index in self._paged:
                present = partial(self._present, index, request.hashes)
                for spec in self.plans[index].specs:
                    length = spec.hit(present, length)
        if length == 0:
            return empty
        return PrefixHit(
            length, tuple(self._hit_ids(i, request.hashes, length) for i in range(len(self.pools)))
        )

    def admit(self, request: RequestState, hit: PrefixHit) -> tuple[CopyOp, ...] | None:
        """Give a request its slots and the blocks of its whole known sequence with look-ahead.

        Returns:
            Copies that must run before its first forward; None when a pool is short, with nothing held.
        """
        upto = min(len(request.tokens) + self.lookahead, request.limit - 1)
        total = self.num_blocks(upto)
        for index in self._whole:
            pool, ids = self.pools[index], hit.ids[index]
            if total - hit.num_blocks > pool.num_free - pool.num_unheld(ids):
                return None
        if any(self.pools[i].num_free < self.plans[i].slots_per_request for i in self._slot):
            return None
        request.blocks = [list(ids) for ids in hit.ids]
        request.slots = [[] for _ in self.pools]
        request.first_needed = [0] * len(self.pools)
        for index in self._paged:
            self.pools[index].hold(unit for unit in hit.ids[index] if unit)
            request.first_needed[index] = sum(1 for unit in hit.ids[index] if not unit)
        for index in self._whole:
            request.blocks[index] += self.pools[index].allocate(total - hit.num_blocks)
        copies = []
        for index in self._slot:
            request.slots[index] = self.pools[index].allocate(self.plans[index].slots_per_request)
            copies.append(CopyOp(index, 0, request.slots[index][0]))
        request.published = hit.num_blocks
        return tuple(copies)

    def cuts(self, start: int, end: int) -> tuple[int, ...]:
        """Positions in (start, end) that no prefill chunk may cross, of every group; ascending."""
        found: set[int] = set()
        for plan in self.plans:
            for spec in plan.specs:
                found.update(spec.cuts(start, end, self.block_size))
        return tuple(sorted(found))

    def missing(self, request: RequestState, upto: int) -> list[int]:
        """Blocks to allocate, by pool, before the tables cover `upto` tokens."""
        total = self.num_blocks(upto)
        return [
            max(0, total - len(request.blocks[i])) if i in self._paged else 0 for i in range(len(self.pools))
        ]

    def fits(self, wants: Iterable[Sequence[int]]) -> bool:
        """Whether all `missing` results together can be allocated."""
        totals = [0] * len(self.pools)
        for want in wants:
            for index, count in enumerate(want):
                totals[index] += count
        return all(total <= pool.num_free for total, pool in zip(totals, self.pools, strict=True))

    def extend(self, request: RequestState, want: Sequence[int]) -> list[TableDelta]:
        """Allocate `want` blocks by pool, which fit; returns the table entries that changed."""
        deltas = []
        for index, count in enumerate(want):
            if not count:
                continue
            table = request.blocks[index]
            for unit in self.pools[index].allocate(count):
                deltas.append(TableDelta(index, request.row, len(table), unit))
                table.append(unit)
        return deltas

    def covered(self, request: RequestState) -> int:
        """Tokens that the tables cover in every paged pool."""
        if not self._paged:
            return request.limit
        return min(len(request.blocks[i]) for i in self._paged) * self.block_size

    def publish(self, request: RequestState) -> None:
        """Offer the request's full, computed and known blocks to the cache."""
        if not self.prefix_caching:
            return
        end = min(request.computed, len(request.tokens)) // self.block_size
        if end <= request.published:
            return
        self.update_hashes(request)
        for index in self._paged:
            pool, table = self.pools[index], request.blocks[index]
            for block in range(request.published, end):
                if table[block]:
                    pool.publish(table[block], request.hashes[block])
        request.published = end

    def drop_behind(self, request: RequestState) -> list[TableDelta]:
        """Free blocks that no later query reads, by the committed length."""
        deltas: list[TableDelta] = []
        for index in self._window:
            start = min(spec.needed(request.computed).start for spec in self.plans[index].specs)
            table = request.blocks[index]
            for block in range(request.first_needed[index], min(start, len(table))):
                if table[block]:
                    self.pools[index].free((table[block],))
                table[block] = 0
                deltas.append(TableDelta(index, request.row, block, 0))
            request.first_needed[index] = max(request.first_needed[index], min(start, len(table)))
        return deltas

    def freeable(self, requests: Sequence[RequestState]) -> tuple[int, ...]:
        """Units by pool that become free if all of `requests` let go: those with no other reference."""
        counts = []
        for index, pool in enumerate(self.pools):
            held = Counter(u for r in requests for u in (*r.blocks[index], *r.slots[index]) if u)
            counts.append(sum(pool.ref[unit] == times for unit, times in held.items()))
        return tuple(counts)

    def release(self, request: RequestState) -> None:
        """Let go of everything the request holds, the end of its sequence first to be reused."""
        for index, pool in enumerate(self.pools):
            pool.free(unit for unit in reversed(request.blocks[index]) if unit)
            pool.free(request.slots[index])
        request.blocks, request.slots, request.first_needed = [], [], []
        request.published = 0

    def _new_pools(self) -> list[UnitPool]:
        return [UnitPool(plan.num_units) for plan in self.plans]

    def reset(self) -> None:
        """Free every unit and forget every hash, whoever holds what."""
        generation = self.generation
        self.pools = self._new_pools()
        for pool in self.pools:
            pool.generation = generation + 1

    def check(self, running: Sequence[RequestState]) -> None:
        """Assert each pool's partition, and that live slots have one holder."""
        for index, pool in enumerate(self.pools):
            pool.check(dict(Counter(u for r in running for u in (*r.blocks[index], *r.slots[index]) if u)))
            if self.plans[index].is_slot:
                assert all(count <= 1 for count in pool.ref), f"a slot of pool {index} has two owners"

    def _present(self, index: int, hashes: Sequence[bytes], block: int) -> bool:
        return self.pools[index].find(hashes[block]) is not None

    def _hit_ids(self, index: int, hashes: Sequence[bytes], length: int) -> tuple[int, ...]:
        if index not in self._paged:
            return ()
        needed = min(spec.needed(length * self.block_size).start for spec in self.plans[index].specs)
        pool = self.pools[index]
        return tuple(0 if block < needed else pool.by_hash[hashes[block]] for block in range(length))
