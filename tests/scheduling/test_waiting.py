"""The waiting queue: order, re-entry, and forgotten requests that cost little."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.scheduling.request_state import RequestState, Status
from vtcore.scheduling.waiting import WaitingQueue


def request(name: str, key: int = 0, arrival_s: float = 0.0) -> RequestState:
    req = EngineRequest(id=name, prompt_token_ids=(1,), params=RowParams(), max_tokens=1, arrival_s=arrival_s)
    return RequestState(req, [1], 2, order_key=(((0, key),), arrival_s, name))


def leave(queue: WaitingQueue, state: RequestState, status: Status = Status.RUNNING) -> None:
    state.status = status
    queue.discard(state)


def come_back(queue: WaitingQueue, state: RequestState) -> None:
    state.status = Status.WAITING
    state.num_preemptions += 1
    queue.push(state)


def names(states: list[RequestState]) -> list[str]:
    return [state.id for state in states]


def test_an_empty_queue_has_no_first_and_no_oldest() -> None:
    queue = WaitingQueue()
    assert (len(queue), queue.first(), queue.oldest(), queue.smallest(3)) == (0, None, None, [])


def test_requests_come_by_key_then_arrival_then_id() -> None:
    queue = WaitingQueue()
    for state in (request("d", 1, 5.0), request("c", 1, 2.0), request("b", 1, 2.0), request("a", 2, 0.0)):
        queue.push(state)
    assert names(queue.smallest(9)) == ["b", "c", "d", "a"]
    first = queue.first()
    assert first is not None
    assert first.id == "b"


def test_a_preempted_request_stands_before_equals_that_came_later() -> None:
    queue = WaitingQueue()
    early, late = request("z", 1, 1.0), request("a", 1, 2.0)
    queue.push(early)
    leave(queue, early)
    queue.push(late)
    assert names(queue.smallest(9)) == ["a"]
    come_back(queue, early)
    assert names(queue.smallest(9)) == ["z", "a"]
    assert len(queue) == 2
    assert queue.oldest() is early


def test_a_request_that_left_and_came_back_is_found_once() -> None:
    queue = WaitingQueue()
    states = [request(f"r{i}", i, float(i)) for i in range(4)]
    for state in states:
        queue.push(state)
    # It leaves from the middle of the heap, where its old entry stays behind.
    leave(queue, states[2])
    come_back(queue, states[2])
    assert len(queue) == 4
    assert names(queue.smallest(9)) == ["r0", "r1", "r2", "r3"]


def test_the_oldest_is_who_arrived_first_whatever_its_key() -> None:
    queue = WaitingQueue()
    old, new = request("old", 9, 1.0), request("new", 0, 2.0)
    queue.push(old)
    queue.push(new)
    assert queue.oldest() is old
    leave(queue, old, Status.FINISHED)
    assert queue.oldest() is new


def test_a_wait_begins_anew_when_its_request_is_preempted() -> None:
    queue = WaitingQueue()
    old, new = request("old", 9, 1.0), request("new", 0, 2.0)
    queue.push(new)
    old.waits_since = 3.0
    queue.push(old)
    assert queue.oldest() is new


def test_forgotten_requests_do_not_pile_up() -> None:
    queue = WaitingQueue()
    keeper = request("keeper", -1)
    queue.push(keeper)
    for index in range(2000):
        state = request(f"r{index}", index)
        queue.push(state)
        leave(queue, state, Status.FINISHED)
        assert len(queue) == 1
    assert len(queue._heap) <= 2 * 1 + 64 + 1
    assert len(queue._arrivals) <= 2 * 1 + 64 + 1
    assert names(queue.smallest(5)) == ["keeper"]


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_smallest_gives_at_most_what_is_asked(size: int) -> None:
    queue = WaitingQueue()
    for index in range(10):
        queue.push(request(f"r{index}", index))
    assert names(queue.smallest(size)) == [f"r{i}" for i in range(min(size, 10))]


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_use_gives_the_sorted_order_of_who_waits(seed: int, steps: int) -> None:
    random, queue = Random(seed), WaitingQueue()
    waiting: list[RequestState] = []
    running: list[RequestState] = []
    for step in range(steps):
        action = random.randrange(4)
        if action <= 1:
            state = request(f"r{step}", random.randrange(4), float(random.randrange(3)))
            queue.push(state)
            waiting.append(state)
        elif action == 2 and waiting:
            state = waiting.pop(random.randrange(len(waiting)))
            finished = random.random() < 0.3
            leave(queue, state, Status.FINISHED if finished else Status.RUNNING)
            running += [] if finished else [state]
        elif running:
            state = running.pop(random.randrange(len(running)))
            come_back(queue, state)
            waiting.append(state)
        expected = sorted(waiting, key=lambda r: r.order_key)
        for size in (1, 3, 50):
            assert queue.smallest(size) == expected[:size]
        assert queue.first() is (expected[0] if expected else None)
        assert len(queue) == len(waiting)
        oldest = queue.oldest()
        assert (oldest in waiting) if waiting else (oldest is None)
