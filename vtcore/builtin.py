"""The core's own plugin: what vtcore ships is registered through the same hooks as anything else.

Does not: import an implementation; the paths below are followed when chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore.hookspecs import hookimpl
from vtcore.interfaces.registry_entries import CheckpointSourceEntry, KVCacheSpecEntry, SchedulerPolicyEntry

VTCORE_API = {"kv_cache_specs": "0.2", "scheduler_policies": "0.2", "checkpoint_sources": "0.1"}


@hookimpl
def vtcore_register_kv_cache_specs() -> Iterable[KVCacheSpecEntry]:
    """The two kinds that hybrid models need."""
    return (
        KVCacheSpecEntry(
            name="full_attention",
            implementation="vtcore.kv_cache.specs:FullAttentionSpec",
            description="keys and values of every token, in blocks",
        ),
        KVCacheSpecEntry(
            name="recurrent_state",
            implementation="vtcore.kv_cache.specs:RecurrentStateSpec",
            description="a fixed number of state slots per request",
        ),
    )


@hookimpl
def vtcore_register_scheduler_policies() -> Iterable[SchedulerPolicyEntry]:
    """The default policy, and two others."""
    return (
        SchedulerPolicyEntry(
            name="fcfs",
            implementation="vtcore.scheduling.policies.fcfs:FcfsPolicy",
            description="first come, first served",
        ),
        SchedulerPolicyEntry(
            name="priority",
            implementation="vtcore.scheduling.policies.priority:PriorityPolicy",
            description="by each request's priority, the smallest number first",
        ),
        SchedulerPolicyEntry(
            name="lpm",
            implementation="vtcore.scheduling.policies.lpm:LpmPolicy",
            description="longest cached prefix first, while at most 128 wait",
        ),
    )


@hookimpl
def vtcore_register_checkpoint_sources() -> Iterable[CheckpointSourceEntry]:
    """The public hub and its mirrors."""
    return (
        CheckpointSourceEntry(
            name="hub",
            implementation="vtcore.checkpoint.hub:HubSource",
            serves_bare_ids=True,
            description="models of the Hugging Face Hub, by id: ORG/NAME",
        ),
    )
