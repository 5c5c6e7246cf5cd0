"""A policy's answers are judged: a breach costs its turn, never a request and never the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vtcore.interfaces.scheduler_policy import (
    Arrived,
    Event,
    Finished,
    PolicyContext,
    Preempted,
    RunningView,
    Scheduled,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.scheduling.policy_guard import LOGGED_BREACHES, MAX_BREACHES, PolicyGuard

Make = Callable[..., Any]


class LastFirst(SchedulerPolicy):
    """The latest arrival goes first; counts its calls and keeps what it saw."""

    static = False
    window = 4

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.contexts: list[PolicyContext] = []

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        self.seen.append([view.id for view in window])
        self.contexts.append(ctx)
        return sorted(range(len(window)), key=lambda i: -window[i].arrival_s)


class Answers(SchedulerPolicy):
    """Answers `order` with what it is given."""

    static = False

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.calls = 0

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Any:
        self.calls += 1
        return self.answer(len(window))


def raises(size: int) -> Any:
    raise RuntimeError("boom")


def test_a_legal_order_decides_who_is_admitted(bench: Make) -> None:
    b = bench(LastFirst(), max_num_seqs=2)
    for name in "abcd":
        b.add(name)
    assert b.step() == ["d", "c"]
    assert b.guard.breaches == 0


BAD_ORDERS: dict[str, Callable[[int], Any]] = {
    "an_exception": raises,
    "one_too_few": lambda n: range(n - 1),
    "one_too_many": lambda n: range(n + 1),
    "a_repeated_index": lambda n: [0] * n,
    "out_of_range": lambda n: range(1, n + 1),
    "negative": lambda n: [*range(n - 1), -1],
    "bools": lambda n: [True, False, *range(2, n)],
    "floats": lambda n: [float(i) for i in reversed(range(n))],
    "texts": lambda n: [str(i) for i in range(n)],
    "none": lambda n: None,
    "a_number": lambda n: n,
}


@pytest.mark.parametrize("answer", BAD_ORDERS.values(), ids=BAD_ORDERS)
def test_a_bad_order_gives_first_come_first_served_for_that_step(
    bench: Make, answer: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Answers(answer)
    b = bench(policy, max_num_seqs=2)
    for name in "abcd":
        b.add(name)
    with caplog.at_level(logging.WARNING):
        assert b.step() == ["a", "b"]
    assert b.guard.breaches == 1
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    for part in ("Answers", "order", "loses its turn", "breach 1"):
        assert part in message
    policy.answer = lambda n: reversed(range(n))
    b.scheduler.finish("a")
    b.scheduler.finish("b")
    assert b.step() == ["d", "c"], "one breach costs one turn"
    b.run_out()


def test_after_a_hundred_breaches_the_policy_is_off(bench: Make, caplog: pytest.LogCaptureFixture) -> None:
    policy = Answers(raises)
    b = bench(policy, max_num_seqs=1, num_blocks=4)
    b.add("blocker", max_tokens=1)
    with caplog.at_level(logging.WARNING):
        for index in range(MAX_BREACHES + 20):
            b.add(f"r{index}", max_tokens=1)
            b.step()
    assert b.guard.breaches == MAX_BREACHES
    assert b.guard.is_off
    assert policy.calls == MAX_BREACHES
    lines = [record.getMessage() for record in caplog.records]
    # The first few, then the one that says it is over, however many come between.
    assert [line.rpartition("(")[2] for line in lines] == [
        *(f"breach {number})" for number in range(1, LOGGED_BREACHES + 1)),
        f"breach {MAX_BREACHES})",
    ]
    assert ["is off from now on" in line for line in lines] == [False] * LOGGED_BREACHES + [True]
    b.run_out()


def test_a_policy_that_is_off_still_admits_as_many_as_fit(bench: Make) -> None:
    b = bench(Answers(raises), max_num_seqs=3)
    b.guard.breaches = MAX_BREACHES
    for name in "abcd":
        b.add(name)
    assert b.step() == ["a", "b", "c"]


def test_slowness_in_three_steps_in_a_row_is_a_breach(bench: Make, caplog: pytest.LogCaptureFixture) -> None:
    b = bench(Answers(lambda n: reversed(range(n))), max_num_seqs=1, time_limit_s=0.005, starvation_s=1000.0)
    durations = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    inner = b.policy.answer

    def slow(size: int) -> Any:
        b.now += durations.pop(0)
        return inner(size)

    b.policy.answer = slow
    for name in "abcdefghi":
        b.add(name, max_tokens=1, arrival_s=float(ord(name)))
    order = []
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            order += b.step()
    # The sixth call is the third slow one in a row, so that step goes to the oldest; then the count is new.
    assert order == ["i", "h", "g", "f", "e", "a", "d"]
    assert b.guard.breaches == 1
    assert "slower than 0.005 s in 3 steps" in caplog.text


def test_without_a_limit_slowness_is_no_breach(bench: Make) -> None:
    b = bench(max_num_seqs=1, policy=Answers(lambda n: range(n)))

    def slow(size: int) -> Any:
        b.now += 1.0
        return range(size)

    b.policy.answer = slow
    for index in range(6):
        b.add(f"r{index}", max_tokens=1)
    b.run_out()
    assert b.guard.breaches == 0


def test_who_waits_too_long_goes_first_whatever_the_policy_says(bench: Make) -> None:
    b = bench(LastFirst(), max_num_seqs=1, starvation_s=30.0)
    b.add("old", max_tokens=1, arrival_s=0.0)
    admitted = []
    for index in range(8):
        b.now = 5.0 * (index + 1)
        b.add(f"new{index}", max_tokens=1, arrival_s=b.now)
        admitted += b.step()
    assert admitted.index("old") == 6, "5, 10, ... 30 s are not beyond the bound, 35 s are"
    assert b.guard.breaches == 0


def test_the_starvation_bound_holds_against_keys_too(bench: Make) -> None:
    class ByPriority(SchedulerPolicy):
        def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
            return (view.priority,)

    b = bench(ByPriority(), max_num_seqs=1)
    b.add("low", max_tokens=1, arrival_s=0.0, priority=9)
    b.add("high", max_tokens=1, arrival_s=1.0)
    b.add("late", max_tokens=1, arrival_s=2.0)
    assert b.step() == ["high"]
    b.now = 31.0
    assert b.step() == ["low"]
    assert b.step() == ["late"]


def test_all_that_starve_go_first_in_order_of_arrival(bench: Make) -> None:
    policy = LastFirst()
    b = bench(policy, max_num_seqs=3)
    for name in "abcd":
        b.add(name)
    b.now = 32.5
    assert b.step() == ["a", "b", "d"], "a and b wait longer than 30 s, c and d do not"
    assert policy.seen == [["c", "d"]]


@pytest.mark.parametrize("key", [(None,), (True,), ([1],), (1 + 2j,), None, 7, (float("nan"),)])
def test_a_key_of_the_wrong_type_counts_as_no_key(bench: Make, key: Any) -> None:
    class OddKey(SchedulerPolicy):
        def key(self, view: WaitingView) -> Any:
            return key if view.id == "odd" else (0,)

    b = bench(OddKey(), max_num_seqs=1)
    state = b.add("odd", arrival_s=3.5)
    assert b.guard.breaches == 1
    assert state.order_key == ((), 3.5, "odd")
    b.add("plain")
    b.run_out()


def test_a_key_that_raises_counts_as_no_key(bench: Make) -> None:
    class Broken(SchedulerPolicy):
        def key(self, view: WaitingView) -> Any:
            raise KeyError("no such tenant")

    b = bench(Broken())
    b.add("b")
    b.add("a")
    assert b.guard.breaches == 2
    assert b.step() == ["b", "a"]


def test_keys_of_mixed_types_and_lengths_still_compare(bench: Make) -> None:
    keys: list[tuple[int | float | str, ...]] = [("x",), (2,), (2.5, "y"), (), (2, "z"), ("x", 1)]

    class Mixed(SchedulerPolicy):
        def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
            return keys[int(view.id)]

    b = bench(Mixed(), max_num_seqs=6)
    for index in range(len(keys)):
        b.add(str(index))
    assert b.step() == ["3", "1", "4", "2", "0", "5"]
    assert b.guard.breaches == 0


def test_the_window_is_the_smallest_keys_and_no_more_than_the_policy_asks(bench: Make) -> None:
    policy = LastFirst()
    b = bench(policy, max_num_seqs=2)
    for name in "abcdefg":
        b.add(name)
    assert b.step() == ["d", "c"], "e, f and g were not in the window"
    assert policy.seen == [["a", "b", "c", "d"]]


@pytest.mark.parametrize(("window", "size"), [(0, 1), (-5, 1), (5000, 1024)])
def test_a_window_out_of_range_is_taken_to_the_nearest(bench: Make, window: int, size: int) -> None:
    policy = LastFirst()
    policy.window = window  # type: ignore[misc]
    b = bench(policy, max_num_seqs=1)
    for index in range(1100):
        b.add(f"r{index}")
    b.step()
    assert len(policy.seen[0]) == size


def test_order_is_asked_at_most_once_per_step_and_not_without_room(bench: Make) -> None:
    policy = LastFirst()
    b = bench(policy, max_num_seqs=2)
    for name in "abcd":
        b.add(name)
    b.step()
    assert len(policy.seen) == 1
    b.step()
    assert len(policy.seen) == 1, "no row is free, so nobody can be admitted"


def test_a_static_policy_is_never_asked_for_an_order(bench: Make) -> None:
    class Static(Answers):
        static = True

    policy = Static(raises)
    b = bench(policy)
    for name in "ab":
        b.add(name)
    b.run_out()
    assert policy.calls == 0
    assert b.guard.breaches == 0


def test_a_waiting_view_tells_what_is_cached(bench: Make) -> None:
    class Looks(SchedulerPolicy):
        static = False
        views: list[WaitingView]

        def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
            self.views = list(window)
            return range(len(window))

    policy = Looks()
    b = bench(policy, caching=True, max_num_seqs=1)
    first = b.add("first", prompt=range(9), max_tokens=1)
    b.step()
    b.add("second", prompt=range(10), priority=3)
    b.now = 12.0
    b.step()
    [view] = policy.views
    assert view.cached_tokens == 8
    assert view.block_hashes == tuple(first.hashes[:2])
    assert (view.num_prompt_tokens, view.priority, view.age_s) == (10, 3, 10.0)


def test_what_is_cached_is_looked_up_again_when_the_cache_changed_and_forgotten_at_the_end(
    bench: Make,
) -> None:
    class Looks(SchedulerPolicy):
        static = False

        def __init__(self) -> None:
            self.cached: list[dict[str, int]] = []

        def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
            self.cached.append({view.id: view.cached_tokens for view in window})
            return range(len(window))

    policy = Looks()
    b = bench(policy, caching=True, num_blocks=4, max_num_seqs=2)
    b.add("first", prompt=range(9), max_tokens=3)
    b.add("second", prompt=range(9), max_tokens=3)
    b.step()
    b.step()
    assert policy.cached == [{"first": 0, "second": 0}, {"second": 8}]
    b.run_out()
    assert len(b.guard._views) == 0


def test_a_policy_that_is_off_is_told_nothing(bench: Make) -> None:
    policy = Listens()
    b = bench(policy)
    b.guard.breaches = MAX_BREACHES
    b.add("a")
    b.run_out()
    assert policy.steps == []


class OwnVictim(SchedulerPolicy):
    """Preempts what it is told to."""

    def __init__(self, choice: Any) -> None:
        self.choice = choice
        self.shown: list[list[str]] = []

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> Any:
        self.shown.append([view.id for view in running])
        if isinstance(self.choice, Exception):
            raise self.choice
        return self.choice


def crowd(bench: Make, policy: SchedulerPolicy) -> Any:
    """Three requests of one block each in three blocks, about to need a second one."""
    b = bench(policy, num_blocks=3, max_num_seqs=3)
    for name in "abc":
        b.add(name, length=4, max_tokens=6)
    b.step()
    return b


def test_the_policy_chooses_whom_to_preempt(bench: Make) -> None:
    policy = OwnVictim(0)
    b = crowd(bench, policy)
    b.step()
    assert policy.shown[0] == ["b", "c"]
    assert b.running() == ["a", "c"]
    assert b.guard.breaches == 0
    b.run_out()


def test_none_leaves_the_choice_to_the_core(bench: Make) -> None:
    b = crowd(bench, OwnVictim(None))
    b.step()
    assert b.running() == ["a", "b"]
    assert b.guard.breaches == 0
    b.run_out()


@pytest.mark.parametrize("choice", [2, -1, True, 0.0, "b", ValueError("boom")], ids=repr)
def test_a_bad_victim_gives_the_cores_own(bench: Make, choice: Any) -> None:
    b = crowd(bench, OwnVictim(choice))
    b.step()
    assert b.running() == ["a", "b"]
    assert b.guard.breaches >= 1
    b.run_out()


class Listens(SchedulerPolicy):
    """Keeps the events of each step."""

    def __init__(self) -> None:
        self.steps: list[list[Event]] = []

    def on_events(self, events: Sequence[Event]) -> None:
        self.steps.append(list(events))


def test_events_come_once_per_step_in_the_order_they_happened(bench: Make) -> None:
    policy = Listens()
    b = bench(policy, num_blocks=3, max_num_seqs=3)
    b.add("a", length=4, max_tokens=6)
    b.add("b", length=4, max_tokens=6)
    b.add("c", length=4, max_tokens=1)
    b.step()
    b.step()
    b.run_out()
    b.scheduler.finish("unknown")
    b.scheduler.schedule()
    assert [(type(event), event.id) for event in policy.steps[0]] == [(Arrived, name) for name in "abc"]
    assert policy.steps[1] == [
        Scheduled("a", 4),
        Scheduled("b", 4),
        Scheduled("c", 4),
        Finished("c", 1),
    ]
    flat = [event for events in policy.steps for event in events]
    assert Preempted("b") in flat
    assert flat[-1] == Finished("b", 6)
    assert [e for e in flat if isinstance(e, Finished)] == [
        Finished("c", 1),
        Finished("a", 6),
        Finished("b", 6),
    ]
    assert all(policy.steps), "a step without news is not told"


def test_events_that_raise_are_a_breach_and_harm_nobody(bench: Make) -> None:
    class Deaf(SchedulerPolicy):
        def on_events(self, events: Sequence[Event]) -> None:
            raise RuntimeError("boom")

    b = bench(Deaf())
    b.add("a")
    b.run_out()
    assert b.guard.breaches >= 1


def test_a_breach_names_the_policy_as_registered_and_its_line(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench(Answers(raises))
    memory = b.scheduler.memory
    guard = PolicyGuard(Answers(raises), lambda: 0.0, memory, name="fair")
    waiting = [b.add(name) for name in "ab"]
    with caplog.at_level(logging.WARNING):
        assert list(guard.candidates(b.scheduler.waiting, b.scheduler.context(8))) == waiting
    [message] = [record.getMessage() for record in caplog.records]
    line = raises.__code__.co_firstlineno + 1
    assert message.startswith(f"policy fair ({Answers.__module__}:Answers) loses its turn: order: ")
    assert message.endswith(f"RuntimeError: boom at {__file__}:{line} (breach 1)")
