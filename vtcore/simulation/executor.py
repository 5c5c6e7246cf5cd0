"""An executor without a device: it keeps the lengths a device would, makes tokens by hashing, costs time.

Does not: see requests, pools or policies; like a real one it knows what batches say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from vtcore.errors import EngineError
from vtcore.interfaces.batch import RowMasks, RowResult, ScheduledBatch, StepResult
from vtcore.simulation.clock import VirtualClock
from vtcore.simulation.cost_model import CostModel, StepWork
from vtcore.simulation.tokens import hashed_ids


class RowLengths:
    """The device-owned lengths of an engine without drafters, and the work that a batch means.

    Args:
        num_rows: Rows 1..num_rows.
    """

    def __init__(self, num_rows: int) -> None:
        self.computed = np.zeros(num_rows + 1, np.int64)

    def launch(self, batch: ScheduledBatch) -> tuple[StepWork, NDArray[np.int64], NDArray[np.int64]]:
        """Move the rows of a batch on.

        Returns:
            The batch's work, its uniform rows, and the positions of their query tokens.

        Raises:
            EngineError: The batch verifies drafts, or a chunk does not start where its row stands.
        """
        if batch.num_drafts_in:
            raise EngineError(f"step {batch.step}: a simulation verifies no drafts")
        computed = self.computed
        for init in batch.inits:
            computed[init.row] = init.computed
        rows = np.array(batch.uniform, np.int64)
        positions = computed[rows]
        computed[rows] += 1
        context, tokens = int(positions.sum()) + rows.size, 0
        for chunk in batch.prefill:
            if computed[chunk.row] != chunk.start:
                raise EngineError(
                    f"step {batch.step}: row {chunk.row} stands at {computed[chunk.row]}, "
                    f"its chunk starts at {chunk.start}"
                )
            end = chunk.start + len(chunk.ids)
            computed[chunk.row] = end
            tokens += len(chunk.ids)
            context += end
        for fork in batch.forks:
            computed[fork.child] = computed[fork.parent]
        return StepWork(tokens, int(rows.size), context), rows, positions


@frozen
class _Launched:
    """A step between its launch and its poll.

    Args:
        rows, positions: Its uniform rows, and where their query tokens stand.
        is_kept: Whether each checkpoint is written.
    """

    batch: ScheduledBatch
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    is_kept: tuple[bool, ...]
    end_s: float


class SimulatedExecutor:
    """Takes the time that a cost model says; steps run one after another, as on one stream.

    The token at position p of a row whose seed is s is the p-th id of sequence s (`hashed_ids`): it depends
    on nothing else, so that a preempted request goes on with the same tokens.

    Args:
        on_launch: Told of each step: its batch, its work, and when it begins and ends, in virtual seconds.
    """

    def __init__(
        self,
        cost: CostModel,
        clock: VirtualClock,
        *,
        vocab_size: int,
        num_rows: int,
        on_launch: Callable[[ScheduledBatch, StepWork, float, float], object] = lambda *about: None,
    ) -> None:
        self._cost = cost
        self._clock = clock
        self._vocab_size = vocab_size
        self._rows = RowLengths(num_rows)
        self._seeds = np.zeros(num_rows + 1, np.int64)
        self._on_launch = on_launch
        self._launched: dict[int, _Launched] = {}
        self._free_at_s = 0.0

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """See `Executor`."""
        for init in batch.inits:
            self._seeds[init.row] = init.params.seed
        work, rows, positions = self._rows.launch(batch)
        self._clock.advance_to(self._clock.now_s + self._cost.host_s)
        start_s = max(self._clock.now_s, self._free_at_s)
        end_s = self._free_at_s = start_s + self._cost.step_s(work)
        # A query of one token, and a chunk, leave one state each: that at their end.
        lengths = self._rows.computed
        is_kept = tuple(bool(lengths[wanted.row] == wanted.position) for wanted in batch.checkpoints)
        self._launched[batch.step] = _Launched(batch, rows, positions, is_kept, end_s)
        self._on_launch(batch, work, start_s, end_s)

    def launch_sample(self, step: int, masks: Sequence[RowMasks]) -> None:
        """See `Executor`.

        Raises:
            EngineError: There are masks; a simulated token obeys none.
        """
        if masks:
            raise EngineError(f"step {step}: a simulation obeys no masks")

    def poll(self, step: int) -> StepResult:
        """See `Executor`; the clock moves on to the step's end."""
        launched = self._launched.pop(step)
        self._clock.advance_to(launched.end_s)
        batch, rows, positions = launched.batch, launched.rows, launched.positions
        chunks = {chunk.row: chunk for chunk in batch.prefill}
        sampling = [(chunk.row, chunk) for chunk in batch.prefill if chunk.sample]
        sampling += [(fork.child, chunks[fork.parent]) for fork in batch.forks]
        last = positions
        if sampling:
            rows = np.concatenate((rows, [row for row, _ in sampling]))
            last = np.concatenate((positions, [chunk.start + len(chunk.ids) - 1 for _, chunk in sampling]))
        ids = hashed_ids(self._seeds[rows], last + 1, self._vocab_size).tolist()
        results = list(map(RowResult, batch.uniform, positions.tolist(), zip(ids)))
        others = iter(ids[len(results) :])
        for chunk in batch.prefill:
            results.append(RowResult(chunk.row, chunk.start, (next(others),) if chunk.sample else ()))
        for fork in batch.forks:
            results.append(RowResult(fork.child, chunks[fork.parent].start, (next(others),)))
        return StepResult(step, tuple(results), launched.is_kept)

    def close(self) -> None:
        """See `Executor`."""
        self._launched.clear()
        self._free_at_s = self._clock.now_s
