"""Admission, growth, preemption and commit of one scheduler, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from vtcore.errors import EngineError
from vtcore.interfaces.batch import RowResult, StepResult
from vtcore.interfaces.scheduler_policy import SchedulerPolicy, WaitingView
from vtcore.scheduling.commit import commit
from vtcore.scheduling.request_state import Status
from vtcore.testing.toy_arch import ToyBlocks, ToyState

Make = Callable[..., Any]
HYBRID = (ToyBlocks(layers=("whole",), block_size=4), ToyState(layers=("state",), block_size=4))


def test_nothing_to_do_gives_no_frame(bench: Make) -> None:
    b = bench()
    assert b.scheduler.schedule() is None
    assert b.scheduler.counters.stalls == 0


def test_an_id_in_use_is_refused(bench: Make) -> None:
    b = bench()
    b.add("a")
    with pytest.raises(EngineError, match="'a' is in use"):
        b.add("a")
    b.scheduler.finish("a")
    b.add("a")
    b.run_out()


def test_a_prompt_is_computed_in_chunks_of_the_budget_and_sampled_at_its_end(bench: Make) -> None:
    b = bench(budget=4)
    state = b.add("a", length=10, max_tokens=3)
    seen = []
    for _ in range(5):
        frame = b.scheduler.schedule()
        batch = frame.batch
        assert batch.num_tokens <= 4
        seen.append(
            [(p.start, len(p.ids), p.sample, p.next_id) for p in batch.prefill]
            + [("decode", r) for r in batch.uniform]
        )
        b.commit(frame)
    first = state.req.prompt_token_ids
    assert seen == [
        [(0, 4, False, first[4])],
        [(4, 4, False, first[8])],
        [(8, 2, True, None)],
        [("decode", 1)],
        [("decode", 1)],
    ]
    assert not b.scheduler.requests


def test_decoding_rows_come_before_prompts_within_one_budget(bench: Make) -> None:
    b = bench(budget=4)
    b.add("a", length=2)
    b.step()
    b.add("b", length=6)
    frame = b.scheduler.schedule()
    assert [r.id for r in frame.requests] == ["a", "b"]
    assert frame.queries == [1, 3]
    assert frame.num_uniform == 1


def test_rows_of_uniform_queries_are_taken_whole_or_not_at_all(bench: Make) -> None:
    b = bench(budget=5, captured_k=(0, 1), max_num_seqs=4)
    for name in "abc":
        b.add(name, length=1)
    b.step()
    frame = b.scheduler.schedule()
    assert frame.batch.num_drafts_in == 1
    # Five tokens hold two queries of two; the fifth stays unused.
    assert [r.id for r in frame.requests] == ["a", "b"]
    assert frame.batch.num_tokens == 4


def test_drafts_in_never_exceed_the_budget(bench: Make) -> None:
    b = bench(budget=2, captured_k=(0, 1, 3))
    b.add("a", length=1)
    b.step()
    assert b.scheduler.schedule().batch.num_drafts_in == 1


def test_a_row_is_not_launched_again_before_it_could_go_on(bench: Make) -> None:
    b = bench()
    b.add("a", max_tokens=2)
    prefill = b.scheduler.schedule()
    decode = b.scheduler.schedule()
    assert decode.num_uniform == 1
    # Both tokens are in flight, so there is nothing to launch and the step stalls.
    assert b.scheduler.schedule() is None
    assert b.scheduler.counters.stalls == 1
    b.commit(prefill)
    [update] = b.commit(decode)
    assert (update.finish_reason, update.tokens) == ("length", (1,))
    b.run_out()


def test_the_head_of_the_queue_blocks_those_behind_it(bench: Make) -> None:
    b = bench(num_blocks=4)
    b.add("a", length=8, max_tokens=2)
    b.step()
    b.add("big", length=13, max_tokens=1)
    b.add("small", length=1, max_tokens=1)
    assert b.step() == ["a"], "small would fit, but it may not pass"
    assert b.step() == ["big"]
    assert b.step() == ["small"]


def test_the_head_blocks_under_a_policy_with_an_order_of_its_own_too(bench: Make) -> None:
    class BigFirst(SchedulerPolicy):
        static = False

        def order(self, window: Any, ctx: Any) -> Any:
            return sorted(range(len(window)), key=lambda i: -window[i].num_prompt_tokens)

    b = bench(BigFirst(), num_blocks=4)
    b.add("a", length=8, max_tokens=2)
    b.step()
    b.add("small", length=1, max_tokens=1)
    b.add("big", length=13, max_tokens=1)
    assert b.step() == ["a"]
    assert b.step() == ["big"]


def test_the_last_admitted_is_preempted_and_nobody_admitted_in_that_step(bench: Make) -> None:
    b = bench(num_blocks=3, max_num_seqs=4)
    for name in "abc":
        b.add(name, length=4, max_tokens=6)
    b.step()
    b.add("d", length=1, max_tokens=1)
    names = b.step()
    # c gave its block to a; b needs one too and nobody later is left, so it waits for a.
    assert "c" not in names
    assert "d" not in names
    assert names[0] == "a"
    assert b.scheduler.counters.preemptions >= 1
    assert b.scheduler.requests["c"].status is Status.WAITING
    assert b.scheduler.requests["d"].status is Status.WAITING
    b.run_out()


class ByPriority(SchedulerPolicy):
    """Small numbers go first."""

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.priority,)


def test_nobody_is_admitted_in_a_step_that_preempted_though_there_is_room(bench: Make) -> None:
    b = bench(ByPriority(), num_blocks=3)
    b.add("a", length=4, max_tokens=4)
    b.add("big", length=5, max_tokens=3)
    b.step()
    b.add("urgent", length=1, max_tokens=1, priority=-1)
    # big gave two blocks for the one that a needs.
    assert b.step() == ["a"]
    assert b.scheduler.counters.preemptions == 1
    assert b.scheduler.memory.num_free == (1,)
    assert b.step() == ["a", "urgent"]
    b.run_out()


def test_nobody_is_admitted_while_a_running_row_lacks_blocks_though_there_is_room(bench: Make) -> None:
    b = bench(num_blocks=6, captured_k=(0, 5))
    b.add("a", length=5, max_tokens=3)
    b.add("c", length=3, max_tokens=2)
    b.add("last", length=8, max_tokens=10)
    b.step()
    b.add("new", length=1, max_tokens=1)
    # The last one wants two blocks and one is free; the new one would take it away.
    assert b.scheduler.memory.num_free == (1,)
    assert b.step() == ["a", "c"]
    assert b.scheduler.counters.preemptions == 0
    b.run_out()


def test_an_urgent_latecomer_is_visited_first_and_takes_blocks_from_the_earlier(bench: Make) -> None:
    b = bench(ByPriority(), num_blocks=3, max_num_seqs=2)
    b.add("early", length=5, max_tokens=3, priority=5)
    b.step()
    b.add("urgent", length=4, max_tokens=5, priority=1)
    b.step()
    assert b.running() == ["urgent", "early"]
    assert b.step() == ["urgent"]
    assert b.running() == ["urgent"]
    b.run_out()


def test_a_preempted_request_returns_before_those_that_came_later(bench: Make) -> None:
    b = bench(num_blocks=3, max_num_seqs=3)
    for name in "abc":
        b.add(name, length=4, max_tokens=5)
    b.step()
    b.add("d", length=1, max_tokens=1)
    order = [name for _ in range(40) for name in b.step()]
    assert order.index("d") > max(i for i, name in enumerate(order[: order.index("d")]) if name == "c")
    b.run_out()


def test_a_preempted_request_is_computed_again_with_its_output(bench: Make) -> None:
    b = bench(num_blocks=3, max_num_seqs=3)
    states = [b.add(name, length=3, max_tokens=6) for name in "abc"]
    while not b.scheduler.counters.preemptions:
        b.step()
    victim = next(s for s in states if s.num_preemptions)
    known = len(victim.tokens)
    assert victim.num_output > 0
    frame: Any = None
    while victim.status is Status.WAITING:
        frame = b.scheduler.schedule()
        b.commit(frame)
    entry = next(p for p in frame.batch.prefill if p.row == victim.row)
    assert (entry.start, len(entry.ids), entry.sample) == (0, known, True)
    b.run_out()
    assert [s.num_output for s in states] == [6, 6, 6]


def test_nobody_is_preempted_if_all_later_ones_together_would_not_do(bench: Make) -> None:
    b = bench(num_blocks=5, max_num_seqs=3, captured_k=(0, 5))
    b.add("a", length=5, max_tokens=3)
    b.add("b", length=8, max_tokens=10)
    b.add("c", length=3, max_tokens=2)
    assert b.step() == ["a", "b", "c"]
    assert b.scheduler.memory.num_free == (0,)
    # b wants two blocks for its query of six and c could give one, so c keeps it and goes on.
    assert b.step() == ["a", "c"]
    assert b.scheduler.counters.preemptions == 0
    b.run_out()


def test_a_row_without_its_blocks_waits_and_others_go_on(bench: Make) -> None:
    b = bench(num_blocks=3, max_num_seqs=2)
    b.add("a", length=6, max_tokens=6)
    b.add("b", length=4, max_tokens=5)
    b.step()
    # b needs a second block, none is free and nobody comes after it.
    assert b.step() == ["a"]
    assert b.scheduler.counters.preemptions == 0
    b.run_out()


def test_a_second_request_finds_what_the_first_computed(bench: Make) -> None:
    b = bench(caching=True)
    b.add("a", prompt=range(9), max_tokens=1)
    b.step()
    b.add("b", prompt=range(9), max_tokens=1)
    frame = b.scheduler.schedule()
    [entry] = frame.batch.prefill
    assert (entry.start, len(entry.ids)) == (8, 1)
    assert frame.batch.inits[0].computed == 8
    [update] = b.commit(frame)
    assert update.num_cached_tokens == 8
    assert (b.scheduler.counters.hits, b.scheduler.counters.hit_tokens) == (1, 8)


def test_a_step_that_admits_says_so_in_inits_and_copies(bench: Make) -> None:
    b = bench(specs=HYBRID)
    state = b.add("a", length=5)
    batch = b.scheduler.schedule().batch
    [init], [copy] = batch.inits, batch.before
    assert (init.row, init.computed, init.prompt_len, init.limit) == (state.row, 0, 5, 13)
    assert init.tables[0] == tuple(state.blocks[0])
    assert init.slots[1] == tuple(state.slots[1])
    assert (copy.pool, copy.src, copy.dst) == (1, 0, state.slots[1][0])
    assert init.tokens == (), "nothing reads the history of a greedy row"


@pytest.mark.parametrize("status", ["waiting", "running", "in flight", "unknown"])
def test_finishing_is_legal_in_every_state_and_twice(bench: Make, status: str) -> None:
    b = bench()
    frame = None
    if status != "unknown":
        b.add("a")
    if status == "running":
        b.step()
    if status == "in flight":
        frame = b.scheduler.schedule()
    found = b.scheduler.finish("a")
    assert (found is None) == (status == "unknown")
    assert b.scheduler.finish("a") is None
    if frame is not None:
        assert b.commit(frame) == []
        assert b.scheduler.counters.late_results == 1
    assert len(b.scheduler.waiting) == 0
    assert b.scheduler.schedule() is None
    b.run_out()


def test_results_of_a_row_that_changed_hands_are_dropped(bench: Make) -> None:
    b = bench(max_num_seqs=1)
    b.add("a")
    frame = b.scheduler.schedule()
    b.scheduler.finish("a")
    state = b.add("b")
    second = b.scheduler.schedule()
    assert second.rows.tolist() == frame.rows.tolist()
    results = b.results(second)
    late = StepResult(frame.step, (RowResult(1, 0, (7,)),))
    assert commit(b.scheduler, frame, late) == []
    assert state.num_output == 0
    [update] = commit(b.scheduler, second, results)
    assert (update.id, update.tokens) == ("b", (1,))


def test_an_accepted_run_is_cut_at_the_stop_and_at_the_limit(bench: Make) -> None:
    b = bench(captured_k=(0, 3))
    stopped = b.add("stopped", max_tokens=9, stop=(5,))
    b.add("limited", max_tokens=3)
    b.step()
    frame = b.scheduler.schedule()
    assert frame.queries == [4, 4]
    rows = frame.rows.tolist()
    result = StepResult(
        frame.step, (RowResult(rows[0], 3, (4, 5, 5, 5)), RowResult(rows[1], 3, (6, 6, 6, 6)))
    )
    updates = {u.id: u for u in commit(b.scheduler, frame, result)}
    assert updates["stopped"].tokens == (4, 5)
    assert (updates["stopped"].finish_reason, updates["stopped"].stop_reason) == ("stop", 5)
    assert updates["limited"].tokens == (6, 6)
    assert updates["limited"].finish_reason == "length"
    assert stopped.tokens[-3:] == [1, 4, 5]
    b.run_out()


FORGERIES: dict[str, Callable[[StepResult], StepResult]] = {
    "another_step": lambda r: evolve(r, step=r.step + 1),
    "a_row_too_few": lambda r: evolve(r, rows=r.rows[:-1]),
    "a_row_too_many": lambda r: evolve(r, rows=(*r.rows, r.rows[0])),
    "another_row": lambda r: evolve(r, rows=(evolve(r.rows[0], row=3), *r.rows[1:])),
    "rows_in_another_order": lambda r: evolve(r, rows=r.rows[::-1]),
    "a_later_position": lambda r: evolve(r, rows=(evolve(r.rows[0], position=4), *r.rows[1:])),
    "an_earlier_position": lambda r: evolve(r, rows=(evolve(r.rows[0], position=2), *r.rows[1:])),
    "more_tokens_than_the_query": lambda r: evolve(r, rows=(evolve(r.rows[0], tokens=(1,) * 3), *r.rows[1:])),
    "a_prefill_with_two_tokens": lambda r: evolve(r, rows=(*r.rows[:-1], evolve(r.rows[-1], tokens=(1, 1)))),
    "a_prefill_elsewhere": lambda r: evolve(r, rows=(*r.rows[:-1], evolve(r.rows[-1], position=1))),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_result_is_an_engine_error(bench: Make, forge: Callable[[StepResult], StepResult]) -> None:
    b = bench(captured_k=(0, 1))
    b.add("a")
    b.step()
    b.add("b")
    frame = b.scheduler.schedule()
    assert (frame.num_uniform, len(frame.requests)) == (1, 2)
    good = b.results(frame)
    with pytest.raises(EngineError, match=r"got (results|a result) of"):
        commit(b.scheduler, frame, forge(good))


def test_a_token_for_a_chunk_that_does_not_end_the_prompt_is_an_engine_error(bench: Make) -> None:
    b = bench(budget=2)
    b.add("a", length=5)
    frame = b.scheduler.schedule()
    forged = StepResult(frame.step, (RowResult(1, 0, (9,)),))
    with pytest.raises(EngineError, match="a token for position 2 comes, 5 is next"):
        commit(b.scheduler, frame, forged)


def test_a_chunk_committed_before_an_earlier_one_is_an_engine_error(bench: Make) -> None:
    b = bench(budget=2)
    b.add("a", length=5)
    b.scheduler.schedule()
    second = b.scheduler.schedule()
    with pytest.raises(EngineError, match=r"row 1 at 0 \(bound 2, query 2, prefill True\)"):
        commit(b.scheduler, second, StepResult(second.step, (RowResult(1, 0, ()),)))


def test_a_stop_token_before_min_tokens_ends_nothing(bench: Make) -> None:
    b = bench()
    state = b.add("a", max_tokens=8, stop=(1,), min_tokens=3)
    while "a" in b.scheduler.requests:
        b.step()
    assert state.num_output == 3


def test_commits_out_of_order_are_an_engine_error(bench: Make) -> None:
    b = bench()
    b.add("a")
    b.scheduler.schedule()
    second = b.scheduler.schedule()
    forged = StepResult(second.step, (RowResult(1, 3, (9,)),))
    with pytest.raises(EngineError, match="got a result of row 1 at 3"):
        commit(b.scheduler, second, forged)


def test_a_key_orders_admission_and_preemption(bench: Make) -> None:
    b = bench(ByPriority(), num_blocks=3, max_num_seqs=3)
    b.add("low", length=4, max_tokens=6, priority=5)
    b.add("mid", length=4, max_tokens=6, priority=3)
    b.add("top", length=4, max_tokens=6, priority=1)
    assert b.step() == ["top", "mid", "low"]
    assert b.step()[0] == "top"
    assert b.scheduler.requests["low"].status is Status.WAITING
    b.run_out()
