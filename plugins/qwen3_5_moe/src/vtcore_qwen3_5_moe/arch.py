"""The Qwen3.5 mixture-of-experts architecture as the core sees it.

Does not: read files or allocate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vtcore_qwen3_5_dense.public import OPS, FeedForward, Qwen35Arch

from vtcore.interfaces.model_arch import BuildContext, ParamRule
from vtcore_qwen3_5_moe.config import parse_moe_config
from vtcore_qwen3_5_moe.model import SparseMoE
from vtcore_qwen3_5_moe.sizes import checkpoint_config
from vtcore_qwen3_5_moe.weights import moe_rules

MOE_OPS: Mapping[str, Mapping[str, str]] = {
    **OPS,
    "fused_moe": {"naive": "vtcore_qwen3_5_moe.ops.fused_moe.naive:fused_moe"},
}
"""The ops of gated DeltaNet layers and of routed experts."""


class Qwen35MoeArch(Qwen35Arch):
    """Qwen3.5 and Qwen3.6 mixture-of-experts text models; every layer has experts."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        self.moe = parse_moe_config(hf_config)
        super().__init__(self.moe.text)

    def default_token_budget(self, max_num_seqs: int) -> int:
        """8192 tokens per step for 32 sequences or more, else 4096: each expert gets a share of them only.

        Source: vllm.cpp, ResolveMaxNumBatchedTokens.
        """
        return 8192 if max_num_seqs >= 32 else 4096

    def feed_forward_rules(self, names: Collection[str], name: str, source: str) -> Iterable[ParamRule]:
        """Router, routed experts in the layout that the names tell, shared expert."""
        return moe_rules(self.moe, names, name, source)

    def build_feed_forward(self, ctx: BuildContext, name: str) -> FeedForward:
        """Router, routed experts, shared expert."""
        return SparseMoE(ctx, f"{name}moe.", self.moe.num_experts, self.moe.experts_per_token)

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """Those of gated DeltaNet layers, and `fused_moe`."""
        return MOE_OPS

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """config.json of a random-weight checkpoint: "tiny" or "small"."""
        return checkpoint_config(size, vocab_size)
