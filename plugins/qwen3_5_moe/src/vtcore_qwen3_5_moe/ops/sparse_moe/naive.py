"""A mixture-of-experts feed-forward in torch, from router logits on: the reference and the CPU path.

Does not: compute the logits.

Shape letters: T query tokens, H hidden size, K routed experts per token, E routed experts, C choices of a
token (K, or K + 1 with the shared expert), G groups of the products, X router logits and the shared gate (E +
1).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.model_arch import GroupedLinear
from vtcore.layers.dtypes import acc_dtype


def sparse_moe(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """routed(x) + sigmoid(shared_gate) * shared(x), summed in the accumulation dtype, in this order.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeSparseMoeBlock.

    Args:
        x_TH: The layer's normed input.
        gates_TX: Router logits, and last the shared expert's gate, before softmax and sigmoid; x's dtype.
        in_proj: H -> gate and up side by side, a group per expert.
        out_proj: The experts' inner width -> H.
        top_k: K, 1 <= K <= E.
        shared_TH: shared(x) in x's dtype; None where the shared expert is the last of E + 1 groups.

    Returns:
        [T, H] x's dtype. A token's result does not depend on the other tokens.
    """
    gates = gates_TX.to(acc_dtype(x_TH.dtype))
    num_experts = gates.shape[1] - 1
    logits_TE, shared_gate_T1 = gates.split_with_sizes((num_experts, 1), -1)
    experts_TC, weights_TC = route(logits_TE, top_k)
    share_T1 = shared_gate_T1.sigmoid()
    if shared_TH is None:
        experts_TC = torch.cat((experts_TC, torch.full_like(experts_TC[:, :1], num_experts)), -1)
        weights_TC = torch.cat((weights_TC, share_T1), -1)
    total_TH = weighted_experts(x_TH, experts_TC, weights_TC, in_proj, out_proj)
    if shared_TH is not None:
        total_TH.addcmul_(shared_TH.to(total_TH.dtype), share_T1)
    return total_TH.to(x_TH.dtype)


def route(logits_TE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the K likeliest, their probabilities divided by their sum.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeTopKRouter.

    Args:
        logits_TE: Accumulation dtype.
        top_k: K, at most E.

    Returns:
        Experts [T, K] int64, likeliest first, of equal logits the lower number first; and their weights
        [T, K], accumulation dtype.
    """
    # A stable sort of the logits, not topk of the probabilities: ties then fall alike on every device.
    experts_TK = logits_TE.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights_TK = logits_TE.softmax(-1).gather(-1, experts_TK)
    return experts_TK, weights_TK / weights_TK.sum(-1, keepdim=True)


def weighted_experts(
    x_TH: Tensor,
    experts_TC: Tensor,
    weights_TC: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
) -> Tensor:
    """sum_c w_c * down_e(silu(gate_e(x)) * up_e(x)) with e the token's c-th expert.

    Each token's sum runs over its own experts in their order, so it does not depend on the other tokens.

    Source: transformers, modeling_qwen3_5_moe, Qwen3_5MoeExperts.

    Args:
        x_TH, in_proj, out_proj: As for `sparse_moe`.
        experts_TC: int64 in [0, G), the experts of a token all different.
        weights_TC: Accumulation dtype.

    Returns:
        [T, H] accumulation dtype.
    """
    num_tokens, choices = experts_TC.shape
    # Pairs of token and choice, ordered by expert; stable, so an expert's tokens keep their order.
    order = experts_TC.flatten().argsort(stable=True)
    ends_G = torch.bincount(experts_TC.flatten(), minlength=in_proj.num_groups).cumsum(0)
    gate, up = in_proj(x_TH.index_select(0, order // choices), ends_G).chunk(2, -1)
    out = out_proj(F.silu(gate).mul_(up), ends_G)
    place_TC = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    place_TC = place_TC.view(num_tokens, choices)
    total_TH = weights_TC.new_zeros(x_TH.shape)
    for choice in range(choices):
        chosen_TH = out.index_select(0, place_TC[:, choice])
        total_TH.addcmul_(chosen_TH.to(total_TH.dtype), weights_TC[:, choice : choice + 1])
    return total_TH
