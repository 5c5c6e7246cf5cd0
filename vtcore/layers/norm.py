"""RMS norm weights in the form that the norm ops read.

Does not: normalise; see `vtcore.ops`.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from vtcore.layers.dtypes import acc_dtype


@frozen(eq=False)
class RmsWeight:
    """Weight and epsilon of one RMS norm over D elements, folded.

    With m the mean of squares, x * w / sqrt(m + eps) = x * scale / sqrt(|x|^2 + floor^2).

    Args:
        scale: [D] accumulation dtype, w * sqrt(D).
        floor: [1] accumulation dtype, sqrt(D * eps).
    """

    scale: Tensor
    floor: Tensor


def build_rms_weight(weight: Tensor, eps: float, *, zero_centred: bool = False) -> RmsWeight:
    """Fold a stored norm weight.

    Args:
        weight: [..., D]; leading dimensions give each head a weight of its own.
        eps: Added to the mean of squares, > 0.
        zero_centred: The checkpoint stores w - 1.
    """
    acc = weight.to(acc_dtype(weight.dtype))
    width = weight.shape[-1]
    scale = (acc + 1 if zero_centred else acc) * width**0.5
    floor = torch.full((1,), (width * eps) ** 0.5, dtype=acc.dtype, device=acc.device)
    return RmsWeight(scale, floor)
