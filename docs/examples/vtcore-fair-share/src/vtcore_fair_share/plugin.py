"""Registers the scheduler policy `fair_share`.

Does not: import the policy; it is loaded when an option names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {"scheduler_policies": "0.2"}


@hookimpl
def vtcore_register_scheduler_policies() -> Iterable[SchedulerPolicyEntry]:
    """One policy."""
    return (
        SchedulerPolicyEntry(
            name="fair_share",
            implementation="vtcore_fair_share.policy:FairSharePolicy",
            description="weighted fair queueing by tenant",
        ),
    )
