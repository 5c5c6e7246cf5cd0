"""Tensors of more than 2^31 elements: rows there get what the same rows get in a small tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vtcore.interfaces.batch import RowParams
from vtcore.layers.norm import build_rms_weight
from vtcore.ops.add_rms_norm.triton import add_rms_norm
from vtcore.ops.argmax.triton import argmax
from vtcore.ops.linear.plan import ByRow, ByTile
from vtcore.ops.linear.triton import multiply
from vtcore.ops.rms_norm.triton import rms_norm
from vtcore.ops.sample_tokens.triton import sample_tokens
from vtcore.ops.silu_mul.triton import silu_mul
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.params_table import RowParamsTable

pytestmark = pytest.mark.gpu
WIDTH, LAST = 4096, 3
ROWS = 2**31 // WIDTH + LAST


@pytest.fixture
def rows() -> Tensor:
    """As many rows as pass 2^31 elements by some; all but the last few hold NaN."""
    out = torch.full((ROWS, WIDTH), float("nan"), dtype=torch.bfloat16, device="cuda")
    out[-LAST:] = torch.randn(LAST, WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    return out


def norm_sum(x: Tensor) -> Tensor:
    scale = build_rms_weight(torch.ones(WIDTH, device="cuda"), 1e-6)
    return torch.cat(add_rms_norm(x, x.clone(), scale)[:2], dim=1)


ROW_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: rms_norm(x, build_rms_weight(torch.ones(WIDTH, device="cuda"), 1e-6)),
    "add_rms_norm": norm_sum,
    "silu_mul": silu_mul,
    "argmax": lambda x: argmax(x, torch.zeros(2, dtype=torch.int64, device="cuda")),
}


@pytest.mark.parametrize("name", ROW_OPS)
def test_an_op_of_rows(name: str, rows: Tensor) -> None:
    op = ROW_OPS[name]
    near = op(rows[-LAST:].clone())
    assert torch.equal(op(rows)[-LAST:], near)
    assert not near.isnan().any()


def test_samples(rows: Tensor) -> None:
    table = RowParamsTable(LAST + 1, WIDTH, "cuda")
    for row in range(1, LAST + 1):
        table.set(row, RowParams(temperature=2.0, top_k=50, top_p=0.9, seed=row), 1)
    params = DeviceParams(table)
    params.update(range(1, LAST + 1))
    index = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    index[-LAST:] = torch.arange(1, LAST + 1)
    positions = torch.arange(ROWS, device="cuda")
    rows[:-LAST] = 0

    def draw(first: int) -> list[int]:
        counts = torch.zeros(2, dtype=torch.int64, device="cuda")
        found = sample_tokens(rows[first:].clone(), index[first:], positions[first:], params, counts)
        return found[-LAST:].tolist()

    assert draw(0) == draw(ROWS - LAST)


@pytest.mark.parametrize(
    "plan",
    [
        ByRow(columns=4, depth=128, num_warps=4),
        ByTile(rows=16, columns=32, depth=64, parts=1, num_warps=4, num_stages=2),
        ByTile(rows=16, columns=32, depth=64, parts=2, num_warps=4, num_stages=2),
    ],
    ids=["by row", "by tile", "by tile, in parts"],
)
def test_a_product_with_so_large_a_weight(plan: ByRow | ByTile, rows: Tensor) -> None:
    x = torch.randn(4, WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(2))
    rows = rows.nan_to_num()
    found = multiply(x.to(torch.bfloat16), rows, plan)[:, -LAST:].double()
    wanted = x.to(torch.bfloat16).double() @ rows[-LAST:].double().T
    assert float((found - wanted).norm() / wanted.norm()) < 3e-3
