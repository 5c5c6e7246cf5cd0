"""Sources of plugins for tests, and registries made of them.

Does not: install anything; the fixture `install` does.
"""

from __future__ import annotations

import textwrap
import uuid
from collections.abc import Callable, Mapping
from types import ModuleType

from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry

Install = Callable[..., str]
"""Writes a distribution and puts it first on the path; returns the name of its module."""


def policy_source(name: str, *, api: str = "0.1", implementation: str = "") -> str:
    path = f'"{implementation}"' if implementation else 'f"{__name__}:Policy"'
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

VTCORE_API = {{"scheduler_policies": "{api}"}}

class Policy(SchedulerPolicy):
    pass

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="{name}", implementation={path})]
"""


def arch_source(*entries: str) -> str:
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry

VTCORE_API = {{"archs": "0.1"}}

@hookimpl
def vtcore_register_archs():
    return [{", ".join(f"ArchEntry({entry}, implementation=__name__ + ':Arch')" for entry in entries)}]
"""


def module_of(source: str, name: str = "") -> ModuleType:
    module = ModuleType(name or f"extra_{uuid.uuid4().hex}")
    exec(textwrap.dedent(source), module.__dict__)
    return module


def registry_of(*sources: str, owners: Mapping[str, str] | None = None) -> PluginRegistry:
    return build_registry(extra=[module_of(source) for source in sources], entry_points=False, owners=owners)
