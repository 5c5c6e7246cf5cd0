"""The toy architecture as a plugin, for `build_registry(extra=[toy_plugin])`.

Does not: come with any entry point; it exists only where a test adds it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore.hookspecs import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry, KVCacheSpecEntry

VTCORE_API = {"archs": "0.1", "kv_cache_specs": "0.1"}


@hookimpl
def vtcore_register_archs() -> Iterable[ArchEntry]:
    """The toy."""
    return (ArchEntry(name="toy", model_types=("toy",), implementation="vtcore.testing.toy_arch:ToyArch"),)


@hookimpl
def vtcore_register_kv_cache_specs() -> Iterable[KVCacheSpecEntry]:
    """Its three kinds."""
    module = "vtcore.testing.toy_arch"
    return (
        KVCacheSpecEntry(name="toy_blocks", implementation=f"{module}:ToyBlocks"),
        KVCacheSpecEntry(name="toy_window", implementation=f"{module}:ToyWindow"),
        KVCacheSpecEntry(name="toy_state", implementation=f"{module}:ToyState"),
    )
