"""What one gated DeltaNet layer's op reads beside the step: constants, made once per layer.

Does not: compute.

Shape letters: W kernel width, C conv channels, G value heads.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from vtcore.layers.norm import RmsWeight
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import DeltaRuleShape


@frozen(eq=False, kw_only=True)
class DeltaNetLayer:
    """One layer.

    Args:
        conv_WC: Accumulation dtype; the last row belongs to the current token.
        decay_rate_G: -exp(A_log), accumulation dtype. dt_bias_G: Added to a, accumulation dtype.
        norm: Over the value width, shared by all heads.
        shape: Heads and widths.
        split: Widths of [q | k | v], z, b and a in the projection's output.
        activation: Of the output gate, "silu" or "sigmoid".
        acc_dtype: Accumulation dtype.
    """

    conv_WC: Tensor
    decay_rate_G: Tensor
    dt_bias_G: Tensor
    norm: RmsWeight
    shape: DeltaRuleShape
    split: tuple[int, int, int, int]
    activation: str
    acc_dtype: torch.dtype
