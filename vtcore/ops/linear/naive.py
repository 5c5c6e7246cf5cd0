"""A matrix product over a loaded weight, by the library: the reference, and the measure of kernels.

Does not: load, slice or fuse weights.

Shape letters: M rows, N output width, K input width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T.

    Args:
        x_MK: [M, K], rows contiguous or apart.
        weight_NK: [N, K], contiguous, x's dtype.

    Returns:
        [M, N], x's dtype.
    """
    return torch.mm(x_MK, weight_NK.t())
