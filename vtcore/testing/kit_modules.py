"""Plugin modules made on the spot, so that a kit can run an author's class that no plugin registers.

Does not: write files or touch the registry; `build_registry(extra=[module])` reads what is returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import ModuleType

from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS, hookimpl
from vtcore.interfaces.registry_entries import Entry

_numbers = count()


def plugin_module(entries: Callable[[str], Sequence[Entry]], classes: Mapping[str, type]) -> ModuleType:
    """A plugin that registers entries whose implementations are classes at hand.

    The module stays importable for the rest of the process, as that of a plugin file does.

    Args:
        entries: The module's name -> entries; an implementation is f"{name}:KEY", KEY one of `classes`.
    """
    module = ModuleType(f"vtcore_kit_{next(_numbers)}")
    sys.modules[module.__name__] = module
    vars(module).update(classes)
    offered = tuple(entries(module.__name__))
    points = [point for point in HOOK_POINTS if any(type(entry) is point.entry for entry in offered)]
    for point in points:
        mine = [entry for entry in offered if type(entry) is point.entry]
        setattr(module, point.hook, hookimpl(_answering(mine)))
    vars(module)["VTCORE_API"] = {point.api: HOOK_VERSIONS[point.api].current for point in points}
    return module


def _answering(entries: Sequence[Entry]) -> Callable[[], Sequence[Entry]]:
    return lambda: entries
