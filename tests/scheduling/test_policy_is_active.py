"""A policy may leave a step to the keys, which costs no window and no views; its answer is judged too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vtcore.interfaces.scheduler_policy import PolicyContext, SchedulerPolicy, WaitingView
from vtcore.scheduling.policy_guard import MAX_BREACHES
from vtcore.scheduling.waiting import WaitingQueue

Make = Callable[..., Any]


class SometimesLastFirst(SchedulerPolicy):
    """By priority; while active, the last of the window first. Keeps what it was asked."""

    static = False
    window = 4

    def __init__(self, answer: Callable[[PolicyContext], Any]) -> None:
        self.answer = answer
        self.asked: list[PolicyContext] = []
        self.ordered: list[PolicyContext] = []

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.priority,)

    def is_active(self, ctx: PolicyContext) -> Any:
        self.asked.append(ctx)
        return self.answer(ctx)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        self.ordered.append(ctx)
        return range(len(window) - 1, -1, -1)


def queue(b: Any) -> None:
    """Four requests, of which the second goes first by its key."""
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", 1)):
        b.add(name, priority=priority)


def test_an_inactive_policy_leaves_the_step_to_the_keys(bench: Make) -> None:
    policy = SometimesLastFirst(lambda ctx: False)
    b = bench(policy, max_num_seqs=3)
    queue(b)
    assert b.step() == ["b", "a", "c"], "more than one is admitted, as under a static policy"
    assert len(policy.asked) == 1
    assert policy.ordered == []
    assert b.guard.breaches == 0
    b.run_out()


def test_an_active_policy_orders_the_situation_it_was_asked_about(bench: Make) -> None:
    policy = SometimesLastFirst(lambda ctx: ctx.num_waiting == 4)
    b = bench(policy, max_num_seqs=2)
    queue(b)
    assert b.step() == ["d", "c"]
    assert policy.ordered == policy.asked
    assert policy.asked[0].num_waiting == 4
    b.run_out()
    assert len(policy.ordered) == 1


def test_an_inactive_policy_costs_no_window_and_no_views(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(SometimesLastFirst(lambda ctx: False), max_num_seqs=1)
    queue(b)

    def refuse(*args: object) -> Any:
        raise AssertionError("asked for nobody")

    monkeypatch.setattr(WaitingQueue, "smallest", refuse)
    monkeypatch.setattr("vtcore.scheduling.policy_views.WaitingView", refuse)
    assert b.step() == ["b"]


def raises(ctx: PolicyContext) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    "answer",
    [raises, lambda ctx: None, lambda ctx: 1, lambda ctx: "no"],
    ids=["raises", "none", "one", "text"],
)
def test_a_bad_answer_gives_first_come_first_served_for_that_step(
    bench: Make, answer: Callable[[PolicyContext], Any], caplog: pytest.LogCaptureFixture
) -> None:
    policy = SometimesLastFirst(answer)
    b = bench(policy, max_num_seqs=2)
    queue(b)
    with caplog.at_level(logging.WARNING):
        assert sorted(b.step()) == ["a", "b"], "by arrival, whatever the keys and the order say"
    assert b.guard.breaches == 1
    [record] = caplog.records
    assert "is_active" in record.getMessage()
    assert policy.ordered == []
    b.guard.breaches = MAX_BREACHES
    b.scheduler.finish("a")
    b.step()
    assert len(policy.asked) == 1, "a policy that is off is not asked"
    b.run_out()


def test_a_static_policy_is_not_asked(bench: Make) -> None:
    class Static(SometimesLastFirst):
        static = True

    policy = Static(raises)
    b = bench(policy)
    queue(b)
    b.run_out()
    assert policy.asked == []
    assert b.guard.breaches == 0
