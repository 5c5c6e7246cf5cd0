"""The feed-forward of a Qwen3.5 mixture-of-experts layer: router, routed experts, gated shared expert.

Does not: hold a weight; the stack around it is the dense models'.

Shape letters: T query tokens, H hidden size.
"""

from __future__ import annotations

from torch import Tensor
from vtcore_qwen3_5_dense.public import SwiGLU

from vtcore.interfaces.model_arch import BuildContext


class SparseMoE:
    """routed(x) + sigmoid(shared_gate(x)) * shared(x).

    The logits are products in the activations' dtype, as the models were trained; all after them, up to the
    sum of the two terms, is in the accumulation dtype.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeSparseMoeBlock.

    Args:
        ctx: Weights and ops.
        name: Parameter prefix, "layers.0.moe.".
        experts_per_token: Routed experts of each token.
        shared_is_group: The shared expert is the last group of the experts' products, not a block of its own.
    """

    def __init__(self, ctx: BuildContext, name: str, experts_per_token: int, shared_is_group: bool) -> None:
        self._top_k = experts_per_token
        self._gates = ctx.linear(f"{name}gates")
        self._in_proj = ctx.grouped_linear(f"{name}in_proj")
        self._out_proj = ctx.grouped_linear(f"{name}out_proj")
        self._shared = None if shared_is_group else SwiGLU(ctx, f"{name}shared.")
        self._sparse_moe = ctx.ops["sparse_moe"]

    def __call__(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        gates_TX = self._gates(x_TH)
        shared_TH = None if self._shared is None else self._shared(x_TH)
        out_TH: Tensor = self._sparse_moe(
            x_TH, gates_TX, self._in_proj, self._out_proj, self._top_k, shared_TH
        )
        return out_TH
