"""Products of few rows as kernels, against the library's in float64."""

from __future__ import annotations

import pytest
import torch

from vtcore.ops.linear import naive, triton
from vtcore.ops.linear.plan import ByRow, ByTile
from vtcore.testing.triton_interpreter import assert_order_free, is_interpreting, kernel_device, poisoned

DEVICE = kernel_device()
PLANS: dict[str, ByRow | ByTile] = {
    "by row": ByRow(columns=4, depth=32, num_warps=4),
    "by row, wide": ByRow(columns=8, depth=128, num_warps=4),
    "by tile, narrow": ByTile(rows=16, columns=8, depth=32, parts=2, num_warps=4, num_stages=2),
    "by tile": ByTile(rows=16, columns=32, depth=32, parts=1, num_warps=4, num_stages=2),
    "by tile, in parts": ByTile(rows=16, columns=16, depth=16, parts=3, num_warps=4, num_stages=2),
    "by tile, in more parts than steps": ByTile(
        rows=32, columns=32, depth=64, parts=8, num_warps=4, num_stages=2
    ),
}
SHAPES = [(1, 40, 96), (1, 7, 33), (3, 64, 128), (4, 33, 70), (8, 48, 64), (17, 20, 100)]


def draw(rows: int, width: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + width + depth)
    x = torch.randn(rows, depth, generator=generator, dtype=torch.float64)
    weight = torch.randn(width, depth, generator=generator, dtype=torch.float64) / depth**0.5
    return x.to(DEVICE, dtype), weight.to(DEVICE, dtype)


def error(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    wanted = naive.linear(x.double(), weight.double())
    return float((found.double() - wanted).norm() / wanted.norm())


BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 3e-3}
"""A bfloat16 result is rounded once, to 2^-9 at most of itself."""


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("rows", "width", "depth"), SHAPES)
@pytest.mark.parametrize("name", PLANS)
def test_a_product_is_right_to_one_rounding(
    name: str, rows: int, width: int, depth: int, dtype: torch.dtype
) -> None:
    if isinstance(PLANS[name], ByRow) and rows > 8:
        pytest.skip("rows go by tile from there on")
    x, weight = draw(rows, width, depth, dtype)
    assert error(triton.multiply(x, weight, PLANS[name]), x, weight) < BOUNDS[dtype]


@pytest.mark.parametrize("name", PLANS)
def test_rows_that_lie_apart_are_read_in_place(name: str) -> None:
    x, weight = draw(4, 24, 64, torch.float32)
    apart = poisoned((4, 80), torch.float32).to(DEVICE)
    apart[:, :64] = x
    assert torch.equal(
        triton.multiply(apart[:, :64], weight, PLANS[name]), triton.multiply(x, weight, PLANS[name])
    )


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", PLANS)
def test_nothing_outside_is_read_or_written(name: str, dtype: torch.dtype) -> None:
    rows, width, depth = 5, 37, 70
    x, weight = draw(rows, width, depth, dtype)
    around_x = poisoned((rows + 2, depth + 9), dtype).to(DEVICE)
    around_x[1:-1, :depth] = x
    around_w = poisoned((width + 2, depth), dtype).to(DEVICE)
    around_w[1:-1] = weight
    around_y = torch.full((rows + 2, width), 7.0, dtype=dtype, device=DEVICE)
    triton.multiply_into(around_y[1:-1], around_x[1:-1, :depth], around_w[1:-1], PLANS[name])
    assert error(around_y[1:-1], x, weight) < BOUNDS[dtype]
    assert (around_y[0] == 7).all()
    assert (around_y[-1] == 7).all()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_batch_invariant_sums_come_in_one_order(dtype: torch.dtype) -> None:
    """Sums of each step of 64 are exact, so that the order of steps alone decides the bits."""
    rows, width, steps = 70, 9, 6
    generator = torch.Generator().manual_seed(5)
    whole = torch.randint(-7, 8, (rows, steps, 64), generator=generator)
    scales = torch.tensor([2.0**-13, 1, 2.0**12, 3 * 2.0**-9, 2.0**11, 2.0**-14])
    x = (whole * scales[:, None]).flatten(1).to(DEVICE, dtype)
    weight = torch.randint(-7, 8, (width, steps * 64), generator=generator).to(DEVICE, dtype)
    together = triton.linear_batch_invariant(x, weight)
    for first, last in ((0, 1), (15, 17), (3, 40), (33, 70), (69, 70)):
        assert torch.equal(triton.linear_batch_invariant(x[first:last], weight), together[first:last])
    if dtype == torch.float32:
        # Another order gives other bits, so the comparison above can fail.
        plan = ByTile(rows=32, columns=64, depth=32, parts=5, num_warps=4, num_stages=3)
        assert not torch.equal(triton.multiply(x, weight, plan), together)


@pytest.mark.skipif(is_interpreting(), reason="numpy's own products choose an order by place")
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_batch_invariant_bits_do_not_depend_on_the_other_rows(dtype: torch.dtype) -> None:
    x, weight = draw(150, 70, 96, dtype)
    together = triton.linear_batch_invariant(x, weight)
    assert error(together, x, weight) < BOUNDS[dtype]
    for row in (0, 15, 63, 64, 149):
        assert torch.equal(triton.linear_batch_invariant(x[row : row + 1], weight)[0], together[row])
    assert torch.equal(triton.linear_batch_invariant(x[40:140], weight), together[40:140])


@pytest.mark.parametrize("rows", [0, 1, 5, 64, 65])
def test_the_op_takes_any_number_of_rows(rows: int) -> None:
    x, weight = draw(rows, 48, 64, torch.bfloat16)
    found = triton.linear(x, weight)
    assert found.shape == (rows, 48)
    if rows:
        assert error(found, x, weight) < BOUNDS[torch.bfloat16]


@pytest.mark.skipif(not is_interpreting(), reason="a GPU chooses its own order")
@pytest.mark.parametrize("name", PLANS)
def test_programs_may_run_in_any_order(name: str) -> None:
    x, weight = draw(5, 40, 96, torch.float32)
    assert_order_free(lambda: [triton.multiply(x, weight, PLANS[name])])
