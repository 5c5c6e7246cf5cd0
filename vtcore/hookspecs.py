"""The hooks: one small function per extension point, each returning frozen descriptions.

Does not: hold a contract (see `vtcore.interfaces`) or call a hook; only `vtcore.plugins` does, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pluggy
from attrs import field, frozen

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


@frozen(kw_only=True)
class HookVersion:
    """Versions of one hook, its interface included, that this vtcore serves.

    Args:
        current: "MAJOR.MINOR" that a new plugin declares.
        oldest: The least minor of the same major whose plugins still work unchanged; may be `current`.
    """

    current: str = field()
    oldest: str = field()

    @current.validator
    @oldest.validator
    def _check_form(self, attribute: object, value: str) -> None:
        parse_hook_version(value)

    def __attrs_post_init__(self) -> None:
        (major, minor), (least_major, least_minor) = self.pair, parse_hook_version(self.oldest)
        if least_major != major or least_minor > minor:
            raise ValueError(f"oldest {self.oldest} and current {self.current} span no minors of one major")

    @property
    def pair(self) -> tuple[int, int]:
        """(major, minor) of `current`."""
        return parse_hook_version(self.current)

    def serves(self, version: str) -> bool:
        """Whether a plugin written for a version works.

        Args:
            version: "MAJOR.MINOR", as in a plugin's `VTCORE_API`.

        Raises:
            ValueError: It has another form.
        """
        return parse_hook_version(self.oldest) <= parse_hook_version(version) <= self.pair

    def __str__(self) -> str:
        return self.current if self.oldest == self.current else f"{self.oldest} to {self.current}"


def parse_hook_version(version: str) -> tuple[int, int]:
    """Split a hook's version into numbers, which compare as versions do.

    Args:
        version: "MAJOR.MINOR", digits only.

    Raises:
        ValueError: It has another form.
    """
    if not re.fullmatch(r"[0-9]+\.[0-9]+", version):
        raise ValueError(f'{version!r} is not "MAJOR.MINOR"')
    major, minor = map(int, version.split("."))
    return major, minor


HOOK_VERSIONS: Mapping[str, HookVersion] = {
    "archs": HookVersion(current="0.1", oldest="0.1"),
    "kv_cache_specs": HookVersion(current="0.2", oldest="0.1"),
    "scheduler_policies": HookVersion(current="0.2", oldest="0.1"),
    "checkpoint_sources": HookVersion(current="0.1", oldest="0.1"),
}
"""Versions of each hook; a plugin declares those it was written for in `VTCORE_API`.

0.2 of kv_cache_specs: `state_chunk`. 0.2 of scheduler_policies: `options_class`, `args_class`, `policy_args`
in the views, the view in `Arrived`, `is_active`, `needs_prefix_caching`. Both only add.
"""


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
