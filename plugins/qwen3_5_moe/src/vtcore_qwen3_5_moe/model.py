"""The feed-forward of a Qwen3.5 mixture-of-experts layer: router, routed experts, gated shared expert.

Does not: hold a weight; the stack around it is the dense models'.

Shape letters: T query tokens, H hidden size, K experts per token, E experts.
"""

from __future__ import annotations

from torch import Tensor
from vtcore_qwen3_5_dense.public import SwiGLU

from vtcore.interfaces.model_arch import BuildContext


def route(logits_TE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the K likeliest, their probabilities divided by their sum.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeTopKRouter.

    Args:
        logits_TE: Accumulation dtype.
        top_k: K, at most E.

    Returns:
        Experts [T, K] int64, likeliest first, and their weights [T, K], accumulation dtype.
    """
    weights_TK, experts_TK = logits_TE.softmax(-1).topk(top_k, -1)
    return experts_TK, weights_TK / weights_TK.sum(-1, keepdim=True)


class SparseMoE:
    """routed(x) + sigmoid(shared_gate(x)) * shared(x).

    The logits are products in the activations' dtype, as the models were trained; all after them, up to the
    sum of the two terms, is in the accumulation dtype.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeSparseMoeBlock.

    Args:
        ctx: Weights and ops.
        name: Parameter prefix, "layers.0.moe.".
        num_experts: E.
        experts_per_token: K, at most E.
    """

    def __init__(self, ctx: BuildContext, name: str, num_experts: int, experts_per_token: int) -> None:
        self._num_experts = num_experts
        self._top_k = experts_per_token
        self._gates = ctx.linear(f"{name}gates")
        self._in_proj = ctx.grouped_linear(f"{name}in_proj")
        self._out_proj = ctx.grouped_linear(f"{name}out_proj")
        self._shared = SwiGLU(ctx, f"{name}shared.")
        self._fused_moe = ctx.ops["fused_moe"]
        self._acc = ctx.acc_dtype

    def __call__(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        gates = self._gates(x_TH).to(self._acc)
        logits_TE, shared_gate_T1 = gates.split_with_sizes((self._num_experts, 1), -1)
        experts_TK, weights_TK = route(logits_TE, self._top_k)
        out_TH: Tensor = self._fused_moe(x_TH, experts_TK, weights_TK, self._in_proj, self._out_proj)
        shared_TH = self._shared(x_TH).to(self._acc)
        return out_TH.addcmul_(shared_TH, shared_gate_T1.sigmoid()).to(x_TH.dtype)
