"""An executor that behaves like a busy device: late, in any row order, with poisoned free memory.

Does not: change what is computed. Launches go into a queue that runs at random moments, always in order; the
rows of a step run shuffled; units that nobody holds are overwritten in stream order; everything that crosses
the seam goes through bytes and back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch
from attrs import evolve

from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import RowMasks, ScheduledBatch, StepResult
from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.testing.toy_arch import POISON


class LateExecutor:
    """Runs launches when it pleases, at the latest when their result is polled.

    Args:
        random: Source of all choices.
        wire: Object -> the same object through bytes; see `vtcore.testing.wire`.
        between: Called before and after each call, as other threads would act in between.
    """

    def __init__(
        self,
        runner: ModelRunner,
        random: Random,
        wire: Callable[[object], object] = lambda value: value,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.polled: list[tuple[ScheduledBatch, StepResult]] = []
        self.num_late = 0
        self._runner = runner
        self._random = random
        self._wire = wire
        self._between = between
        self._queue: deque[Callable[[], None]] = deque()
        self._results: dict[int, StepResult] = {}
        self._batches: dict[int, ScheduledBatch] = {}
        self._memory: RequestMemory | None = None
        self._caches: Mapping[str, LayerCache] = {}

    def poison(self, memory: RequestMemory, caches: Mapping[str, LayerCache]) -> None:
        """Poison every unit now, and each unit again whenever its last holder lets go; id 0 is the canary."""
        self._memory, self._caches = memory, caches
        for pool in memory.pools:
            pool.recycled = []
        for cache in caches.values():
            for tensor in cache.tensors.values():
                tensor.fill_(poison_value(tensor))

    def check_canaries(self) -> None:
        """Assert that the null units are as they were."""
        for layer, cache in self._caches.items():
            for name, tensor in cache.tensors.items():
                null = tensor[0]
                intact = null.isnan() if null.is_floating_point() else null == poison_value(null)
                assert bool(intact.all()), f"the null unit of {layer}.{name} was written"
        tables = self._runner.tables
        for column in (tables.last_token, tables.computed, tables.limit, tables.cur_slot, tables.history):
            assert not bool(column[0].any()), "the null row was written"

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """Queue a forward."""
        self._between()
        sent = self._wire(batch)
        assert isinstance(sent, ScheduledBatch)
        self._batches[batch.step] = batch
        recycled = [] if self._memory is None else [pool.recycled or [] for pool in self._memory.pools]
        if self._memory is not None:
            for pool in self._memory.pools:
                pool.recycled = []
        shuffled = evolve(
            sent,
            uniform=tuple(self._random.sample(sent.uniform, len(sent.uniform))),
            prefill=tuple(self._random.sample(sent.prefill, len(sent.prefill))),
            forks=tuple(self._random.sample(sent.forks, len(sent.forks))),
        )
        self._queue.append(lambda: self._overwrite(recycled))
        self._queue.append(lambda: self._runner.forward(shuffled))
        self._run_some()
        self._between()

    def launch_sample(self, step: int, masks: Sequence[RowMasks]) -> None:
        """Queue a sampling."""
        self._between()
        sent = [self._wire(entry) for entry in masks]

        def run() -> None:
            self._results[step] = self._runner.sample(step, sent).to_host()  # type: ignore[arg-type]

        self._queue.append(run)
        self._run_some()
        self._between()

    def poll(self, step: int) -> StepResult:
        """Run the queue up to the step, and give its rows back in the batch's order."""
        while step not in self._results:
            self.num_late += 1
            self._queue.popleft()()
        batch, result = self._batches.pop(step), self._results.pop(step)
        by_row = {row.row: row for row in result.rows}
        order = (*batch.uniform, *(p.row for p in batch.prefill), *(f.child for f in batch.forks))
        result = StepResult(step, tuple(by_row[row] for row in order), result.checkpoints)
        sent = self._wire(result)
        assert isinstance(sent, StepResult)
        self.polled.append((batch, sent))
        return sent

    def close(self) -> None:
        """Drop what is queued."""
        self._queue.clear()
        self._results.clear()
        self._batches.clear()
        self._runner.drop_launched()

    def _run_some(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 2, len(self._queue)))):
            if self._queue:
                self._queue.popleft()()

    def _overwrite(self, recycled: Sequence[Sequence[int]]) -> None:
        for index, ids in enumerate(recycled):
            if ids:
                for cache in self._caches.values():
                    if cache.pool == index:
                        for tensor in cache.tensors.values():
                            tensor[list(ids)] = poison_value(tensor)


def poison_value(tensor: torch.Tensor) -> float:
    """NaN, or a number that no token and no hash is; in bytes, the largest."""
    if tensor.is_floating_point():
        return torch.nan
    return 255 if tensor.dtype == torch.uint8 else POISON
