"""The hooks: one small function per extension point, each returning frozen descriptions.

Does not: hold a contract (see `vtcore.interfaces`) or call a hook; only `vtcore.plugins` does, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pluggy
from attrs import frozen

from vtcore.interfaces.checkpoint_source import CheckpointSource
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import ModelArch
from vtcore.interfaces.registry_entries import (
    ArchEntry,
    CheckpointSourceEntry,
    Entry,
    KVCacheSpecEntry,
    SchedulerPolicyEntry,
)
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

PROJECT = "vtcore"
"""pluggy's project name, and the prefix of every hook."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's functions; plugins import it as `from vtcore import hookimpl`."""

HOOK_VERSIONS: Mapping[str, str] = {
    "archs": "0.1",
    "kv_cache_specs": "0.1",
    "scheduler_policies": "0.1",
    "checkpoint_sources": "0.1",
}
"""API version of each hook with its interface; a plugin repeats those it implements in `VTCORE_API`."""


@hookspec
def vtcore_register_archs() -> Iterable[ArchEntry]:
    """Describe model architectures.

    Called once while the registry is built; touches no device and imports no implementation. New in 0.1.
    """
    return ()


@hookspec
def vtcore_register_kv_cache_specs() -> Iterable[KVCacheSpecEntry]:
    """Describe kinds of KV-cache spec.

    Called once while the registry is built; touches no device and imports no implementation. New in 0.1.
    """
    return ()


@hookspec
def vtcore_register_scheduler_policies() -> Iterable[SchedulerPolicyEntry]:
    """Describe scheduler policies.

    Called once while the registry is built; touches no device and imports no implementation. New in 0.1.
    """
    return ()


@hookspec
def vtcore_register_checkpoint_sources() -> Iterable[CheckpointSourceEntry]:
    """Describe where checkpoints can be fetched from.

    Called once while the registry is built; touches no network and imports no implementation. New in 0.1.
    """
    return ()


@frozen(kw_only=True)
class HookPoint:
    """What belongs to one hook.

    Args:
        kind: The word for one entry, in messages and in `plugin_owners` keys.
        api: Key of `HOOK_VERSIONS` and of a plugin's `VTCORE_API`.
        hook: Name of the hook function.
        entry: Class of the descriptions it returns.
        interface: What an implementation must subclass.
    """

    kind: str
    api: str
    hook: str
    entry: type[Entry]
    interface: type


HOOK_POINTS: tuple[HookPoint, ...] = (
    HookPoint(
        kind="arch",
        api="archs",
        hook="vtcore_register_archs",
        entry=ArchEntry,
        interface=ModelArch,
    ),
    HookPoint(
        kind="kv_cache_spec",
        api="kv_cache_specs",
        hook="vtcore_register_kv_cache_specs",
        entry=KVCacheSpecEntry,
        interface=KVCacheSpec,
    ),
    HookPoint(
        kind="scheduler_policy",
        api="scheduler_policies",
        hook="vtcore_register_scheduler_policies",
        entry=SchedulerPolicyEntry,
        interface=SchedulerPolicy,
    ),
    HookPoint(
        kind="checkpoint_source",
        api="checkpoint_sources",
        hook="vtcore_register_checkpoint_sources",
        entry=CheckpointSourceEntry,
        interface=CheckpointSource,
    ),
)
"""All hooks, in the order in which their entries are listed."""
