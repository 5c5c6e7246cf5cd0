"""First come, first served: the default order, and what every breach of another policy falls back to.

Does not: override anything; the contract's defaults are this policy.
"""

from __future__ import annotations

from vtcore.interfaces.scheduler_policy import SchedulerPolicy


class FcfsPolicy(SchedulerPolicy):
    """Admits in order of arrival and preempts the last admitted."""
