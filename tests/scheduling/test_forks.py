"""Samples of one prompt compute it once: who waits for whom, what is shared, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vtcore.interfaces.batch import CopyOp, Fork
from vtcore.interfaces.scheduler_policy import Arrived, Event, Finished, Preempted, Scheduled, SchedulerPolicy
from vtcore.scheduling.request_state import RequestState, Status
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow

Make = Callable[..., Any]
BLOCKS = ToyBlocks(layers=("whole",), block_size=4)
WINDOW = ToyWindow(layers=("window",), block_size=4, window=5)
STATE = ToyState(layers=("state",), block_size=4)
EVERY = (BLOCKS, WINDOW, STATE)


def family(b: Any, n: int, length: int = 10, max_tokens: int = 4, **fields: Any) -> list[RequestState]:
    """n samples of one prompt, named s0, s1, ..."""
    prompt = tuple(range(length))
    return [
        b.add(f"s{i}", prompt=prompt, max_tokens=max_tokens, fork_of="s0" if i else "", **fields)
        for i in range(n)
    ]


def statuses(requests: Sequence[RequestState]) -> list[str]:
    return [request.status.value for request in requests]


def end(b: Any, *names: str) -> None:
    for name in names:
        b.scheduler.finish(name)


@pytest.mark.parametrize("specs", [(BLOCKS,), (STATE,), EVERY], ids=["blocks", "state", "every"])
@pytest.mark.parametrize(("length", "budget"), [(8, 64), (10, 64), (8, 4), (10, 4), (9, 8), (12, 5), (1, 64)])
def test_followers_wait_for_the_last_chunk_and_start_at_its_end(
    bench: Make, specs: tuple[Any, ...], length: int, budget: int
) -> None:
    b = bench(specs=specs, budget=budget, num_blocks=16)
    leader, *children = family(b, 3, length)
    assert statuses(children) == ["forking"] * 2
    assert len(b.scheduler.waiting) == 1
    for start in range(0, length, budget):
        frame = b.scheduler.schedule()
        is_last = start + budget >= length
        assert [r.id for r in frame.requests] == (["s0", "s1", "s2"] if is_last else ["s0"])
        if is_last:
            break
        assert statuses(children) == ["forking"] * 2
        b.commit(frame)
    batch = frame.batch
    assert batch.num_tokens == length - start
    assert batch.forks == tuple(Fork(leader.row, child.row) for child in children)
    computed = {init.row: init.computed for init in batch.inits}
    assert [computed[child.row] for child in children] == [start] * 2
    for child in children:
        for pool in b.scheduler.memory._paged:
            shared = length // 4
            assert child.blocks[pool][:shared] == leader.blocks[pool][:shared]
            assert not set(child.blocks[pool][shared:]) & set(leader.blocks[pool])
            copy = CopyOp(pool, leader.blocks[pool][-1], child.blocks[pool][-1])
            assert (copy in batch.after) == bool(length % 4)
        for pool in b.scheduler.memory._slot:
            assert CopyOp(pool, leader.slots[pool][0], child.slots[pool][0]) in batch.after
    updates = b.commit(frame)
    assert [update.id for update in updates] == ["s0", "s1", "s2"]
    assert {r.computed for r in (leader, *children)} == {length}
    b.scheduler.memory.check(b.scheduler.running)
    assert b.step() == ["s0", "s1", "s2"]
    b.run_out()
    assert b.scheduler.counters.forks == 2
    assert b.scheduler.counters.prefilled_tokens == length


@pytest.mark.parametrize("caching", [False, True])
def test_where_rows_are_short_the_others_wait_like_anyone(bench: Make, caching: bool) -> None:
    b = bench(max_num_seqs=2, caching=caching, num_blocks=16)
    requests = family(b, 4)
    b.step()
    assert statuses(requests) == ["running", "running", "waiting", "waiting"]
    b.run_out()
    assert b.scheduler.counters.forks == 1
    assert b.scheduler.counters.prefilled_tokens == (10 + 2 + 2 if caching else 30)


@pytest.mark.parametrize(("num_blocks", "length", "forks"), [(3, 10, 0), (4, 10, 1), (5, 10, 2), (2, 8, 2)])
def test_where_blocks_are_short_the_others_wait_and_hold_nothing(
    bench: Make, num_blocks: int, length: int, forks: int
) -> None:
    """A prompt that ends on a block's edge shares all it has, so a fork needs no block to start."""
    b = bench(num_blocks=num_blocks, max_model_len=num_blocks * 4)
    requests = family(b, 3, length, max_tokens=1)
    frame = b.scheduler.schedule()
    assert statuses(requests) == ["running"] * (1 + forks) + ["waiting"] * (2 - forks)
    assert all(not r.blocks and not r.slots and not r.row for r in requests[1 + forks :])
    b.scheduler.memory.check(b.scheduler.running)
    b.commit(frame)
    b.run_out()


def test_where_a_request_lacks_blocks_no_fork_starts(bench: Make) -> None:
    b = bench(num_blocks=3, budget=5, max_model_len=12)
    b.add("old", length=3, max_tokens=6, arrival_s=100.0)
    b.step()
    requests = family(b, 2, length=8, max_tokens=1, arrival_s=1.0)
    assert b.step() == ["old", "s0"]
    # `old` comes last, needs a second block and can take it from nobody.
    frame = b.scheduler.schedule()
    assert [r.id for r in frame.requests] == ["s0"]
    assert statuses(requests) == ["running", "waiting"]
    b.commit(frame)
    b.run_out()


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "x"},
        {"prompt": tuple(range(9))},
        {"prompt": tuple(range(1, 11))},
        {"prompt_logprobs": 0},
        {"fork_of": ""},
        {"fork_of": "nobody"},
        {"fork_of": "other"},
    ],
    ids=str,
)
def test_what_is_not_the_same_prompt_is_never_forked(bench: Make, fields: dict[str, Any]) -> None:
    b = bench(num_blocks=16, caching=True)
    prompt = tuple(range(10))
    b.add("s0", prompt=prompt, max_tokens=2)
    other = b.add("other", **{"prompt": prompt, "max_tokens": 2, "fork_of": "s0", **fields})
    assert other.status is Status.WAITING
    assert b.step() == ["s0", "other"]
    b.run_out()
    assert b.scheduler.counters.forks == 0


def test_a_leader_may_ask_for_more_than_its_followers(bench: Make) -> None:
    b = bench(num_blocks=16, caching=True)
    first = b.add("first", prompt=tuple(range(10)), max_tokens=1)
    b.step()
    leader = b.add("s0", prompt=tuple(range(10)), max_tokens=2, prompt_logprobs=1)
    child = b.add("s1", prompt=tuple(range(10)), max_tokens=2, fork_of="s0")
    b.run_out()
    assert b.scheduler.counters.forks == 1
    assert [r.num_cached_tokens for r in (first, leader, child)] == [0, 0, 0]


def test_a_request_that_names_itself_or_has_no_name_computes_its_prompt(bench: Make) -> None:
    b = bench()
    for name, fork_of in (("a", "a"), ("", ""), ("b", "")):
        request = b.add(name, prompt=(1, 2, 3), fork_of=fork_of)
        assert request.status is Status.WAITING
    assert b.step() == ["a", "", "b"]
    b.run_out()


def test_a_fork_of_a_fork_computes_its_prompt(bench: Make) -> None:
    b = bench(budget=4, num_blocks=16)
    _, child = family(b, 2)
    grandchildren = [b.add(f"g{i}", prompt=tuple(range(10)), max_tokens=2, fork_of="s1") for i in range(2)]
    assert statuses([child, *grandchildren]) == ["forking", "waiting", "waiting"]
    b.run_out()
    assert b.scheduler.counters.forks == 1


def test_a_follower_that_became_the_one_who_computes_can_be_followed(bench: Make) -> None:
    b = bench(budget=4, num_blocks=16)
    family(b, 2)
    b.step()
    end(b, "s0")
    grandchild = b.add("g", prompt=tuple(range(10)), max_tokens=2, fork_of="s1")
    assert grandchild.status is Status.FORKING
    b.run_out()
    assert b.scheduler.counters.forks == 1


@pytest.mark.parametrize("when", ["launched", "decoding", "preempted", "finished"])
def test_who_comes_after_the_end_of_the_prompt_computes_it(bench: Make, when: str) -> None:
    b = bench(num_blocks=16)
    leader = b.add("s0", prompt=tuple(range(10)), max_tokens=4)
    frame = b.scheduler.schedule()
    if when != "launched":
        b.commit(frame)
    if when == "preempted":
        b.scheduler.preempt(leader)
    elif when == "finished":
        end(b, "s0")
    late = b.add("late", prompt=tuple(range(10)), max_tokens=4, fork_of="s0")
    assert late.status is Status.WAITING
    if when == "launched":
        b.commit(frame)
    b.run_out()
    assert b.scheduler.counters.forks == 0


def test_a_fork_reports_what_its_leader_found_in_the_cache(bench: Make) -> None:
    b = bench(num_blocks=16, caching=True)
    b.add("before", prompt=tuple(range(9)), max_tokens=1)
    b.step()
    leader, *children = family(b, 3)
    frame = b.scheduler.schedule()
    assert [r.num_cached_tokens for r in (leader, *children)] == [8, 8, 8]
    assert [init.computed for init in frame.batch.inits] == [8, 8, 8]
    assert [u.num_cached_tokens for u in b.commit(frame)] == [8, 8, 8]
    b.run_out()
    counters = b.scheduler.counters
    assert (counters.queried_tokens, counters.hit_tokens, counters.hits) == (9 + 10, 8, 1)
    assert counters.prefilled_tokens == counters.queried_tokens - counters.hit_tokens


def test_a_preempted_fork_counts_as_preempted_and_hits_its_own_prompt(bench: Make) -> None:
    b = bench(num_blocks=16, caching=True)
    _, child = family(b, 2)
    b.step()
    b.scheduler.preempt(child)
    b.run_out()
    counters = b.scheduler.counters
    assert (counters.queried_tokens, counters.hit_tokens) == (10, 0)
    assert (counters.preempted_queried_tokens, counters.preempted_hit_tokens) == (11, 8)
    assert child.num_cached_tokens == 0


@pytest.mark.parametrize(("length", "kept"), [(8, 2), (10, 1), (16, 2)])
def test_the_states_of_a_common_prompt_are_kept_once(bench: Make, length: int, kept: int) -> None:
    b = bench(specs=(BLOCKS, STATE), num_blocks=16, caching=True, num_checkpoints=6)
    b.scheduler.memory._checkpoint_interval = 100
    family(b, 3, length, max_tokens=1)
    b.run_out()
    # The last grid point before the end, and the end itself if it is one.
    assert b.scheduler.counters.state_checkpoints == kept
    assert b.scheduler.counters.state_checkpoints_skipped == 0


class Listener(SchedulerPolicy):
    """Remembers every event."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def on_events(self, events: Sequence[Event]) -> None:
        self.events += events


def test_a_policy_hears_of_forks_as_of_others_and_their_start_costs_nothing(bench: Make) -> None:
    policy = Listener()
    b = bench(policy=policy, num_blocks=16, budget=8)
    family(b, 2, max_tokens=2)
    b.run_out()
    b.scheduler.schedule()
    told = {
        name: [e for e in policy.events if e.id == name and not isinstance(e, Arrived)]
        for name in ("s0", "s1")
    }
    assert told["s0"] == [Scheduled("s0", 8), Scheduled("s0", 2), Scheduled("s0", 1), Finished("s0", 2)]
    assert told["s1"] == [Scheduled("s1", 0), Scheduled("s1", 1), Finished("s1", 2)]
    assert [e.id for e in policy.events if isinstance(e, Arrived)] == ["s0", "s1"]
    assert not any(isinstance(e, Preempted) for e in policy.events)
