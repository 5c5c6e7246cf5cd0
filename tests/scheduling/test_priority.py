"""Priority: the smallest number first, and the least urgent request is preempted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from vtcore.scheduling.policies.priority import PriorityPolicy

Make = Callable[..., Any]


def test_smaller_numbers_go_first_then_earlier_arrivals(bench: Make) -> None:
    b = bench(PriorityPolicy(), max_num_seqs=1)
    for name, priority in (("low", 5), ("high", -5), ("mid", 0), ("mid2", 0)):
        b.add(name, priority=priority, max_tokens=1)
    assert [b.step()[0] for _ in range(4)] == ["high", "mid", "mid2", "low"]


def test_a_late_urgent_request_passes_those_that_wait_but_preempts_nobody_for_a_row(bench: Make) -> None:
    b = bench(PriorityPolicy(), max_num_seqs=1)
    b.add("running", priority=9, max_tokens=2)
    b.step()
    b.add("waits", priority=1, max_tokens=1)
    b.add("urgent", priority=0, max_tokens=1)
    assert b.step() == ["running"]
    assert [b.step()[0], b.step()[0]] == ["urgent", "waits"]


def test_a_preempted_request_keeps_its_place_among_equals(bench: Make) -> None:
    b = bench(PriorityPolicy(), num_blocks=3, max_num_seqs=3)
    for name, priority in (("a", 0), ("b", 1), ("c", 1)):
        b.add(name, length=4, max_tokens=6, priority=priority)
    b.step()
    b.add("later", length=4, max_tokens=1, priority=1)
    b.step()
    # The greatest of (priority, arrival) gave way, and waits before its equal that came later.
    assert b.running() == ["a", "b"]
    assert [request.id for request in b.scheduler.waiting.smallest(9)] == ["c", "later"]
    b.run_out()


def test_who_waits_too_long_goes_first_whatever_its_number(bench: Make) -> None:
    b = bench(PriorityPolicy(), max_num_seqs=1)
    for name, priority in (("low", 9), ("lower", 8), ("high", 0)):
        b.add(name, max_tokens=1, priority=priority)
    b.now = 33.5
    b.add("new", max_tokens=1, priority=0, arrival_s=33.0)
    assert [b.step()[0] for _ in range(4)] == ["low", "lower", "high", "new"]


@pytest.mark.parametrize("seed", range(20))
def test_the_victim_is_the_first_greatest_of_priority_and_arrival(seed: int, bench: Make) -> None:
    # The rule of vllm.cpp's scheduler, which looks through the running requests in order of admission.
    random = Random(seed)
    b = bench(PriorityPolicy(), max_num_seqs=8, num_blocks=40)
    for index, arrival in enumerate(random.sample(range(100), 8)):
        b.add(str(index), priority=random.randrange(3), arrival_s=float(arrival))
        if random.random() < 0.5:
            b.step()
    b.step()
    running = b.scheduler.running
    assert len(running) == 8
    by_admission = sorted(running, key=lambda request: request.admission)
    expected = max(by_admission, key=lambda request: (request.req.priority, request.req.arrival_s))
    assert b.guard.victim(running, b.scheduler.context(64)) is expected
