"""Routed experts in torch: the reference and the CPU path.

Does not: route, or add the shared expert.

Shape letters: T query tokens, H hidden size, K experts per token, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.model_arch import GroupedLinear


def fused_moe(
    x_TH: Tensor,
    experts_TK: Tensor,
    weights_TK: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
) -> Tensor:
    """sum_k w_k * down_e(silu(gate_e(x)) * up_e(x)) with e the token's k-th expert.

    Each token's sum runs over its own experts in their order, so it does not depend on the other tokens.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeExperts.

    Args:
        x_TH: The layer's normed input.
        experts_TK: int64 in [0, E), the experts of a token all different.
        weights_TK: Accumulation dtype.
        in_proj: H -> gate and up side by side.
        out_proj: The experts' inner width -> H.

    Returns:
        [T, H] accumulation dtype.
    """
    num_tokens, top_k = experts_TK.shape
    # Pairs of token and choice, ordered by expert; stable, so an expert's tokens keep their order.
    order = experts_TK.flatten().argsort(stable=True)
    ends_E = torch.bincount(experts_TK.flatten(), minlength=in_proj.num_groups).cumsum(0)
    gate, up = in_proj(x_TH.index_select(0, order // top_k), ends_E).chunk(2, -1)
    out = out_proj(F.silu(gate).mul_(up), ends_E)
    place_TK = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    place_TK = place_TK.view(num_tokens, top_k)
    total_TH = weights_TK.new_zeros(x_TH.shape)
    for choice in range(top_k):
        chosen_TH = out.index_select(0, place_TK[:, choice])
        total_TH.addcmul_(chosen_TH.to(total_TH.dtype), weights_TK[:, choice : choice + 1])
    return total_TH
