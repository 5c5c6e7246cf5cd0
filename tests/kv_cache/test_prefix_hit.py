"""A hit is the longest prefix that every pool can serve, and only what is really there is handed out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.kv_cache.block_hash import extend_hashes, root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.pool import UnitPool
from vtcore.kv_cache.prefix_hit import HitFinder, PrefixHit
from vtcore.kv_cache.spec_guard import SpecGuard
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow

SIZE = 4
LENGTH = 8
HASHES: list[bytes] = []
extend_hashes(HASHES, range(SIZE * LENGTH), SIZE, root_hash())


@frozen(kw_only=True)
class PairedBlocks(ToyBlocks):
    """Blocks that are of use in pairs only."""

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return KVCacheSpec.hit(self, present, limit) // 2 * 2


@frozen(kw_only=True)
class LyingBlocks(ToyBlocks):
    """Says that everything is there."""

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return limit


@frozen(kw_only=True)
class LyingState(ToyState):
    """Says that a state is kept wherever it is asked."""

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return limit


WHOLE = ToyBlocks(layers=("whole",), block_size=SIZE)
PAIRED = PairedBlocks(layers=("paired",), block_size=SIZE)
NARROW = ToyWindow(layers=("narrow",), block_size=SIZE, window=5)
WIDE = ToyWindow(layers=("wide",), block_size=SIZE, window=10)
STATE = ToyState(layers=("state",), block_size=SIZE)
NONE: tuple[int, ...] = ()


class Cache:
    """Pools of `specs` in which, by kind of layer, some blocks of one chain are cached."""

    def __init__(self, *specs: KVCacheSpec) -> None:
        limits = PlanLimits(
            block_size=SIZE, num_blocks=LENGTH, max_num_seqs=4, max_model_len=SIZE * LENGTH,
            max_model_len_pinned=True, max_query=SIZE * LENGTH, num_checkpoints=LENGTH,
        )  # fmt: skip
        self.plan = plan_memory(specs, limits)
        self.pools = [UnitPool(pool.num_units) for pool in self.plan.pools]
        self.guard = SpecGuard()
        self.finder = HitFinder(self.plan.pools, self.pools, self.guard)

    def index(self, layer: str) -> int:
        return next(
            i for i, pool in enumerate(self.plan.pools) for spec in pool.specs if layer in spec.layers
        )

    def put(self, layer: str, blocks: Collection[int]) -> None:
        pool = self.pools[self.index(layer)]
        for block, unit in zip(blocks, pool.allocate(len(blocks)), strict=True):
            parent = None if layer == "state" else HASHES[block - 1] if block else b""
            pool.publish(unit, HASHES[block], parent)

    def units(self, layer: str, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.pools[self.index(layer)].by_hash[HASHES[block]] for block in blocks)

    def find(self, limit: int = LENGTH) -> PrefixHit:
        hit = self.finder.find(HASHES, limit)
        assert self.finder.length(HASHES, limit) == (hit.num_blocks, hit.num_shared)
        return hit


BLOCKS = st.sets(st.integers(0, LENGTH - 1))


def is_usable(blocks: int, cached: dict[str, set[int]], with_state: bool) -> bool:
    """Whether a query after so many blocks finds all that it reads, by definition."""
    seen = {"narrow": NARROW.window, "wide": WIDE.window}
    for layer, present in cached.items():
        if layer == "state":
            if with_state and blocks - 1 not in present:
                return False
            continue
        end = SIZE * blocks
        first = max(0, end - seen[layer] + 1) if layer in seen else 0
        if any(position // SIZE not in present for position in range(first, end)):
            return False
        if layer == "paired" and blocks % 2:
            return False
    return True


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("whole", "paired", "narrow", "wide", "state"), BLOCKS)),
    st.integers(0, LENGTH),
)
def test_a_hit_is_the_longest_prefix_that_all_pools_can_serve(
    cached: dict[str, set[int]], limit: int
) -> None:
    if "paired" in cached and "whole" in cached:
        # Groups of one lifetime share a pool, so they have the same blocks.
        cached = {**cached, "paired": cached["whole"]}
    specs = {spec.layers[0]: spec for spec in (WHOLE, PAIRED, NARROW, WIDE, STATE)}
    if not set(cached) - {"state"}:
        cached = {"whole": set(range(LENGTH)), **cached}
    cache = Cache(*(specs[layer] for layer in cached))
    for layer, blocks in cached.items():
        if not (layer == "paired" and "whole" in cached):
            cache.put(layer, sorted(blocks))
    hit = cache.find(limit)
    lengths = range(limit, 0, -1)
    assert hit.num_blocks == next((n for n in lengths if is_usable(n, cached, with_state=True)), 0)
    assert hit.num_shared == next((n for n in lengths if is_usable(n, cached, with_state=False)), 0)
    assert len(hit.ids) == len(cache.pools)
    for layer in cached:
        ids = hit.ids[cache.index(layer)]
        if not hit.num_blocks:
            assert ids == ()
        elif layer == "state":
            assert ids == cache.units("state", [hit.num_blocks - 1])
        else:
            assert len(ids) == hit.num_blocks
            there = [block for block, unit in enumerate(ids) if unit]
            assert there == list(range(hit.num_blocks - len(there), hit.num_blocks))
            assert tuple(unit for unit in ids if unit) == cache.units(layer, there)


def test_a_state_is_needed_exactly_where_the_hit_ends() -> None:
    cache = Cache(WHOLE, STATE)
    cache.put("whole", range(6))
    assert (cache.find().num_blocks, cache.find().num_shared) == (0, 6)
    cache.put("state", (2, 6))
    hit = cache.find()
    assert (hit.num_blocks, hit.num_shared) == (3, 6)
    assert hit.ids == (cache.units("whole", (0, 1, 2)), cache.units("state", (2,)))
    # One block less than the state's place is no hit at all.
    assert cache.find(2).num_blocks == 0


def test_a_state_without_its_blocks_is_no_hit() -> None:
    cache = Cache(WHOLE, STATE)
    cache.put("whole", (0, 1))
    cache.put("state", (3,))
    assert cache.find() == PrefixHit(0, 2, ((), ()))


def test_where_prompts_part_does_not_depend_on_states() -> None:
    """The junction is what a second prompt has in common with earlier ones: there its state is kept."""
    cache = Cache(WHOLE, NARROW, STATE)
    cache.put("whole", range(7))
    cache.put("narrow", (3, 4))
    cache.put("state", (0,))
    hit = cache.find()
    assert (hit.num_blocks, hit.num_shared) == (0, 5)


@pytest.mark.parametrize(("cached", "blocks"), [(range(5), 4), (range(4), 4), ((0,), 0), ((1, 2, 3), 0)])
def test_a_specs_own_rule_shortens_a_hit(cached: Sequence[int], blocks: int) -> None:
    cache = Cache(PAIRED)
    cache.put("paired", cached)
    assert cache.find().num_blocks == blocks


def test_pools_shorten_each_other_until_nobody_does() -> None:
    cache = Cache(PAIRED, NARROW)
    cache.put("paired", range(7))
    # Six is even but has a hole before it; five has none but is odd; four is both.
    cache.put("narrow", (3, 4))
    assert cache.find().num_blocks == 4


@pytest.mark.parametrize("cached", [NONE, (0,), (1, 2), tuple(range(7))])
def test_a_spec_that_says_more_than_is_there_gives_no_hit(cached: tuple[int, ...]) -> None:
    cache = Cache(LyingBlocks(layers=("lying",), block_size=SIZE))
    cache.put("lying", cached)
    hit = cache.finder.find(HASHES, LENGTH)
    assert (hit.num_blocks, hit.ids) == (0, ((),))
    assert cache.finder.find(HASHES, len(cached)).num_blocks == (len(cached) if cached[:1] == (0,) else 0)


def test_a_spec_that_says_a_state_is_kept_gives_no_hit_where_none_is() -> None:
    cache = Cache(WHOLE, LyingState(layers=("state",), block_size=SIZE))
    cache.put("whole", range(6))
    cache.put("state", (2,))
    assert cache.finder.find(HASHES, LENGTH) == PrefixHit(0, 6, ((), ()))
    assert cache.finder.find(HASHES, 3).ids == (cache.units("whole", (0, 1, 2)), cache.units("state", (2,)))


def test_looking_changes_nothing() -> None:
    cache = Cache(WHOLE, NARROW, STATE)
    for layer in ("whole", "narrow", "state"):
        cache.put(layer, range(6))
        pool = cache.pools[cache.index(layer)]
        pool.free(list(pool.by_hash.values()))
    before = [(pool.generation, list(pool._unheld), list(pool.ref)) for pool in cache.pools]
    assert cache.find().num_blocks == 6
    assert [(pool.generation, list(pool._unheld), list(pool.ref)) for pool in cache.pools] == before
