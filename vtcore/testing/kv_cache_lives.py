"""Lives of random requests over real pools, for the rules of a KV-cache spec: no model, only marks.

Blocks hold marks of who wrote which position, so a block that went too early shows as a foreign mark; the
pools and the rules of holding units are the engine's own. Does not: state a rule (`kv_cache_kit` does).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from attrs import define, evolve, field

from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot, Window
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.request_state import RequestState

NUM_REQUESTS = 3
"""Requests that live side by side in a trial."""


def reads_of(spec: KVCacheSpec, position: int) -> range:
    """Positions that a query token at `position` reads from blocks."""
    life = spec.lifetime
    if isinstance(life, Slot):
        return range(0)
    if isinstance(life, Window):
        return range(max(0, position - life.tokens + 1), position + 1)
    return range(position + 1)


def limits_of(
    spec: KVCacheSpec, max_len: int, max_query: int = 1, lookahead: int = 0, k_max: int = 0
) -> PlanLimits:
    """Limits for `NUM_REQUESTS` requests of `max_len` tokens each."""
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
    reads: bool
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
        if not self.reads or self.spec.lifetime == Slot():
            return
        for position in range(start, start + query):
            self.marks[self._place(request, position)] = (request.id, position)
        for position in range(start, start + query):
            for read in reads_of(self.spec, position):
                mark = self.marks.get(self._place(request, read))
                assert mark == (request.id, read), f"position {read} reads a freed block, its mark is {mark}"

    def _place(self, request: RequestState, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.spec.block_size)
        unit = request.blocks[0][block]
        assert unit, f"position {position} is read or written through a freed block"
        return unit, offset


def lives_of(spec: KVCacheSpec, random: Random, k_max: int, reads: bool = True) -> Iterator[tuple[int, int]]:
    """Run a few requests side by side; yields after every change (units held, units allowed) of one.

    Args:
        k_max: Drafts verified per step at most.
        reads: Whether what a query reads must hold the marks of its own request.

    Raises:
        AssertionError: A query reads or writes a freed or a foreign block.
    """
    max_len = random.randint(2, 12 * spec.block_size)
    max_query = random.choice((1 + k_max, 2 * (1 + k_max), random.randint(1 + k_max, max_len + k_max)))
    lookahead = random.choice((0, k_max))
    plan = plan_memory([spec], limits_of(spec, max_len, max_query, lookahead, k_max))
    columns = plan.pools[0].slots_per_request or 1
    # Larger than `max_units` asks for, so that what a request takes is counted rather than refused.
    ample = NUM_REQUESTS * columns * (2 + max_len) + 1
    plan = evolve(plan, pools=(evolve(plan.pools[0], num_units=ample),))
    memory = RequestMemory(plan, False, root_hash(), lookahead)
    trial = _Trial(spec, random, memory, max_query, lookahead, k_max, reads)
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
