"""Cuts the tail of a distribution: min-p, top-k, top-p.

Does not: draw. Scaled logits are (logit - the row's largest) / temperature, so the largest is exactly 0;
an id that is cut becomes -inf. At least one id per row always survives.

Shape letters: N logit rows, K candidate ids in ascending order (all of the vocabulary or a subset).
"""

from __future__ import annotations

import torch
from torch import Tensor


def cut_min_p(scaled_NK: Tensor, min_p_N1: Tensor) -> Tensor:
    """Keep ids with at least min_p times the probability of the row's most likely id.

    Source: Nguyen et al., Turning Up the Heat: Min-p Sampling (2024), equation 2.
    """
    return scaled_NK.masked_fill(scaled_NK < min_p_N1.log().to(scaled_NK.dtype), -torch.inf)


def cut_top_k(scaled_NK: Tensor, top_k_N: Tensor, largest_k: int) -> Tensor:
    """Keep ids whose logit is at least the k-th largest; all ids equal to it stay.

    Args:
        top_k_N: [N] int64, 1 <= k <= largest_k.
        largest_k: Host bound of top_k_N, <= K.

    Source: Fan et al. 2018; ties as in vLLM's threshold form.
    """
    largest_NK = scaled_NK.topk(largest_k, dim=1).values
    threshold_N1 = largest_NK.gather(1, top_k_N.unsqueeze(1) - 1)
    return scaled_NK.masked_fill(scaled_NK < threshold_N1, -torch.inf)


def cut_top_p(scaled_NK: Tensor, top_p_N1: Tensor) -> Tensor:
    """Keep the smallest set of most likely ids whose mass reaches top_p; of equal ids the lower is first.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2019), section 3.1.
    """
    sorted_NK, order_NK = scaled_NK.sort(dim=1, descending=True, stable=True)
    mass_NK = sorted_NK.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    is_cut = torch.zeros_like(scaled_NK, dtype=torch.bool)
    is_cut[:, 1:] = mass_NK[:, :-1] >= top_p_N1
    return scaled_NK.masked_fill(torch.zeros_like(is_cut).scatter_(1, order_NK, is_cut), -torch.inf)


def compact(scaled_NV: Tensor, num_survivors: int) -> tuple[Tensor, Tensor]:
    """The ids that are left and their scaled logits, ids ascending.

    Args:
        num_survivors: At least the largest number of finite values of any row.

    Returns:
        [N, K] scaled logits and [N, K] int64 ids; rows with fewer survivors are filled up with cut ids.
    """
    ids_NK = scaled_NV.topk(num_survivors, dim=1, sorted=False).indices.sort(dim=1).values
    return scaled_NV.gather(1, ids_NK), ids_NK
