"""How long the device works on each step, and how long it waits between two: for benchmarks.

Does not: run unless a benchmark asks; each step then costs four events.
"""

from __future__ import annotations

import torch
from attrs import frozen

_EVENTS = 4
"""Of a whole step: around its forward, and around its sampling."""


@frozen
class StepTimes:
    """One step on the device's clock.

    Args:
        busy_us: Of its forward and of its sampling, each from the first kernel after the upload to the last.
        gap_us: The rest since the step before: the upload, and what the host did not hide. 0 for the first
            step.
    """

    busy_us: float
    gap_us: float


class StepTimer:
    """Records events around the forward and the sampling of every step on the current stream of a GPU.

    Attributes:
        is_on: Whether it does; at first not.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._events: list[list[torch.cuda.Event]] = []

    def forward_begins(self) -> None:
        """A step's upload has been launched, its forward has not."""
        if self.is_on:
            self._events.append([self._record()])

    def mark(self) -> None:
        """The forward has been launched; then: the sampling begins; then: all has been launched."""
        if self.is_on and self._events:
            self._events[-1].append(self._record())

    def take(self) -> list[StepTimes]:
        """Times of all whole steps so far, which are forgotten; waits for the device."""
        torch.cuda.synchronize()
        times = []
        before: torch.cuda.Event | None = None
        for step in self._events:
            if len(step) < _EVENTS:
                continue
            begun, forwarded, sampling, ended = step
            busy = begun.elapsed_time(forwarded) + sampling.elapsed_time(ended)
            gap = 0.0
            if before is not None:
                gap = max(0.0, before.elapsed_time(begun)) + forwarded.elapsed_time(sampling)
            times.append(StepTimes(1e3 * busy, 1e3 * gap))
            before = ended
        self._events.clear()
        return times

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
