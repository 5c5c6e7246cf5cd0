"""Registers the Qwen3.5 mixture-of-experts architecture.

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
            name="qwen3_5_moe",
            architectures=("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
            model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
            implementation="vtcore_qwen3_5_moe.arch:Qwen35MoeArch",
            description="Qwen3.5 and 3.6 mixture-of-experts text models: routed experts and a shared one",
        ),
    )
