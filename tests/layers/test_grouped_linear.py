"""A grouped product multiplies each row by its own group's matrix, and is asked for by its own name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.layers.linear import build_grouped_linear


def by_row(x: Tensor, weight_GNK: Tensor, counts: list[int]) -> Tensor:
    groups = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return torch.stack([weight_GNK[g].double() @ row.double() for g, row in zip(groups, x, strict=True)])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
@pytest.mark.parametrize("counts", [[2, 0, 1, 5], [0, 0, 0, 1], [9, 0, 0, 0], [1, 1, 1, 1]])
def test_each_row_meets_the_matrix_of_its_group(
    counts: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    weight_GNK = torch.randn(4, 7, 12).to(dtype)
    x = torch.randn(sum(counts), 12).to(dtype)
    product = build_grouped_linear(weight_GNK.flatten(0, 1), False, 4)
    y = product(x, torch.tensor(counts).cumsum(0))
    assert product.num_groups == 4
    assert y.dtype == dtype
    assert torch.allclose(y.double(), by_row(x, weight_GNK, counts), rtol=tolerance, atol=tolerance)


def test_no_rows_at_all_give_no_rows() -> None:
    product = build_grouped_linear(torch.randn(6, 5), False, 2)
    assert product(torch.empty(0, 5), torch.zeros(2, dtype=torch.int64)).shape == (0, 3)


@pytest.mark.parametrize("ends", [[2, 3], [4, 5], [4]])
def test_groups_that_do_not_cover_the_rows_are_an_engine_error(ends: list[int]) -> None:
    product = build_grouped_linear(torch.randn(6, 5), False, 2)
    with pytest.raises(EngineError, match="but there are 4 rows"):
        product(torch.randn(4, 5), torch.tensor(ends))
