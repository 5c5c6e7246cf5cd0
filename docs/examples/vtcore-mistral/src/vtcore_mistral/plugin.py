"""Registers the Mistral architecture and the sliding-window cache kind that it uses.

Does not: import the implementation, torch or triton.
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry, KVCacheSpecEntry

VTCORE_API = {"archs": "0.1", "kv_cache_specs": "0.2"}


@hookimpl
def vtcore_register_archs() -> Iterable[ArchEntry]:
    """One arch, found by what config.json says."""
    return (
        ArchEntry(
            name="mistral",
            architectures=("MistralForCausalLM",),
            model_types=("mistral",),
            implementation="vtcore_mistral.arch:MistralArch",
            description="Mistral text models, with or without a sliding window",
        ),
    )


@hookimpl
def vtcore_register_kv_cache_specs() -> Iterable[KVCacheSpecEntry]:
    """One kind of cache."""
    return (
        KVCacheSpecEntry(
            name="mistral_sliding_window",
            implementation="vtcore_mistral.spec:SlidingWindowSpec",
            description="keys and values of the last W positions, in blocks",
        ),
    )
