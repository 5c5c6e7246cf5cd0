"""Matrix products over loaded weights, one class per storage scheme.

Does not: load, slice or fuse weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class PlainLinear:
    """y = x W^T with an unquantized weight.

    Args:
        weight: [N, K], the dtype and device of the activations.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight_NK = weight
        self._weight_KN = weight.t()

    @property
    def weight(self) -> Tensor:
        """[N, K]."""
        return self._weight_NK

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N], in x's dtype."""
        if x.dim() == 2:
            return torch.mm(x, self._weight_KN)
        return F.linear(x, self._weight_NK)


class SingleRank:
    """The only rank of a world of one: every collective is the identity."""

    rank = 0
    world = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks: x itself."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Concatenation over ranks: x itself."""
        return x
