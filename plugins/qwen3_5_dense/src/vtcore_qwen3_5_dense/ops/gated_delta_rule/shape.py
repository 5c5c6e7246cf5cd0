"""Geometry of one gated delta rule layer, with the constants that its op reads.

Does not: compute.

Shape letters: G value heads, K key width.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

L2_EPS = 1e-6
"""Added to the sum of squares of q and k. Source: transformers, modeling_qwen3_5, l2norm."""


@frozen(eq=False)
class DeltaRuleShape:
    """Geometry of one layer with the constants its op needs; made once per layer.

    Args:
        key_heads, value_heads, key_width, value_width: G is value_heads; value head h uses key head h // (G /
            key_heads).
        scale: Factor on normalised q.
        l2_floor: [1] accumulation dtype, sqrt(L2_EPS).
        head_channels: [G * 2 * K] channels of q and k for each value head in turn: head 0's q, its k, ...
        heads_G: [G] 0..G-1.
        no_output: [1, 1, 1] accumulation dtype; an addend that is not read.
    """

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    scale: float
    l2_floor: Tensor
    head_channels: Tensor
    heads_G: Tensor
    no_output: Tensor


def build_delta_rule_shape(
    *,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
    dtype: torch.dtype,
    device: str,
) -> DeltaRuleShape:
    """Derive the constants.

    Args:
        dtype: Accumulation dtype.
        device: torch device string.
    """
    heads = torch.arange(value_heads, device=device)
    key_head_G = heads // (value_heads // key_heads)
    q_GK = key_head_G[:, None] * key_width + torch.arange(key_width, device=device)
    channels = torch.stack((q_GK, q_GK + key_heads * key_width), 1).flatten()
    return DeltaRuleShape(
        key_heads=key_heads,
        value_heads=value_heads,
        key_width=key_width,
        value_width=value_width,
        scale=key_width**-0.5,
        l2_floor=torch.full((1,), L2_EPS**0.5, dtype=dtype, device=device),
        head_channels=channels,
        heads_G=heads,
        no_output=torch.zeros(1, 1, 1, dtype=dtype, device=device),
    )
