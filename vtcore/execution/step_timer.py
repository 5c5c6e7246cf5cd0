"""How long the device works on each step, and how long it waits between two: for benchmarks.

Does not: run unless a benchmark asks; each step then costs two events.
"""

from __future__ import annotations

import torch
from attrs import frozen


@frozen
class StepTimes:
    """One step on the device's clock.

    Args:
        busy_us: From its first upload to its last kernel.
        gap_us: From the step before to its first upload; what the host did not hide. 0 for the first.
    """

    busy_us: float
    gap_us: float


class StepTimer:
    """Records an event at both ends of every step on the current stream of a GPU."""

    def __init__(self) -> None:
        self._begun: list[torch.cuda.Event] = []
        self._ended: list[torch.cuda.Event] = []

    def begin(self) -> None:
        """A step's forward is about to be launched."""
        self._begun.append(self._record())

    def end(self) -> None:
        """All of a step has been launched."""
        self._ended.append(self._record())

    def take(self) -> list[StepTimes]:
        """Times of all whole steps so far, which are forgotten; waits for the device."""
        torch.cuda.synchronize()
        times = []
        before: torch.cuda.Event | None = None
        for begun, ended in zip(self._begun, self._ended, strict=False):
            gap = 0.0 if before is None else max(0.0, before.elapsed_time(begun))
            times.append(StepTimes(1e3 * begun.elapsed_time(ended), 1e3 * gap))
            before = ended
        self._begun.clear()
        self._ended.clear()
        return times

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
