"""What requests hold of the pools: admission, growth, forks, publication and release.

Does not: choose who is admitted or preempted. All lengths are tokens unless named otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vtcore.errors import EngineError
from vtcore.interfaces.batch import Checkpoint, CopyOp, TableDelta
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.kv_cache.block_hash import extend_hashes, salted_root
from vtcore.kv_cache.planner import MemoryPlan, PoolPlan
from vtcore.kv_cache.pool import UnitPool
from vtcore.kv_cache.prefix_hit import HitFinder, PrefixHit
from vtcore.kv_cache.spec_guard import SpecGuard
from vtcore.kv_cache.state_checkpoints import checkpoint_positions
from vtcore.kv_cache.state_pool import StatePool

if TYPE_CHECKING:
    from vtcore.scheduling.request_state import RequestState


class RequestMemory:
    """The pools and the rules of holding their units.

    Args:
        plan: Pools and sizes.
        prefix_caching: Whether full blocks are hashed, published and found.
        root: Parent hash of first blocks.
        lookahead: Positions beyond a query that the drafter may write.
        checkpoint_interval: Tokens between state checkpoints inside a long prompt, >= 1.

    Attributes:
        grid: Tokens between positions at which states may be kept; 0 where none are.
        chunk: As of the plan. Above 1 only prompts are published: what decoding computes has other bits.
        guard: Checks what specs answer.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        prefix_caching: bool,
        root: bytes,
        lookahead: int,
        checkpoint_interval: int = 2048,
    ) -> None:
        self.plans: tuple[PoolPlan, ...] = plan.pools
        self.block_size = plan.block_size
        self.lookahead = lookahead
        self.prefix_caching = prefix_caching
        self.guard = SpecGuard()
        keeps_states = prefix_caching and any(pool.num_checkpoints for pool in plan.pools)
        self.grid = plan.grid if keeps_states else 0
        self.chunk = plan.chunk
        self._hit_blocks = plan.hit_blocks
        self._root = root
        self._checkpoint_interval = checkpoint_interval
        self._paged = [i for i, pool in enumerate(plan.pools) if not pool.is_slot]
        self._slot = [i for i, pool in enumerate(plan.pools) if pool.is_slot]
        self._whole = [i for i in self._paged if isinstance(plan.pools[i].lifetime, Whole)]
        self._window = [i for i in self._paged if i not in self._whole]
        self._restored: list[tuple[int, int]] = []
        self._start_pools()

    @property
    def num_free(self) -> tuple[int, ...]:
        """Free units by pool."""
        return tuple(pool.num_free for pool in self.pools)

    @property
    def generation(self) -> int:
        """Changes whenever a hit may."""
        return sum(pool.generation for pool in self.pools)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that cover `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def update_hashes(self, request: RequestState) -> None:
        """Hash the request's known full blocks."""
        if self.prefix_caching:
            root = salted_root(self._root, request.req.cache_salt)
            extend_hashes(request.hashes, request.tokens, self.block_size, root)

    def find_hit(self, request: RequestState) -> PrefixHit:
        """The longest cached prefix that every pool can serve; pure, and one token is left to compute."""
        return self._finder.find(request.hashes, self._hit_limit(request))

    def num_cached_blocks(self, request: RequestState) -> int:
        """The length of that prefix alone, in blocks."""
        return self._finder.length(request.hashes, self._hit_limit(request))[0]

    def _hit_limit(self, request: RequestState) -> int:
        if not self.prefix_caching or not request.reads_cache:
            return 0
        return min((len(request.tokens) - 1) // self.block_size, len(request.hashes))

    def admit(self, request: RequestState, hit: PrefixHit) -> tuple[CopyOp, ...] | None:
        """Give a request its slots and the blocks of its whole known sequence with look-ahead.

        A checkpoint that is restored is held until `end_schedule`, so that no new one takes its slot.

        Returns:
            Copies that must run before its first forward; None when a pool is short, with nothing held.
        """
        upto = min(len(request.tokens) + self.lookahead, request.limit - 1)
        total = self.num_blocks(upto)
        for index in self._whole:
            pool, ids = self.pools[index], hit.ids[index]
            # Cached blocks that nobody holds are counted as free until they are held.
            if total - hit.num_blocks > pool.num_free - pool.num_unheld(ids):
                return None
        if any(self.pools[i].num_free < self.plans[i].slots_per_request for i in self._slot):
            return None
        request.blocks = [[] if i in self._slot else list(ids) for i, ids in enumerate(hit.ids)]
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
            source = hit.ids[index][0] if hit.num_blocks else 0
            if source:
                self.pools[index].hold((source,))
                self._restored.append((index, source))
            copies.append(CopyOp(index, source, request.slots[index][0]))
        request.published = hit.num_blocks
        return tuple(copies)

    def end_schedule(self) -> None:
        """Let go of the checkpoints that this step restores; they become the most recently used ones."""
        for index, unit in self._restored:
            self.pools[index].free((unit,))
        self._restored = []

    def fork(self, leader: RequestState, child: RequestState) -> tuple[CopyOp, ...] | None:
        """Give a request everything that `leader` has after their common, wholly computed prompt.

        Full blocks are shared; the last, partly filled block and the state are copied.

        Returns:
            Copies that must run after the forward that ends the prompt and before the next one; None when a
            pool is short, with nothing held.
        """
        known = len(child.tokens)
        full = known // self.block_size
        own = self.num_blocks(min(known + self.lookahead, child.limit - 1)) - full
        if any(self.pools[i].num_free < own for i in self._paged):
            return None
        if any(self.pools[i].num_free < self.plans[i].slots_per_request for i in self._slot):
            return None
        copies = []
        child.blocks, child.slots = [[] for _ in self.pools], [[] for _ in self.pools]
        child.first_needed = list(leader.first_needed)
        for index in self._paged:
            pool, table = self.pools[index], leader.blocks[index]
            pool.hold(unit for unit in table[:full] if unit)
            child.blocks[index] = [*table[:full], *pool.allocate(own)]
            if known % self.block_size:
                copies.append(CopyOp(index, table[full], child.blocks[index][full]))
        for index in self._slot:
            child.slots[index] = self.pools[index].allocate(self.plans[index].slots_per_request)
            copies.append(CopyOp(index, leader.slots[index][0], child.slots[index][0]))
        child.published = leader.published
        return tuple(copies)

    def cuts(self, start: int, end: int) -> tuple[int, ...]:
        """Positions in (start, end) that no prefill chunk may cross, of every group; ascending."""
        found: set[int] = set()
        for plan in self.plans:
            for spec in plan.specs:
                found.update(self.guard.cuts(spec, start, end, self.block_size))
        return tuple(sorted(found))

    def checkpoint_positions(self, request: RequestState, hit: PrefixHit) -> tuple[int, ...]:
        """Where the request's prompt should be cut so that its states can be kept; none without a budget."""
        if not self.grid or not request.may_publish:
            return ()
        return checkpoint_positions(
            hit.num_blocks * self.block_size,
            len(request.tokens),
            self.grid,
            self._checkpoint_interval,
            hit.num_shared * self.block_size,
        )

    def wants_state(self, request: RequestState, position: int) -> bool:
        """Whether the request's state after `position` tokens would be of use and nobody keeps it."""
        block_hash = self._hash_before(request, position)
        if not request.may_publish or (self.chunk > 1 and position > request.num_prompt):
            return False
        return block_hash is None or not self._states.has_or_awaits(block_hash)

    def take_checkpoint(self, request: RequestState, position: int) -> Checkpoint | None:
        """A slot for the request's state after `position` tokens, held until `put_checkpoint`.

        Returns:
            None when no slot is to be had.
        """
        if position > request.num_prompt and request.decode_checkpoint is not None:
            # While decoding only the newest state of a request is worth a place: its next turn starts there.
            self._states.demote(*request.decode_checkpoint)
        dst = self._states.take_checkpoint(self._hash_before(request, position))
        return None if dst is None else Checkpoint(self._slot[0], request.row, position, dst)

    def _hash_before(self, request: RequestState, position: int) -> bytes | None:
        """Hash of the block that ends at `position`; None while not all of its tokens are known."""
        block = position // self.block_size - 1
        return request.hashes[block] if block < len(request.hashes) else None

    def put_checkpoint(self, checkpoint: Checkpoint, request: RequestState | None) -> bool:
        """Publish a checkpoint that was written, or with None give its slot back; whether it is kept."""
        pool = self._states
        if request is not None:
            self.update_hashes(request)
            pool.publish(checkpoint.dst, request.hashes[checkpoint.position // self.block_size - 1])
        block_hash = pool.hash_of[checkpoint.dst]
        pool.free((checkpoint.dst,))
        if request is None or block_hash is None:
            return False
        if checkpoint.position > request.num_prompt:
            request.decode_checkpoint = (checkpoint.dst, block_hash)
        return True

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
        """Allocate `want` blocks by pool, which fit; returns the table entries that changed.

        Raises:
            EngineError: A bounded pool is short: a spec's `max_units` is less than its requests need.
        """
        deltas = []
        for index, count in enumerate(want):
            if not count:
                continue
            table = request.blocks[index]
            self._check_bounded(index, request, count)
            for unit in self.pools[index].allocate(count):
                deltas.append(TableDelta(index, request.row, len(table), unit))
                table.append(unit)
        return deltas

    def check_bounded(self, requests: Iterable[RequestState], query: int) -> None:
        """What an engine that is stuck asks: whether a bounded pool cannot give a request its next blocks.

        Args:
            query: Tokens of a step of one decoding request.

        Raises:
            EngineError: As `extend`.
        """
        for request in requests:
            upto = min(request.computed + query + self.lookahead, request.limit - 1)
            for index, count in enumerate(self.missing(request, upto)):
                self._check_bounded(index, request, count)

    def _check_bounded(self, index: int, request: RequestState, count: int) -> None:
        pool, plan = self.pools[index], self.plans[index]
        if index not in self._window or count <= pool.num_free:
            return
        live = sum(1 for unit in request.blocks[index] if unit) + count
        raise EngineError(
            f"KV-cache spec {' or '.join(plan.owners)}: max_units is too small: a request needs {live} live "
            f"blocks, and of the pool's {plan.num_units - 1}, sized by max_units for max_num_seqs requests, "
            f"{pool.num_free} are free; upgrade the plugin, or report it to its authors"
        )

    def covered(self, request: RequestState) -> int:
        """Tokens that the tables cover in every paged pool."""
        if not self._paged:
            return request.limit
        return min(len(request.blocks[i]) for i in self._paged) * self.block_size

    def publish(self, request: RequestState) -> None:
        """Offer the request's full, computed and known blocks to the cache."""
        if not self.prefix_caching or not request.may_publish:
            return
        known = len(request.tokens) if self.chunk == 1 else request.num_prompt
        end = min(request.computed, known) // self.block_size
        if end <= request.published:
            return
        self.update_hashes(request)
        for index in self._paged:
            pool, table = self.pools[index], request.blocks[index]
            for block in range(request.published, end):
                if table[block]:
                    parent = request.hashes[block - 1] if block else b""
                    pool.publish(table[block], request.hashes[block], parent)
        request.published = end

    def drop_behind(self, request: RequestState) -> list[TableDelta]:
        """Free blocks that no later query reads, by the committed length."""
        deltas: list[TableDelta] = []
        for index in self._window:
            start = min(self.guard.first_needed(spec, request.computed) for spec in self.plans[index].specs)
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

    @property
    def _states(self) -> StatePool:
        """The pool of slots: groups of one lifetime share a pool, so there is at most one."""
        pool = self.pools[self._slot[0]]
        assert isinstance(pool, StatePool)
        return pool

    def _start_pools(self) -> None:
        self.pools: list[UnitPool] = [
            StatePool(plan.num_units, plan.num_checkpoints) if plan.is_slot else UnitPool(plan.num_units)
            for plan in self.plans
        ]
        self._finder = HitFinder(self.plans, self.pools, self.guard, self._hit_blocks)
        self._restored = []

    def reset(self) -> None:
        """Free every unit and forget every hash, whoever holds what."""
        generation = self.generation
        self._start_pools()
        for pool in self.pools:
            pool.generation = generation + 1

    def forget_all(self) -> None:
        """Forget every hash; what running requests hold stays theirs."""
        for pool in self.pools:
            pool.forget_all()

    def check(self, running: Sequence[RequestState], checkpoints: Sequence[Checkpoint] = ()) -> None:
        """Assert each pool's partition, and that live slots have one holder.

        Args:
            checkpoints: Those of all uncommitted steps.
        """
        for index, pool in enumerate(self.pools):
            held = Counter(u for r in running for u in (*r.blocks[index], *r.slots[index]) if u)
            held.update(checkpoint.dst for checkpoint in checkpoints if checkpoint.pool == index)
            pool.check(dict(held))
            if self.plans[index].is_slot:
                assert all(count <= 1 for count in pool.ref), f"a slot of pool {index} has two owners"
