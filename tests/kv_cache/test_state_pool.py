"""Slots and checkpoints share ids, and no order of events takes a slot from a request for a checkpoint."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vtcore.errors import EngineError
from vtcore.kv_cache.state_pool import StatePool


def keep(pool: StatePool, name: bytes) -> int | None:
    """Take, write, publish and let go of a checkpoint, as a step does."""
    unit = pool.take_checkpoint()
    if unit is not None:
        pool.publish(unit, name)
        pool.free((unit,))
    return unit


def restore(pool: StatePool, name: bytes) -> None:
    """Hold a checkpoint while a step copies it, then let go."""
    pool.hold((pool.by_hash[name],))
    pool.free((pool.by_hash[name],))


def test_checkpoints_leave_requests_their_slots() -> None:
    pool = StatePool(1 + 3 + 2, 2)
    assert pool.num_free == 3
    assert {keep(pool, b"a"), keep(pool, b"b")} == set(pool.by_hash.values())
    assert pool.num_free == 3
    slots = pool.allocate(3)
    assert not set(slots) & set(pool.by_hash.values())
    assert pool.num_free == 0
    with pytest.raises(EngineError, match="0 free units"):
        pool.allocate(1)
    assert set(pool.by_hash) == {b"a", b"b"}


def test_requests_leave_checkpoints_their_budget() -> None:
    pool = StatePool(1 + 3 + 2, 2)
    slots = pool.allocate(3)
    assert None not in (keep(pool, b"a"), keep(pool, b"b"))
    pool.check(dict.fromkeys(slots, 1))


def test_past_the_budget_the_checkpoint_used_longest_ago_goes() -> None:
    pool = StatePool(1 + 1 + 3, 3)
    for name in (b"a", b"b", b"c"):
        keep(pool, name)
    restore(pool, b"a")
    keep(pool, b"d")
    assert set(pool.by_hash) == {b"a", b"c", b"d"}
    keep(pool, b"e")
    assert set(pool.by_hash) == {b"a", b"d", b"e"}


def test_a_demoted_checkpoint_goes_first() -> None:
    pool = StatePool(1 + 1 + 3, 3)
    units = {name: keep(pool, name) for name in (b"a", b"b", b"c")}
    assert units[b"c"] is not None
    pool.demote(units[b"c"], b"c")
    keep(pool, b"d")
    assert set(pool.by_hash) == {b"a", b"b", b"d"}
    # The slot is another one's by now, so its old name means nothing.
    pool.demote(units[b"c"], b"c")
    keep(pool, b"e")
    assert set(pool.by_hash) == {b"b", b"d", b"e"}


def test_none_that_is_restored_or_about_to_be_written_is_evicted() -> None:
    pool = StatePool(1 + 1 + 2, 2)
    pending = pool.take_checkpoint()
    assert pending is not None
    kept = keep(pool, b"a")
    assert kept is not None
    pool.hold((kept,))
    pool.demote(kept, b"a")
    assert pool.take_checkpoint() is None
    pool.check({pending: 1, kept: 1})
    pool.free((kept,))
    assert pool.take_checkpoint() == kept
    assert b"a" not in pool.by_hash


def test_a_checkpoint_that_was_not_written_leaves_the_budget() -> None:
    pool = StatePool(1 + 1 + 1, 1)
    for _ in range(5):
        unit = pool.take_checkpoint()
        assert unit is not None
        pool.free((unit,))
    assert pool.num_free == 1
    pool.check({})


def test_a_second_state_of_the_same_tokens_is_not_kept() -> None:
    pool = StatePool(1 + 1 + 2, 2)
    first = keep(pool, b"a")
    second = keep(pool, b"a")
    assert pool.by_hash == {b"a": first}
    assert second != first
    assert keep(pool, b"b") is not None
    assert len(pool.by_hash) == 2


def test_a_state_is_awaited_until_it_is_published_given_back_or_forgotten() -> None:
    pool = StatePool(1 + 1 + 2, 2)
    for published in (True, False):
        unit = pool.take_checkpoint(b"a")
        assert unit is not None
        assert pool.has_or_awaits(b"a")
        assert not pool.has_or_awaits(b"b")
        if published:
            pool.publish(unit, b"a")
        pool.free((unit,))
        assert pool.has_or_awaits(b"a") is published
        pool.forget_all()
    unit = pool.take_checkpoint(b"a")
    pool.forget_all()
    assert not pool.has_or_awaits(b"a")


def test_without_a_budget_there_are_only_slots() -> None:
    pool = StatePool(1 + 2, 0)
    assert pool.take_checkpoint() is None
    assert sorted(pool.allocate(2)) == [1, 2]
    assert pool.take_checkpoint() is None


def test_forgetting_frees_all_but_what_is_in_use() -> None:
    pool = StatePool(1 + 1 + 3, 3)
    [slot] = pool.allocate(1)
    for name in (b"a", b"b"):
        keep(pool, name)
    pending = pool.take_checkpoint()
    assert pending is not None
    pool.forget_all()
    assert pool.by_hash == {}
    pool.check({slot: 1, pending: 1})
    assert [keep(pool, b"c"), keep(pool, b"d")].count(None) == 0
    pool.free((pending,))
    pool.free((slot,))
    assert pool.num_free == 1
    pool.check({})


NAMES = st.sampled_from([bytes([i]) for i in range(6)])


class StatePoolMachine(RuleBasedStateMachine):
    """The pool beside a model of it: sets of slots, of pending ids and of names, oldest first."""

    @initialize(num_slots=st.integers(1, 5), budget=st.integers(0, 4))
    def start(self, num_slots: int, budget: int) -> None:
        self.pool = StatePool(1 + num_slots + budget, budget)
        self.num_slots, self.budget = num_slots, budget
        self.live: list[int] = []
        self.pending: list[int] = []
        self.unused: OrderedDict[bytes, int] = OrderedDict()
        self.restored: dict[bytes, tuple[int, int]] = {}
        self.orphans: list[int] = []

    @property
    def in_use(self) -> int:
        return len(self.pending) + len(self.restored) + len(set(self.orphans))

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        if count > self.num_slots - len(self.live):
            with pytest.raises(EngineError):
                self.pool.allocate(count)
            return
        ids = self.pool.allocate(count)
        held = {unit for unit, _ in self.restored.values()}
        assert not set(ids) & {*self.live, *self.pending, *self.unused.values(), *held, *self.orphans, 0}
        self.live += ids

    @rule(data=st.data())
    def let_slots_go(self, data: st.DataObject) -> None:
        going = data.draw(st.sets(st.sampled_from(self.live))) if self.live else set()
        self.pool.free(going)
        self.live = [unit for unit in self.live if unit not in going]

    @rule()
    def take(self) -> None:
        unit = self.pool.take_checkpoint()
        if self.in_use + len(self.unused) < self.budget:
            assert unit is not None
        elif self.unused:
            _, oldest = self.unused.popitem(last=False)
            assert unit == oldest
        else:
            assert unit is None
            return
        self.pending.append(unit)

    @precondition(lambda self: self.pending)
    @rule(name=NAMES, is_written=st.booleans())
    def settle(self, name: bytes, is_written: bool) -> None:
        unit = self.pending.pop(0)
        if is_written:
            self.pool.publish(unit, name)
            if name not in self.unused and name not in self.restored:
                self.unused[name] = unit
        self.pool.free((unit,))

    @rule(name=NAMES)
    def hold(self, name: bytes) -> None:
        unit = self.pool.find(name)
        if name in self.restored:
            unit_held, times = self.restored[name]
            assert unit == unit_held
            self.pool.hold((unit,))
            self.restored[name] = (unit, times + 1)
        elif name in self.unused:
            assert unit == self.unused[name]
            self.pool.hold((unit,))
            self.restored[name] = (self.unused.pop(name), 1)
        else:
            assert unit is None

    @rule(name=NAMES)
    def unhold(self, name: bytes) -> None:
        if name in self.restored:
            unit, times = self.restored.pop(name)
            self.pool.free((unit,))
            if times > 1:
                self.restored[name] = (unit, times - 1)
            else:
                self.unused[name] = unit

    @precondition(lambda self: self.orphans)
    @rule()
    def unhold_a_forgotten_one(self) -> None:
        self.pool.free((self.orphans.pop(),))

    @rule(name=NAMES, unit=st.integers(1, 9))
    def demote(self, name: bytes, unit: int) -> None:
        if unit < self.pool.num_units:
            self.pool.demote(unit, name)
            if self.unused.get(name) == unit:
                self.unused.move_to_end(name, last=False)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.unused.clear()
        self.orphans += [unit for unit, times in self.restored.values() for _ in range(times)]
        self.restored.clear()

    @invariant()
    def books_agree(self) -> None:
        held = dict.fromkeys((*self.live, *self.pending), 1)
        held |= dict(self.restored.values())
        for unit in self.orphans:
            held[unit] = self.orphans.count(unit)
        self.pool.check(held)
        assert self.pool.num_free == self.num_slots - len(self.live)
        assert self.in_use + len(self.unused) <= self.budget
        assert self.pool.by_hash == {**self.unused, **{n: unit for n, (unit, _) in self.restored.items()}}


TestStatePoolMachine = StatePoolMachine.TestCase
TestStatePoolMachine.settings = settings(max_examples=120, stateful_step_count=40)
