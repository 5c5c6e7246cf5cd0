"""The Qwen3.5 mixture-of-experts architecture as the core sees it.

Does not: read files or allocate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from attrs import evolve
from vtcore_qwen3_5_dense.public import OPS, FeedForward, Qwen35Arch

from vtcore.interfaces.model_arch import BuildContext, ModelCosts, ParamRule
from vtcore_qwen3_5_moe.config import parse_moe_config
from vtcore_qwen3_5_moe.model import SparseMoE
from vtcore_qwen3_5_moe.sizes import checkpoint_config, published_config
from vtcore_qwen3_5_moe.weights import moe_rules

MOE_OPS: Mapping[str, Mapping[str, str]] = {
    **OPS,
    "sparse_moe": {
        "naive": "vtcore_qwen3_5_moe.ops.sparse_moe.naive:sparse_moe",
        "cuda": "vtcore_qwen3_5_moe.ops.sparse_moe.triton:sparse_moe",
        "cuda_batch_invariant": "vtcore_qwen3_5_moe.ops.sparse_moe.triton:sparse_moe_batch_invariant",
        "counted": "vtcore_qwen3_5_moe.ops.sparse_moe.counted:sparse_moe_counted",
        "skewed": "vtcore_qwen3_5_moe.ops.sparse_moe.counted:sparse_moe_skewed",
        "skewed_counted": "vtcore_qwen3_5_moe.ops.sparse_moe.counted:sparse_moe_skewed_counted",
    },
}
"""The ops of gated DeltaNet layers and of experts; benchmarks override with the last three forms."""


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
        return SparseMoE(ctx, f"{name}moe.", self.moe.experts_per_token, self.moe.shared_is_group)

    def costs(self) -> ModelCosts:
        """Those of the mixers, and how many experts a token goes to."""
        shared = int(self.moe.shared_is_group)
        return evolve(super().costs(), groups_per_token=self.moe.experts_per_token, shared_groups=shared)

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """Those of gated DeltaNet layers, and `sparse_moe`."""
        return MOE_OPS

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """config.json of a random-weight checkpoint: "tiny" or "small"."""
        return checkpoint_config(size, vocab_size)

    @classmethod
    def published_config(cls, size: str) -> Mapping[str, Any]:
        """config.json of a released size."""
        return published_config(size)
