"""Matrix products over loaded weights, one class per storage scheme and memory layout.

Does not: load, slice or fuse weights.

Shape letters: N output width, K input width, M rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.interfaces.model_arch import Linear

_PACKED_DTYPES = (torch.float32, torch.bfloat16)
_PACK_FOR_ROWS = 8
"""Rows the packed layout is chosen for; products of other sizes stay right, and measured as fast."""


class PlainLinear:
    """y = x W^T with an unquantized weight.

    Args:
        weight: [N, K], the dtype and device of the activations; borrowed.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight_KN = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N], in x's dtype."""
        return torch.mm(x, self._weight_KN)


class PackedLinear:
    """y = x W^T with an unquantized weight in the layout that oneDNN computes on.

    For the few rows of a decode step it takes half to three quarters of torch.mm's time on a CPU with AVX-512
    (bench/README.md).

    Args:
        weight: [N, K] float32 or bfloat16 on the CPU; copied, the caller may drop it.

    Raises:
        RuntimeError, AttributeError: This build of torch has no such product for the dtype.
    """

    def __init__(self, weight: Tensor) -> None:
        ops = torch.ops.mkldnn
        self._multiply = ops._linear_pointwise
        self._packed = ops._reorder_linear_weight(weight.contiguous(), _PACK_FOR_ROWS)
        # A build that lacks the kernel says so on the first product; better here than while serving.
        self(weight.new_zeros(1, weight.shape[1]))

    def __call__(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N], in x's dtype."""
        y: Tensor = self._multiply(x, self._packed, None, "none", [], "")
        return y


def build_linear(weight: Tensor, is_shared: bool) -> Linear:
    """The product for a plain weight.

    Args:
        weight: [N, K].
        is_shared: Something else reads the weight too (a tied embedding), so a packed copy would double it.
    """
    if weight.device.type == "cpu" and weight.dtype in _PACKED_DTYPES and not is_shared:
        try:
            return PackedLinear(weight)
        except (RuntimeError, AttributeError):
            # oneDNN is absent or does not know the dtype on this processor.
            return PlainLinear(weight)
    return PlainLinear(weight)


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
