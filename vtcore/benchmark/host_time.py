"""What the host adds to each decode step: the time in which the device has nothing to do.

On a GPU it is the gap between the end of a step and the begin of the next on the device's own clock. On a
CPU, where both share one processor, it is all that passes between the executor's calls.
Does not: run in the cells that are timed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen

if TYPE_CHECKING:
    from vtcore.benchmark.subject import Subject
    from vtcore.execution.executor import Executor
    from vtcore.interfaces.batch import RowMasks, ScheduledBatch, StepResult

_PROMPT_TOKENS = 16
_SKIPPED = 4
"""Steps at each end that are not plain decoding: prompts, and the steps right after and before."""


@frozen(kw_only=True)
class HostTime:
    """Microseconds of decode steps.

    Args:
        gap_us: Of each step, in which only the host worked.
        busy_us: Of each step, in which the device worked.
    """

    batch: int
    gap_us: tuple[float, ...]
    busy_us: tuple[float, ...]
    is_gpu: bool

    def as_json(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "batch": self.batch,
            "steps": len(self.gap_us),
            "exposed_us_p50": round(float(np.percentile(self.gap_us, 50)), 2),
            "exposed_us_p90": round(float(np.percentile(self.gap_us, 90)), 2),
            "busy_us_p50": round(median(self.busy_us), 2),
            "how": "gaps between steps on the GPU's clock" if self.is_gpu else "time outside the executor",
        }


@define(eq=False)
class WatchedExecutor:
    """Passes each call on, and notes when it began and ended.

    Args:
        inner: Borrowed.
    """

    inner: Executor
    inside_s: list[float] = field(factory=list)
    outside_s: list[float] = field(factory=list)
    _left: float | None = None

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """See `Executor`."""
        self.inside_s.append(0.0)
        self.outside_s.append(0.0)
        began = self._enter()
        self.inner.launch_forward(batch)
        self._leave(began)

    def launch_sample(self, step: int, masks: Sequence[RowMasks]) -> None:
        """See `Executor`."""
        began = self._enter()
        self.inner.launch_sample(step, masks)
        self._leave(began)

    def poll(self, step: int) -> StepResult:
        """See `Executor`."""
        began = self._enter()
        result = self.inner.poll(step)
        self._leave(began)
        return result

    def close(self) -> None:
        """See `Executor`."""
        self.inner.close()

    def _enter(self) -> float:
        began = time.perf_counter()
        if self._left is not None:
            self.outside_s[-1] += began - self._left
        return began

    def _leave(self, began: float) -> None:
        self._left = time.perf_counter()
        self.inside_s[-1] += self._left - began


def measure_host_time(subject: Subject, batch: int, outputs: int) -> HostTime:
    """Run short prompts to `outputs` tokens and look at the steps between.

    Args:
        batch: Requests at once.
        outputs: Tokens of each, >= 2; from 16 on the steps at both ends are left out.
    """
    prompts = subject.prompts(batch, _PROMPT_TOKENS)
    loaded = subject.engine.loaded
    skipped = _SKIPPED if outputs >= 16 else 0
    if subject.is_gpu:
        timer = loaded.runner.timer
        timer.is_on = True
        try:
            subject.run(prompts, outputs, 0.0)
            steps = timer.take()
        finally:
            timer.is_on = False
        gaps, busy = [one.gap_us for one in steps], [one.busy_us for one in steps]
    else:
        core = loaded.core
        watched = WatchedExecutor(core.executor)
        core.executor = watched
        try:
            subject.run(prompts, outputs, 0.0)
        finally:
            core.executor = watched.inner
        gaps = [1e6 * seconds for seconds in watched.outside_s]
        busy = [1e6 * seconds for seconds in watched.inside_s]
    kept = slice(skipped, len(gaps) - skipped)
    return HostTime(batch=batch, gap_us=tuple(gaps[kept]), busy_us=tuple(busy[kept]), is_gpu=subject.is_gpu)
