"""Requests with a smaller number first; among equals first come, first served.

Does not: choose victims; the core's own choice (largest key, last admitted) is the least urgent request.
Source: vllm.cpp scheduler.cpp, priority queue and preemption.
"""

from __future__ import annotations

from vtcore.interfaces.scheduler_policy import SchedulerPolicy, WaitingView


class PriorityPolicy(SchedulerPolicy):
    """Admits by (priority, arrival) and preempts the request with the greatest of these."""

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        """The request's own number."""
        return (view.priority,)
