"""What every KV-cache spec must keep to, as checks a plugin author runs on an instance of the spec.

Does not: run a model. Blocks hold marks of who wrote which position, so a block that went too early shows as
a foreign mark; the pools and the rules of holding units are the engine's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from attrs import define, evolve, field

from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot, Window
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.request_state import RequestState

NUM_REQUESTS = 3
"""Requests that live side by side in a trial."""


def check_spec(spec: KVCacheSpec, k_max: int = 3, trials: int = 40, seed: int = 0) -> None:
    """Run every check.

    Args:
        spec: An instance with any layers and block size.
        k_max: Drafts verified per step at most; a spec without rollback is run without drafts.
        trials: Random runs of each kind.
        seed: Of all random choices.

    Raises:
        AssertionError: The spec breaks a rule; the message says which.
    """
    k_max = k_max if spec.rollback else 0
    check_bytes(spec, k_max)
    check_cuts(spec, Random(seed), trials)
    check_hit(spec, Random(seed), trials)
    check_needed(spec, Random(seed), k_max, trials)
    check_max_units(spec, Random(seed), k_max, trials)


def check_bytes(spec: KVCacheSpec, k_max: int = 0) -> None:
    """The bytes that are planned are the bytes that are allocated, for every k up to `k_max`.

    Raises:
        AssertionError: They differ, or a layer has no tensor.
    """
    for k in range(k_max + 1):
        plan = plan_memory([spec], _limits(spec, 2 * spec.block_size, 1, 0, k))
        caches = allocate_caches(plan, k, "cpu")
        assert set(caches) == set(spec.layers), "a layer has no cache tensors"
        allocated = sum(t.numel() * t.element_size() for c in caches.values() for t in c.tensors.values())
        planned = plan.cache_bytes
        assert allocated == planned, f"k_max={k}: {planned} bytes are planned, {allocated} allocated"


def check_cuts(spec: KVCacheSpec, random: Random, trials: int = 40) -> None:
    """Cut points are ascending and lie strictly inside the chunk.

    Raises:
        AssertionError: They do not.
    """
    for _ in range(trials):
        start = random.randrange(200)
        end = start + random.randrange(1, 200)
        cuts = spec.cuts(start, end, random.choice((1, 2, 3, 64)) * spec.block_size)
        assert list(cuts) == sorted(set(cuts)), f"cuts {cuts} are not ascending"
        assert all(start < cut < end for cut in cuts), f"cuts {cuts} are not inside ({start}, {end})"


def check_hit(spec: KVCacheSpec, random: Random, trials: int = 40) -> None:
    """A hit only shortens, is pure, monotone, and leaves nothing to read that is not cached.

    Raises:
        AssertionError: One of these fails.
    """
    for _ in range(trials):
        limit = random.randrange(12)
        few = {block for block in range(limit) if random.random() < 0.7}
        many = few | {block for block in range(limit) if random.random() < 0.5}
        length = _hit(spec, few, limit)
        assert 0 <= length <= limit, f"a hit of {length} blocks is longer than its limit {limit}"
        assert _hit(spec, few, limit) == length, "hit is not pure: the same question gets another answer"
        assert _hit(spec, few, length) == length, "hit is not stable: its own answer gets shorter"
        assert _hit(spec, many, limit) >= length, "hit is not monotone: more cached blocks, shorter hit"
        assert _hit(spec, set(range(limit)), limit) == limit, "a wholly cached prefix is no full hit"
        if limit:
            assert _hit(spec, few, limit - 1) <= length, "hit is not monotone: a lower limit, a longer hit"
        reads = _reads(spec, length * spec.block_size)
        missing = {p // spec.block_size for p in reads if p < length * spec.block_size} - few
        assert not missing, (
            f"after a hit of {length} blocks, blocks {sorted(missing)} are read but not cached"
        )


def check_needed(spec: KVCacheSpec, random: Random, k_max: int = 0, trials: int = 40) -> None:
    """What is freed is never read again, and every position that may be read is there.

    Raises:
        AssertionError: `needed` goes back, or a query reads a freed or foreign block.
    """
    start = 0
    for length in range(1, 12 * spec.block_size):
        needed = spec.needed(length)
        assert needed.start >= start, (
            f"needed({length}) starts at {needed.start}, block {start - 1} was freed"
        )
        reads = [p // spec.block_size for p in _reads(spec, length) if p < length]
        assert not reads or (needed.start <= min(reads) and max(reads) < needed.stop), (
            f"needed({length}) is {needed} but blocks {min(reads)} to {max(reads)} are read"
        )
        start = needed.start
    for _ in range(trials):
        for _live in _lives(spec, random, k_max):
            pass


def check_max_units(spec: KVCacheSpec, random: Random, k_max: int = 0, trials: int = 40) -> None:
    """No request ever holds more than `max_units`, through chunks, drafts, rollback and the end.

    Raises:
        AssertionError: One does.
    """
    for _ in range(trials):
        for held, allowed in _lives(spec, random, k_max):
            assert held <= allowed, f"a request holds {held} units, max_units says {allowed}"


def _hit(spec: KVCacheSpec, present: set[int], limit: int) -> int:
    def is_present(block: int) -> bool:
        assert 0 <= block < limit, f"hit asks for block {block} outside 0..{limit - 1}"
        return block in present

    return spec.hit(is_present, limit)


def _reads(spec: KVCacheSpec, position: int) -> range:
    """Positions that a query token at `position` reads from blocks."""
    life = spec.lifetime
    if isinstance(life, Slot):
        return range(0)
    if isinstance(life, Window):
        return range(max(0, position - life.tokens + 1), position + 1)
    return range(position + 1)


def _limits(spec: KVCacheSpec, max_len: int, max_query: int, lookahead: int, k_max: int) -> PlanLimits:
    blocks = -(-max_len // spec.block_size)
    return PlanLimits(
        block_size=spec.block_size,
        num_blocks=blocks * NUM_REQUESTS,
        max_num_seqs=NUM_REQUESTS,
        max_model_len=max_len,
        max_model_len_pinned=True,
        max_query=max_query,
        lookahead=lookahead,
        k_max=k_max,
    )


@define(eq=False)
class _Life:
    """One request from admission to its end, as the engine would drive it."""

    request: RequestState
    bound: int = 0
    flight: deque[int] = field(factory=deque)


@define
class _Trial:
    spec: KVCacheSpec
    random: Random
    memory: RequestMemory
    max_query: int
    lookahead: int
    k_max: int
    marks: dict[tuple[int, int], tuple[str, int]] = field(factory=dict)

    def launch(self, life: _Life) -> None:
        """Grow the tables for a query, from the shortest to the longest that is allowed."""
        request = life.request
        room = min(self.max_query - (life.bound - request.computed), request.limit - 1 - life.bound)
        if room < 1:
            return
        query = self.random.choice((1, min(room, 1 + self.k_max), self.random.randint(1, room), room))
        upto = min(life.bound + query + self.lookahead, request.limit - 1)
        self.memory.extend(request, self.memory.missing(request, upto))
        life.bound += query
        life.flight.append(query)

    def commit(self, life: _Life) -> None:
        """Run and commit the oldest query; of drafts, only an accepted run stays."""
        query, request = life.flight.popleft(), life.request
        self._touch(request, request.computed, query)
        drafted = 1 < query <= 1 + self.k_max
        advanced = self.random.randint(1, query) if drafted else query
        life.bound -= query - advanced
        request.computed += advanced
        self.memory.drop_behind(request)

    def _touch(self, request: RequestState, start: int, query: int) -> None:
        if self.spec.lifetime == Slot():
            return
        for position in range(start, start + query):
            self.marks[self._place(request, position)] = (request.id, position)
        for position in range(start, start + query):
            for read in _reads(self.spec, position):
                mark = self.marks.get(self._place(request, read))
                assert mark == (request.id, read), f"position {read} reads a freed block, its mark is {mark}"

    def _place(self, request: RequestState, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.spec.block_size)
        unit = request.blocks[0][block]
        assert unit, f"position {position} is read or written through a freed block"
        return unit, offset


def _lives(spec: KVCacheSpec, random: Random, k_max: int) -> Iterator[tuple[int, int]]:
    """Run a few requests side by side; yields after every change (units held, units allowed) of one."""
    max_len = random.randint(2, 12 * spec.block_size)
    max_query = random.choice((1 + k_max, 2 * (1 + k_max), random.randint(1 + k_max, max_len + k_max)))
    lookahead = random.choice((0, k_max))
    plan = plan_memory([spec], _limits(spec, max_len, max_query, lookahead, k_max))
    columns = plan.pools[0].slots_per_request or 1
    # Larger than `max_units` asks for, so that what a request takes is counted rather than refused.
    ample = NUM_REQUESTS * columns * (2 + max_len) + 1
    plan = evolve(plan, pools=(evolve(plan.pools[0], num_units=ample),))
    memory = RequestMemory(plan, False, root_hash(), lookahead)
    trial = _Trial(spec, random, memory, max_query, lookahead, k_max)
    lives: list[_Life] = []
    allowed = spec.max_units(max_len, max_query, lookahead) * columns
    started = 0
    for _ in range(60):
        if len(lives) < NUM_REQUESTS and random.random() < 0.3:
            lives.append(_start(memory, f"r{started}", max_len, random))
            started += 1
        if not lives:
            continue
        life = random.choice(lives)
        action: Callable[[_Life], None] = (
            trial.commit if life.flight and random.random() < 0.5 else trial.launch
        )
        action(life)
        yield _held(life.request), allowed
        if random.random() < 0.04:
            lives.remove(life)
            memory.release(life.request)
    for life in lives:
        memory.release(life.request)
    for pool in memory.pools:
        pool.check({})


def _held(request: RequestState) -> int:
    return sum(1 for unit in request.blocks[0] if unit) + len(request.slots[0])


def _start(memory: RequestMemory, name: str, max_len: int, random: Random) -> _Life:
    prompt = tuple(range(random.randint(1, max_len - 1)))
    req = EngineRequest(
        id=name, prompt_token_ids=prompt, params=RowParams(), max_tokens=max_len - len(prompt)
    )
    request = RequestState(req, list(prompt), max_len)
    copies = memory.admit(request, memory.find_hit(request))
    assert copies is not None, "a request that the plan was made for is not admitted"
    return _Life(request)
