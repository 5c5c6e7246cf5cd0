"""A pool's ids are always in exactly one place, and cached ones leave least recently freed first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from vtcore.errors import EngineError
from vtcore.kv_cache.pool import UnitPool


def name(index: int) -> bytes:
    return index.to_bytes(4, "big")


def test_a_new_pool_hands_out_every_id_but_null_once() -> None:
    pool = UnitPool(6)
    assert pool.num_free == 5
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0
    pool.check(dict.fromkeys(range(1, 6), 1))


def test_a_pool_of_null_alone_has_nothing() -> None:
    pool = UnitPool(1)
    assert pool.allocate(0) == []
    with pytest.raises(EngineError, match="0 free units of 0, 1 asked"):
        pool.allocate(1)


def test_a_refused_allocation_hands_out_nothing() -> None:
    pool = UnitPool(4)
    pool.allocate(2)
    with pytest.raises(EngineError, match="1 free units of 3, 2 asked"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.check({1: 1, 2: 1})


def test_a_unit_is_free_when_its_last_holder_lets_go() -> None:
    pool = UnitPool(3)
    [unit] = pool.allocate(1)
    pool.publish(unit, name(7))
    pool.hold([unit])
    pool.free([unit])
    assert pool.num_free == 1
    pool.check({unit: 1})
    pool.free([unit])
    assert pool.num_free == 2
    pool.check({})


@pytest.mark.parametrize("unit", [0, 1, 3])
def test_freeing_what_is_not_held_is_an_error(unit: int) -> None:
    pool = UnitPool(4)
    taken = pool.allocate(1)
    pool.free(taken)
    with pytest.raises(EngineError, match=f"unit {unit} is freed but not held"):
        pool.free([unit])


def test_uncached_units_are_reused_before_any_cached_one() -> None:
    pool = UnitPool(5)
    units = pool.allocate(4)
    pool.publish(units[0], name(0))
    pool.free(units)
    assert pool.allocate(3) == units[1:]
    assert pool.find(name(0)) == units[0]
    assert pool.allocate(1) == [units[0]]
    assert pool.find(name(0)) is None


def test_cached_units_leave_in_the_order_they_were_freed() -> None:
    pool = UnitPool(6)
    units = pool.allocate(5)
    for index, unit in enumerate(units):
        pool.publish(unit, name(index))
    pool.free([units[3], units[1]])
    pool.free([units[4]])
    pool.free([units[0], units[2]])
    assert pool.allocate(5) == [units[3], units[1], units[4], units[0], units[2]]


def test_a_hit_moves_a_unit_to_the_end_of_the_queue() -> None:
    pool = UnitPool(4)
    units = pool.allocate(3)
    for index, unit in enumerate(units):
        pool.publish(unit, name(index))
    pool.free(units)
    pool.hold([units[0]])
    assert pool.num_free == 2
    pool.free([units[0]])
    assert pool.allocate(3) == [units[1], units[2], units[0]]


def test_looking_a_hash_up_changes_no_order() -> None:
    pool = UnitPool(3)
    units = pool.allocate(2)
    for index, unit in enumerate(units):
        pool.publish(unit, name(index))
    pool.free(units)
    assert pool.find(name(0)) == units[0]
    assert pool.allocate(1) == [units[0]]


def test_the_first_to_publish_a_hash_keeps_it() -> None:
    pool = UnitPool(4)
    first, second = pool.allocate(2)
    pool.publish(first, name(1))
    generation = pool.generation
    pool.publish(second, name(1))
    pool.publish(first, name(2))
    assert pool.find(name(1)) == first
    assert pool.find(name(2)) is None
    assert pool.generation == generation
    pool.free([second])
    pool.check({first: 1})
    assert pool.hash_of[second] is None


def test_the_generation_rises_exactly_when_the_cached_set_changes() -> None:
    pool = UnitPool(3)
    seen = [pool.generation]

    def note() -> bool:
        seen.append(pool.generation)
        return seen[-1] > seen[-2]

    [unit] = pool.allocate(1)
    assert not note()
    pool.publish(unit, name(1))
    assert note()
    pool.free([unit])
    assert not note()
    pool.hold([unit])
    assert not note()
    pool.free([unit])
    pool.allocate(1)
    assert not note()
    pool.allocate(1)
    assert note()


def test_recycled_names_each_unit_whose_content_died_in_order() -> None:
    pool = UnitPool(4)
    pool.recycled = []
    plain, cached, other = pool.allocate(3)
    pool.publish(cached, name(1))
    pool.publish(other, name(2))
    pool.free([cached, plain])
    assert pool.recycled == [plain]
    pool.allocate(2)
    assert pool.recycled == [plain, cached]
    pool.free([other])
    assert pool.recycled == [plain, cached], "a cached unit keeps its content"


def test_num_unheld_counts_ids_without_a_holder() -> None:
    pool = UnitPool(4)
    first, second = pool.allocate(2)
    pool.publish(first, name(1))
    pool.free([first])
    assert pool.num_unheld([first, second]) == 1


def busy_pool() -> tuple[UnitPool, dict[int, int]]:
    """Units 1, 2 held (2 twice, 1 cached), 3 cached and unheld, 4 and 5 free."""
    pool = UnitPool(6)
    pool.allocate(3)
    pool.publish(1, name(1))
    pool.publish(3, name(3))
    pool.free([3])
    pool.hold([2])
    return pool, {1: 1, 2: 2}


def lose_a_free_id(pool: UnitPool) -> None:
    pool._free.popleft()


def free_twice(pool: UnitPool) -> None:
    pool._free.append(pool._free[0])


def free_a_held_id(pool: UnitPool) -> None:
    pool._free.append(1)


def unhold_a_held_id(pool: UnitPool) -> None:
    pool._unheld[1] = None


def free_an_unheld_id(pool: UnitPool) -> None:
    pool._free.append(3)


def lose_an_unheld_id(pool: UnitPool) -> None:
    del pool._unheld[3]


def hand_out_null(pool: UnitPool) -> None:
    pool._free.append(0)


def hold_null(pool: UnitPool) -> None:
    pool.ref[0] = 1


def count_one_holder_too_many(pool: UnitPool) -> None:
    pool.ref[2] += 1


def hash_a_free_unit(pool: UnitPool) -> None:
    pool.hash_of[4] = name(4)
    pool.by_hash[name(4)] = 4


def lose_an_index_entry(pool: UnitPool) -> None:
    del pool.by_hash[name(3)]


def index_another_unit(pool: UnitPool) -> None:
    pool.by_hash[name(3)] = 1


BREAKS: dict[Callable[[UnitPool], None], str] = {
    lose_a_free_id: "lost",
    free_twice: "two places",
    free_a_held_id: "two places",
    unhold_a_held_id: "two places",
    free_an_unheld_id: "two places",
    lose_an_unheld_id: "lost",
    hand_out_null: "null is held",
    hold_null: "null is held",
    count_one_holder_too_many: "recount",
    hash_a_free_unit: "free unit still has a hash",
    lose_an_index_entry: "index differ",
    index_another_unit: "index differ",
}


@pytest.mark.parametrize("damage", BREAKS, ids=lambda f: f.__name__)
def test_check_sees_every_broken_partition(damage: Callable[[UnitPool], None]) -> None:
    pool, held = busy_pool()
    pool.check(held)
    damage(pool)
    with pytest.raises(EngineError, match=BREAKS[damage]):
        pool.check(held)


def test_check_sees_a_holder_that_the_pool_does_not_know() -> None:
    pool, held = busy_pool()
    with pytest.raises(EngineError, match="recount"):
        pool.check({**held, 2: 1})


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_the_partition_and_the_number_of_free_ids(seed: int) -> None:
    random, pool, held, names = Random(seed), UnitPool(9), Counter[int](), 0
    for _ in range(300):
        action = random.randrange(4)
        if action == 0:
            wanted = random.randrange(4)
            if wanted <= pool.num_free:
                held.update(pool.allocate(wanted))
        elif action == 1 and held:
            unit = random.choice(list(held.elements()))
            pool.free([unit])
            held -= Counter([unit])
        elif action == 2 and held:
            names += 1
            pool.publish(random.choice(list(held)), name(names % 12))
        elif pool.by_hash:
            unit = random.choice(list(pool.by_hash.values()))
            pool.hold([unit])
            held[unit] += 1
        pool.check(dict(held))
        assert pool.num_free == 8 - len(held)
