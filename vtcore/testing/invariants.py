"""The invariants of the step, asserted between steps.

Does not: look at outputs. Those that need no look from outside are asserted where they arise (commit, runner,
pools); the numbers are those of docs/architecture.md, Invariants.
"""

from __future__ import annotations

from vtcore.engine.core import EngineCore
from vtcore.scheduling.request_state import Status


def check_invariants(core: EngineCore) -> None:
    """Assert what must hold after every step."""
    scheduler, rows = core.scheduler, core.scheduler.rows
    checkpoints = [checkpoint for frame in core.frames for checkpoint in frame.batch.checkpoints]
    scheduler.memory.check(scheduler.running, checkpoints)
    rows.check()
    inflight: dict[tuple[int, int], int] = {}
    queries: dict[tuple[int, int], int] = {}
    for frame in core.frames:
        for row, epoch, query in zip(frame.rows.tolist(), frame.epochs.tolist(), frame.queries, strict=True):
            inflight[row, epoch] = inflight.get((row, epoch), 0) + 1
            queries[row, epoch] = queries.get((row, epoch), 0) + query
    for request in scheduler.running:
        row = request.row
        assert rows.owner[row] is request
        assert request.status is Status.RUNNING
        key = (row, int(rows.epoch[row]))
        bound = int(rows.bound[row])
        assert rows.inflight[row] == inflight.get(key, 0), "steps in flight differ from a recount"
        assert bound == request.computed + queries.get(key, 0), "the bound is not what is in flight"
        assert request.computed <= rows.least[row] <= bound, "the lower bound is not below the upper one"
        assert key in inflight or rows.least[row] == bound, "nothing is in flight, but the bounds differ"
        needed = min(bound, request.limit - 1)
        assert scheduler.memory.covered(request) >= needed, "the tables do not cover the bound"
        assert len(request.hashes) <= len(request.tokens) // scheduler.memory.block_size
        assert len(request.tokens) < request.limit, "a request at its limit still runs"
    for request in scheduler.requests.values():
        assert request.status is not Status.FINISHED
        if request.status is Status.WAITING:
            assert request.row == 0
            assert not request.blocks
            assert request.computed == 0
        if request.status is Status.FORKING:
            assert request.leader is not None
            assert request in request.leader.followers
            assert not request.blocks
    waiting = sum(r.status is Status.WAITING for r in scheduler.requests.values())
    assert waiting == len(scheduler.waiting), "the waiting queue's size is wrong"


def check_idle(core: EngineCore) -> None:
    """Assert that nothing is held once everything has ended."""
    scheduler = core.scheduler
    assert not scheduler.requests
    assert not scheduler.running
    assert not core.frames
    assert not len(scheduler.waiting)
    scheduler.memory.check([])
    for pool in scheduler.memory.pools:
        assert pool.num_unused == pool.num_units - 1, "a unit is lost"
    assert scheduler.rows.num_free == scheduler.rows.num_rows
