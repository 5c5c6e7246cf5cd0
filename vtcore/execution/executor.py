"""What stands between the engine and its devices: four calls, plain data.

Does not: schedule. One in-process executor; its calls run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vtcore.interfaces.batch import RowMasks, ScheduledBatch, StepResult

if TYPE_CHECKING:
    from vtcore.execution.model_runner import ModelRunner
    from vtcore.execution.sampled_step import SampledStep


class Executor(Protocol):
    """Runs steps in the order they are launched."""

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """Upload, copy and run the model up to the final hidden."""

    def launch_sample(self, step: int, masks: Sequence[RowMasks]) -> None:
        """Head, sampling or verification, state commit, drafts of a launched step."""

    def poll(self, step: int) -> StepResult:
        """Wait for a sampled step's results and hand them over, once."""

    def close(self) -> None:
        """Drop everything that was launched and not polled; what is launched afterwards runs as usual."""


class InlineExecutor:
    """Runs each call to its end in the caller's thread.

    Args:
        runner: Borrowed; it must outlive the executor.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._sampled: dict[int, SampledStep] = {}

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """See `Executor`."""
        self._runner.forward(batch)

    def launch_sample(self, step: int, masks: Sequence[RowMasks]) -> None:
        """See `Executor`."""
        self._sampled[step] = self._runner.sample(step, masks)

    def poll(self, step: int) -> StepResult:
        """See `Executor`."""
        return self._sampled.pop(step).to_host()

    def close(self) -> None:
        """See `Executor`."""
        self._sampled.clear()
        self._runner.drop_launched()
