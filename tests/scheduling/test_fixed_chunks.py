"""Prompts whose chunks end at fixed positions: what is computed alike whatever runs beside it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from attrs import evolve

from vtcore.interfaces.batch import ScheduledBatch
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.scheduler import Scheduler
from vtcore.testing.draw_case import draw_case
from vtcore.testing.schedules import run_schedule, toy_registry
from vtcore.testing.toy_arch import ToyBlocks, ToyState

CHUNK = 8
REGISTRY = toy_registry()
BLOCKS: tuple[KVCacheSpec, ...] = (ToyBlocks(layers=("whole",), block_size=4),)
HYBRID: tuple[KVCacheSpec, ...] = (*BLOCKS, ToyState(layers=("state",), block_size=4, chunk=2))


def ends_of(bench: Any, name: str, others: int, before: bool) -> list[int]:
    """Ends of a prompt's chunks among other requests."""
    mates = [f"mate{i}" for i in range(others)]
    for mate in mates if before else ():
        bench.add(mate, length=5)
    bench.add(name, length=29, max_tokens=2)
    for mate in () if before else mates:
        bench.add(mate, length=5)
    ends = []
    for _ in range(100):
        frame = bench.scheduler.schedule()
        if frame is None:
            break
        for row in frame.batch.prefill:
            if row.row == bench.scheduler.requests[name].row and name in [r.id for r in frame.requests]:
                ends.append(row.start + len(row.ids))
        bench.commit(frame)
        if name not in bench.scheduler.requests:
            break
    return ends


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("budget", [11, 12, 17, 23])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_chunks_end_at_multiples_whoever_takes_part_of_the_budget(
    bench: Any, budget: int, others: int, before: bool
) -> None:
    made = bench(budget=budget, chunk=CHUNK, num_blocks=64, max_num_seqs=4)
    ends = ends_of(made, "it", others, before)
    assert ends[-1] == 29
    assert all(end % CHUNK == 0 for end in ends[:-1])


def test_a_prompt_waits_for_a_step_with_room_for_a_whole_chunk(bench: Any) -> None:
    made = bench(budget=11, chunk=CHUNK, num_blocks=64)
    made.add("first", length=8, max_tokens=3)
    made.add("second", length=20, max_tokens=3)
    # 3 tokens are left beside the first: none of them is spent, and the second holds nothing meanwhile.
    assert made.step() == ["first"]
    assert made.running() == ["first"]
    assert made.step() == ["first", "second"]
    assert made.scheduler.requests["second"].computed == 8
    made.run_out()


def test_a_running_prompt_without_room_sits_a_step_out_and_others_go_on(bench: Any) -> None:
    made = bench(budget=11, chunk=CHUNK, num_blocks=64)
    made.add("long", length=12, max_tokens=2)
    made.add("short", length=3, max_tokens=2)
    assert made.step() == ["long", "short"]
    made.add("third", length=16, max_tokens=2)
    # 1 token of the short one and 4 of the long one leave 6.
    assert made.step() == ["short", "long"]
    assert made.running() == ["long"]
    made.run_out()


@pytest.mark.parametrize(
    ("specs", "shared", "hit"), [(BLOCKS, 21, 16), (BLOCKS, 7, 0), (HYBRID, 27, 24), (HYBRID, 21, 0)]
)
def test_a_hit_ends_at_a_multiple_too_so_that_the_rest_is_cut_alike(
    bench: Any, specs: Any, shared: int, hit: int
) -> None:
    made = bench(specs=specs, budget=11, chunk=CHUNK, num_blocks=64, caching=True, num_checkpoints=8)
    prompt = tuple(range(30))
    made.add("first", prompt=prompt, max_tokens=2)
    made.run_out()
    # Of 21 tokens 5 whole blocks of 4 are cached, but 20 is no place at which a chunk may begin.
    again = made.add("second", prompt=(*prompt[:shared], *range(50, 80 - shared)), max_tokens=2)
    frame = made.scheduler.schedule()
    assert again.num_cached_tokens == hit
    [row] = frame.batch.prefill
    assert (row.start, row.start + len(row.ids)) == (hit, min(hit + CHUNK, 30))
    made.commit(frame)
    made.run_out()


@pytest.mark.parametrize("specs", [BLOCKS, HYBRID])
@pytest.mark.parametrize("chunk", [1, CHUNK])
def test_what_decoding_computed_is_no_prefix_of_a_prompt(bench: Any, specs: Any, chunk: int) -> None:
    """A prompt computes the same tokens in chunks, with other bits."""
    made = bench(specs=specs, budget=16, chunk=chunk, num_blocks=64, caching=True, num_checkpoints=8)
    prompt = tuple(range(10))
    made.add("first", prompt=prompt, max_tokens=20)
    made.run_out()
    again = made.add("second", prompt=(*prompt, *(1,) * 19), max_tokens=2)
    made.step()
    assert again.num_cached_tokens == (8 if chunk == CHUNK else 28)
    made.run_out()


class Watcher:
    """Notes how prompts are cut."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.seen: Counter[str] = Counter()

    def look(self, scheduler: Scheduler, frame: Frame | None) -> None:
        if frame is None:
            return
        batch: ScheduledBatch = frame.batch
        requests = {int(row): request for row, request in zip(frame.rows, frame.requests, strict=True)}
        for row in batch.prefill:
            request, end = requests[row.row], row.start + len(row.ids)
            assert row.ids, "an empty chunk was launched"
            assert row.start % self.chunk == 0, f"a chunk begins at {row.start}"
            assert end % self.chunk == 0 or end == len(request.tokens), f"a chunk ends at {end}"
            self.seen["cut"] += end < len(request.tokens)
            self.seen["hits"] += row.start > 0 and request.admitted_step == batch.step


@pytest.mark.parametrize("chunk", [4, 6])
def test_random_schedules_keep_to_the_ends_and_to_the_reference(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemption, forks, prefix hits, windows, drafts and aborts: outputs and invariants as ever."""
    watcher, schedule = Watcher(chunk), Scheduler.schedule

    def watched(scheduler: Scheduler) -> Frame | None:
        frame = schedule(scheduler)
        watcher.look(scheduler, frame)
        return frame

    monkeypatch.setattr(Scheduler, "schedule", watched)
    for seed in range(30):
        case = draw_case(Random(1000 * chunk + seed).choice, num_own=range(1, 30))
        room = case.max_num_seqs * (1 + max(case.captured_k)) + chunk - 1
        run_schedule(evolve(case, chunk=chunk, budget=room), REGISTRY)
    assert watcher.seen["cut"] > 40
    assert watcher.seen["hits"] > 0
