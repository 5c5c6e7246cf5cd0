"""A prefix is found by bisection while the cache has no gaps, and one by one else: the same length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.errors import EngineError
from vtcore.kv_cache.block_hash import extend_hashes, root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.pool import UnitPool
from vtcore.kv_cache.prefix_hit import HitFinder
from vtcore.kv_cache.spec_guard import SpecGuard
from vtcore.testing.toy_arch import ToyBlocks

PLAN = plan_memory(
    (ToyBlocks(layers=("whole",), block_size=1),),
    PlanLimits(
        block_size=1, num_blocks=8, max_num_seqs=2, max_model_len=8, max_model_len_pinned=True, max_query=8
    ),
)


class Lookups(Sequence[bytes]):
    """A chain of hashes that counts how often it is looked into."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.hashes = hashes
        self.num_looked = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        self.num_looked += 1
        return self.hashes[index]

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("all of them are looked at")


def chain(tokens: Sequence[int]) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, 1, root_hash())
    return hashes


def publish(pool: UnitPool, units: Sequence[int], hashes: Sequence[bytes]) -> None:
    for index, unit in enumerate(units):
        pool.publish(unit, hashes[index], hashes[index - 1] if index else b"")


def check(pool: UnitPool, held: Sequence[Sequence[int]]) -> None:
    flat = [unit for units in held for unit in units]
    pool.check({unit: flat.count(unit) for unit in flat})


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_use_finds_what_looking_one_by_one_finds(seed: int, steps: int) -> None:
    random, pool = Random(seed), UnitPool(9)
    finder = HitFinder(PLAN.pools, [pool], SpecGuard())
    holders: list[tuple[list[int], list[bytes]]] = []
    for _ in range(steps):
        action = random.randrange(12)
        size = random.randrange(1, 6)
        if action < 5 and pool.num_free >= size:
            # Without looking for a hit first, so that some find their beginnings published by others.
            holders.append((pool.allocate(size), chain([random.randrange(2) for _ in range(size)])))
        elif action < 9 and holders:
            units, hashes = random.choice(holders)
            publish(pool, units[: random.randrange(len(units) + 1)], hashes)
        elif action < 11 and holders:
            units, _ = holders.pop(random.randrange(len(holders)))
            pool.free(reversed(units) if random.random() < 0.7 else units)
        elif action == 11 and random.random() < 0.2:
            pool.forget_all()
        check(pool, [units for units, _ in holders])
        for _ in range(3):
            hashes = chain([random.randrange(2) for _ in range(6)])
            expected = next((i for i, h in enumerate(hashes) if h not in pool.by_hash), len(hashes))
            assert finder.length(hashes, len(hashes)) == (expected, expected)
            assert finder.length(hashes, 2) == (min(expected, 2),) * 2


def test_without_gaps_few_hashes_are_looked_at() -> None:
    pool, hashes = UnitPool(300), chain(range(256))
    finder = HitFinder(PLAN.pools, [pool], SpecGuard())
    publish(pool, pool.allocate(200), hashes)
    assert pool.num_gaps == 0
    looked = Lookups(hashes)
    assert finder.length(looked, 256) == (200, 200)
    assert looked.num_looked <= 9


def test_a_beginning_that_is_evicted_before_its_end_leaves_a_gap() -> None:
    pool, hashes = UnitPool(8), chain(range(6))
    finder = HitFinder(PLAN.pools, [pool], SpecGuard())
    first, second = pool.allocate(3), pool.allocate(4)
    publish(pool, first, hashes[:3])
    # The second computed the same beginning at the same time, so only its end is named.
    publish(pool, second, hashes[:4])
    pool.free(reversed(first))
    assert pool.num_gaps == 0
    # Units 3, 2 are taken again, and with them hashes 2 and 1.
    taken = pool.allocate(2)
    assert pool.num_gaps == 1
    assert finder.length(hashes, 6) == (1, 1)
    check(pool, [second, taken])
    publish(pool, [0, *taken], hashes[:3])
    assert pool.num_gaps == 0
    assert finder.length(hashes, 6) == (4, 4)


def test_a_hash_without_a_known_predecessor_counts_as_a_gap() -> None:
    pool, hashes = UnitPool(9), chain(range(4))
    finder = HitFinder(PLAN.pools, [pool], SpecGuard())
    for unit, index in zip(pool.allocate(3), (0, 2, 3), strict=True):
        pool.publish(unit, hashes[index])
    assert pool.num_gaps == 3
    assert finder.length(hashes, 4) == (1, 1)
    pool.forget_all()
    assert pool.num_gaps == 0


@pytest.mark.parametrize("wrong", [1, -1])
def test_a_wrong_count_of_gaps_is_found_by_the_check(wrong: int) -> None:
    pool = UnitPool(4)
    pool.num_gaps += wrong
    with pytest.raises(EngineError, match="gaps"):
        pool.check({})
