"""The executor without a device does what batches say: forks, checkpoints, one step after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from vtcore.engine.build import build_core
from vtcore.engine.core import AddRequest
from vtcore.errors import EngineError
from vtcore.interfaces.batch import (
    Checkpoint,
    EngineRequest,
    PrefillRow,
    RowInit,
    RowMasks,
    RowParams,
    ScheduledBatch,
)
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.simulation.clock import VirtualClock
from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.executor import SimulatedExecutor
from vtcore.simulation.geometry import Geometry
from vtcore.simulation.tokens import hashed_ids, sequence_ids
from vtcore.testing.invariants import check_idle, check_invariants

ONE = CostModel(fixed_s=1, per_prefill_token_s=0, per_decode_row_s=0, per_context_token_s=0)


def executor(clock: VirtualClock | None = None) -> SimulatedExecutor:
    return SimulatedExecutor(ONE, clock or VirtualClock(), vocab_size=1000, num_rows=4)


def batch(step: int = 0, *, start: int = 0, ids: tuple[int, ...] = (5, 6, 7)) -> ScheduledBatch:
    """Row 1 is admitted and computes `ids`, which end its prompt."""
    init = RowInit(
        row=1,
        computed=0,
        tokens=(),
        tables=(),
        slots=(),
        params=RowParams(seed=42),
        prompt_len=start + len(ids),
        limit=50,
    )
    return ScheduledBatch(
        step=step,
        num_drafts_in=0,
        num_drafts_out=0,
        max_context=0,
        deltas=(),
        inits=(init,),
        before=(),
        uniform=(),
        prefill=(PrefillRow(1, start, ids, True),),
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_samples_of_one_prompt_go_on_from_it(engine: Callable[..., Geometry], depth: int) -> None:
    geometry, clock = engine(max_num_seqs=3), VirtualClock()
    core = build_core(
        geometry.config,
        geometry.plan,
        SchedulerPolicy(),
        executor(clock),
        depth=depth,
        clock=clock,
        check=check_invariants,
    )
    prompt = tuple(sequence_ids("p", 13, 1000))
    for index, name in enumerate(("first", "second", "third")):
        fork_of = "first" if index else ""
        params = RowParams(seed=index)
        request = EngineRequest(
            id=name, prompt_token_ids=prompt, params=params, max_tokens=5, fork_of=fork_of
        )
        core.inbox.append(AddRequest(request))
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for update in core.step():
            tokens.setdefault(update.id, []).extend(update.tokens)
    check_idle(core)
    assert core.scheduler.counters.forks == 2
    assert core.scheduler.counters.prefilled_tokens == 13
    for seed, found in enumerate(tokens[name] for name in ("first", "second", "third")):
        wanted = [hashed_ids(_array(seed), _array(place), 1000).item() for place in range(13, 18)]
        assert found == wanted


def test_steps_run_one_after_another_and_poll_moves_the_clock() -> None:
    clock = VirtualClock()
    runs = executor(clock)
    runs.launch_forward(batch())
    runs.launch_forward(evolve(batch(1), inits=(), prefill=(), uniform=(1,)))
    assert clock.now_s == 0
    first = runs.poll(0)
    assert (clock.now_s, first.rows[0].row, first.rows[0].position) == (1.0, 1, 0)
    assert runs.poll(1).rows[0].position == 3
    assert clock.now_s == 2.0


def test_a_checkpoint_is_written_where_the_step_ends() -> None:
    runs = executor()
    wanted = tuple(Checkpoint(0, 1, position, 9) for position in (2, 3, 4))
    runs.launch_forward(evolve(batch(), checkpoints=wanted))
    assert runs.poll(0).checkpoints == (False, True, False)


def test_what_it_cannot_simulate_is_an_error_of_the_engine() -> None:
    with pytest.raises(EngineError, match="verifies no drafts"):
        executor().launch_forward(evolve(batch(), num_drafts_in=1))
    with pytest.raises(EngineError, match="row 1 stands at 0, its chunk starts at 2"):
        executor().launch_forward(batch(start=2))
    with pytest.raises(EngineError, match="obeys no masks"):
        executor().launch_sample(0, (RowMasks(1, (b"\x01",)),))


def test_after_a_failed_step_it_goes_on_as_new() -> None:
    clock = VirtualClock()
    runs = executor(clock)
    runs.launch_forward(batch())
    runs.close()
    runs.launch_forward(batch())
    runs.poll(0)
    assert clock.now_s == 1.0


def _array(value: int) -> NDArray[np.int64]:
    return np.array([value], np.int64)
