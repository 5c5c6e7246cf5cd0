"""The dtype names that specs may carry and the torch dtypes behind them."""

from __future__ import annotations

import torch

from vtcore.interfaces.kv_cache_spec import DTYPE_BYTES
from vtcore.layers.dtypes import DTYPES, acc_dtype


def test_every_dtype_a_cache_spec_may_carry_can_be_allocated_at_its_planned_size() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(DTYPE_BYTES)


def test_sums_are_float64_for_float64_and_float32_for_all_else() -> None:
    sums = {name: acc_dtype(dtype) for name, dtype in DTYPES.items() if dtype.is_floating_point}
    assert sums.pop("float64") == torch.float64
    assert set(sums.values()) == {torch.float32}
