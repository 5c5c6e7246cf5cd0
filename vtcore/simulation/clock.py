"""Virtual time: it stands still until a step, or the wait for the next arrival, moves it on.

Does not: read any real clock.
"""

from __future__ import annotations

from attrs import define


@define
class VirtualClock:
    """Seconds since the start of the trace.

    Args:
        now_s: The time it starts from.
    """

    now_s: float = 0.0

    def __call__(self) -> float:
        """The present time, as the scheduler asks for it."""
        return self.now_s

    def advance_to(self, time_s: float) -> None:
        """Move on to `time_s`; a time that has passed changes nothing."""
        self.now_s = max(self.now_s, time_s)
