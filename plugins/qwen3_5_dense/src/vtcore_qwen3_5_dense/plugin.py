"""Registers the Qwen3.5 dense architecture.

Does not: import the implementation, torch or triton.
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry

VTCORE_API = {"archs": "0.1"}


@hookimpl
def vtcore_register_archs() -> Iterable[ArchEntry]:
    """One arch, for the nested released form and the text-only form."""
    return (
        ArchEntry(
            name="qwen3_5_dense",
            architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
            model_types=("qwen3_5", "qwen3_5_text"),
            implementation="vtcore_qwen3_5_dense.arch:Qwen35DenseArch",
            description="Qwen3.5 and 3.6 dense text models: gated DeltaNet and gated attention",
        ),
    )
