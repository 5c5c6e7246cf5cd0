"""What conftest.py promises to every test."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_uninitialized_memory_holds_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(3, dtype=dtype)
    for tensor in (torch.empty(4, dtype=dtype), torch.empty_like(x), x.new_empty(2, 2)):
        assert tensor.isnan().all()


def test_integer_memory_and_out_arguments_still_work() -> None:
    assert torch.empty(3, dtype=torch.int64).shape == (3,)
    assert torch.empty((2, 3), device="meta").shape == (2, 3)
    assert torch.empty(2, requires_grad=True).requires_grad


def test_plain_empty_adds_no_operation(plain_empty: None) -> None:
    zeros = torch.zeros(64)
    before = zeros._version
    assert torch.empty_like(zeros)._version == 0
    assert zeros._version == before


def test_hypothesis_is_deterministic_and_without_deadline() -> None:
    assert settings.default.derandomize
    assert settings.default.deadline is None
