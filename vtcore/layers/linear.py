"""Matrix products over loaded weights, one class per storage scheme and memory layout.

Does not: load, slice or fuse weights.

Shape letters: N output width, K input width, M rows, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import GroupedLinear, Linear
from vtcore.ops.linear.naive import linear

_PACKED_DTYPES = (torch.float32, torch.bfloat16)
_PACK_FOR_ROWS = 8
"""Rows the packed layout is chosen for; products of other sizes stay right, and measured as fast."""


class PlainLinear:
    """y = x W^T with an unquantized weight.

    Args:
        weight: [N, K], the dtype and device of the activations; borrowed.
        multiply: The op "linear".
    """

    def __init__(self, weight: Tensor, multiply: Callable[[Tensor, Tensor], Tensor] = linear) -> None:
        self._weight_NK = weight
        self._multiply = multiply

    def __call__(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N], in x's dtype."""
        return self._multiply(x, self._weight_NK)


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


def build_linear(
    weight: Tensor, is_shared: bool, multiply: Callable[[Tensor, Tensor], Tensor] = linear
) -> Linear:
    """The product for a plain weight.

    Args:
        weight: [N, K].
        is_shared: Something else reads the weight too (a tied embedding), so a packed copy would double it.
        multiply: The op "linear"; a packed copy on the CPU does without.
    """
    if weight.device.type == "cpu" and weight.dtype in _PACKED_DTYPES and not is_shared:
        try:
            return PackedLinear(weight)
        except (RuntimeError, AttributeError):
            # oneDNN is absent or does not know the dtype on this processor.
            return PlainLinear(weight, multiply)
    return PlainLinear(weight, multiply)


class LinearPerGroup:
    """One product per group over the rows that belong to it; groups without rows cost nothing.

    Args:
        products: A product per group, all of one output width.
        out_features: That width.
    """

    weight_GNK: Tensor | None = None
    """Each product keeps its own matrix."""

    def __init__(self, products: Sequence[Linear], out_features: int) -> None:
        self._products = tuple(products)
        self._out_features = out_features

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self._products)

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """[M, K] ordered by group, and the [G] ends of the groups -> [M, N], in x's dtype.

        Raises:
            EngineError: The groups do not cover x's rows.
        """
        stops = ends.tolist()
        if stops[-1] != x.shape[0] or len(stops) != len(self._products):
            raise EngineError(f"{len(stops)} groups of {stops[-1]} rows, but there are {x.shape[0]} rows")
        y = x.new_empty((x.shape[0], self._out_features))
        start = 0
        for product, stop in zip(self._products, stops, strict=True):
            if stop > start:
                y[start:stop] = product(x[start:stop])
            start = stop
        return y


class StackedLinear:
    """One product per group, over matrices that lie back to back, as kernels of all groups at once read them.

    Args:
        weight_GNK: [G, N, K], contiguous, the dtype and device of the activations; borrowed.
        multiply: The op "linear", for calls; kernels of all groups read the matrices themselves.
    """

    def __init__(self, weight_GNK: Tensor, multiply: Callable[[Tensor, Tensor], Tensor] = linear) -> None:
        self.weight_GNK = weight_GNK
        self._multiply = multiply

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return self.weight_GNK.shape[0]

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """[M, K] ordered by group, and the [G] ends of the groups -> [M, N], in x's dtype.

        Reads `ends` on the host, so it waits for the device.

        Raises:
            EngineError: The groups do not cover x's rows.
        """
        products = [PlainLinear(weight_NK, self._multiply) for weight_NK in self.weight_GNK]
        return LinearPerGroup(products, self.weight_GNK.shape[1])(x, ends)


def build_grouped_linear(
    weight: Tensor,
    is_shared: bool,
    num_groups: int,
    multiply: Callable[[Tensor, Tensor], Tensor] = linear,
) -> GroupedLinear:
    """The products for plain weights: on the CPU each as `build_linear` makes it, elsewhere stacked.

    Args:
        weight: [G * N, K], group after group.
        is_shared: Something else reads the weight too.
        num_groups: G, >= 1.
        multiply: As for `build_linear`.
    """
    if weight.device.type != "cpu":
        return StackedLinear(weight.view(num_groups, -1, weight.shape[1]), multiply)
    blocks = weight.chunk(num_groups)
    return LinearPerGroup([build_linear(block, is_shared, multiply) for block in blocks], blocks[0].shape[0])


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
