"""Residual addition followed by RMS norm, in torch.

Does not: write its inputs.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.layers.norm import RmsWeight
from vtcore.ops.rms_norm.naive import rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: RmsWeight) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and normalise the sum.

    Args:
        x: [T, H].
        residual: [T, H], x's dtype.
        weight: Over H.

    Returns:
        (normalised sum, sum), both [T, H] in x's dtype and new.
    """
    summed = x + residual
    return rms_norm(summed, weight), summed
