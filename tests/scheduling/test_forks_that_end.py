"""What becomes of samples that share a prompt when one of them, the cache or a step ends meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

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


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_leader_that_ends_before_its_prompt_does_leaves_it_to_the_next(bench: Make, chunks: int) -> None:
    b = bench(budget=4, specs=EVERY, num_blocks=16)
    _, first, second, third = family(b, 4)
    for _ in range(chunks):
        b.step()
    end(b, "s0")
    assert statuses((first, second, third)) == ["waiting", "forking", "forking"]
    assert second.leader is third.leader is first
    end(b, "s1")
    assert statuses((second, third)) == ["waiting", "forking"]
    b.run_out()
    assert b.scheduler.counters.forks == 1
    assert b.scheduler.counters.prefilled_tokens == 4 * chunks + 10


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("how", ["finish", "preempt"])
def test_a_leader_that_is_gone_after_its_prompt_takes_nothing_from_its_forks(
    bench: Make, how: str, is_committed: bool
) -> None:
    b = bench(specs=EVERY, num_blocks=16, max_num_seqs=3, caching=True)
    leader, *children = family(b, 3)
    frame = b.scheduler.schedule()
    if is_committed:
        b.commit(frame)
    held = [list(child.blocks[0]) for child in children]
    if how == "finish":
        end(b, "s0")
    else:
        b.scheduler.preempt(leader)
    if not is_committed:
        assert [update.id for update in b.commit(frame)] == ["s1", "s2"]
        assert b.scheduler.counters.late_results == 1
    b.scheduler.memory.check(b.scheduler.running)
    assert statuses(children) == ["running"] * 2
    assert [child.blocks[0] for child in children] == held
    assert [child.computed for child in children] == [10, 10]
    b.run_out()
    assert b.scheduler.counters.forks == 2


def test_forks_publish_a_prompt_whose_leader_is_gone(bench: Make) -> None:
    b = bench(caching=True, num_blocks=16)
    family(b, 2)
    frame = b.scheduler.schedule()
    end(b, "s0")
    b.commit(frame)
    later = b.add("later", prompt=tuple(range(10)))
    b.step()
    assert later.num_cached_tokens == 8


def test_a_preempted_leader_is_still_waited_for(bench: Make) -> None:
    b = bench(budget=4, specs=EVERY, num_blocks=16)
    leader, child = family(b, 2)
    b.step()
    b.scheduler.preempt(leader)
    assert statuses((leader, child)) == ["waiting", "forking"]
    late = b.add("late", prompt=tuple(range(10)), max_tokens=4, fork_of="s0")
    assert late.status is Status.FORKING
    b.run_out()
    assert b.scheduler.counters.forks == 2
    assert b.scheduler.counters.prefilled_tokens == 4 + 10


def test_a_follower_that_ends_is_forgotten(bench: Make) -> None:
    b = bench(budget=4, num_blocks=16)
    leader, *_ = family(b, 4)
    b.step()
    end(b, "s2")
    assert [r.id for r in leader.followers] == ["s1", "s3"]
    b.step()
    end(b, "s1", "s1")
    b.step()
    assert b.running() == ["s0", "s3"]
    b.run_out()


def test_when_all_followers_end_the_leader_goes_on_alone(bench: Make) -> None:
    b = bench(budget=4)
    family(b, 3)
    b.step()
    end(b, "s1", "s2")
    b.run_out()
    assert b.scheduler.counters.forks == 0


def test_leader_and_followers_may_end_in_any_order_at_once(bench: Make) -> None:
    b = bench(budget=4)
    family(b, 3)
    b.step()
    end(b, "s1", "s0", "s2")
    assert not len(b.scheduler.waiting)
    b.run_out(0)


def test_two_steps_in_flight_share_what_is_not_committed_yet(bench: Make) -> None:
    b = bench(specs=(BLOCKS, WINDOW), budget=6, num_blocks=16, caching=True)
    leader, *children = family(b, 3)
    frames = [b.scheduler.schedule() for _ in range(3)]
    assert [[r.id for r in frame.requests] for frame in frames] == [
        ["s0"], ["s0", "s1", "s2"], ["s0", "s1", "s2"]
    ]  # fmt: skip
    end(b, "s0")
    for frame in frames:
        b.commit(frame)
        b.scheduler.memory.check(b.scheduler.running)
    assert [child.num_output for child in children] == [2, 2]
    assert leader.num_output == 0
    later = b.add("later", prompt=tuple(range(10)), max_tokens=1)
    b.step()
    assert later.num_cached_tokens == 8
    b.run_out()


def test_a_reset_of_the_cache_between_chunks_ends_the_wait(bench: Make) -> None:
    """What the leader has was computed before the reset, and its followers start after it."""
    b = bench(specs=EVERY, budget=4, num_blocks=16, caching=True)
    leader, first, second = family(b, 3)
    b.step()
    b.scheduler.reset_prefix_cache()
    assert statuses((leader, first, second)) == ["running", "waiting", "forking"]
    late = b.add("late", prompt=tuple(range(10)), fork_of="s0")
    assert late.status is Status.WAITING
    b.run_out()
    assert b.scheduler.counters.forks == 1
    assert first.num_cached_tokens == second.num_cached_tokens == 0


def test_a_reset_before_the_leader_starts_costs_nothing(bench: Make) -> None:
    b = bench(num_blocks=16, caching=True)
    family(b, 3)
    b.scheduler.reset_prefix_cache()
    b.run_out()
    assert b.scheduler.counters.forks == 2


def test_a_reset_after_a_fork_keeps_both_from_publishing(bench: Make) -> None:
    b = bench(num_blocks=16, caching=True)
    family(b, 2)
    frame = b.scheduler.schedule()
    b.scheduler.reset_prefix_cache()
    b.commit(frame)
    b.run_out()
    assert b.scheduler.memory.pools[0].by_hash == {}


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_after_a_failed_step_each_sample_computes_its_prompt(bench: Make, chunks: int) -> None:
    b = bench(specs=EVERY, budget=4, num_blocks=16, caching=True)
    requests = family(b, 3)
    for _ in range(chunks):
        b.step()
    b.scheduler.schedule()
    b.scheduler.rebuild()
    assert statuses(requests) == ["waiting"] * 3
    assert all(r.leader is None and not r.followers for r in requests)
    assert len(b.scheduler.waiting) == 3
    b.run_out()
    assert {r.num_output for r in requests} == {4}
