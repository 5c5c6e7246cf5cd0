"""RMS norm in torch: the reference and the CPU path.

Does not: know whether the stored weight was zero-centred; `RmsWeight` has it folded in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.layers.norm import RmsWeight


def rms_norm_acc(x: Tensor, weight: RmsWeight) -> Tensor:
    """As `rms_norm`, left in the accumulation dtype.

    Args:
        x: [..., D].
        weight: Broadcast over the leading dimensions.

    Returns:
        [..., D] accumulation dtype, a new tensor.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=weight.scale.dtype)
    return torch.div(x, torch.hypot(length, weight.floor)).mul_(weight.scale)


def rms_norm(x: Tensor, weight: RmsWeight) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * w over the last dimension.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.

    Args:
        x: [..., D].
        weight: Broadcast over the leading dimensions.

    Returns:
        [..., D] in x's dtype; the weight is applied before rounding.
    """
    normed = rms_norm_acc(x, weight)
    return normed if normed.dtype == x.dtype else normed.to(x.dtype)
