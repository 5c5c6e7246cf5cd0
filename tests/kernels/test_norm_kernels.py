"""Norms and gates as kernels, against the naive ops in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vtcore.layers.norm import build_rms_weight
from vtcore.ops.add_rms_norm import naive as naive_add
from vtcore.ops.add_rms_norm import triton as kernel_add
from vtcore.ops.rms_norm import naive as naive_norm
from vtcore.ops.rms_norm import triton as kernel_norm
from vtcore.ops.silu_mul import naive as naive_silu
from vtcore.ops.silu_mul import triton as kernel_silu
from vtcore.testing.triton_interpreter import assert_order_free, kernel_device, poisoned

DEVICE = kernel_device()
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
"""A bfloat16 result is rounded once, to 2^-9 at most of itself; a gate's product twice."""
SIZES = [(1, 40), (3, 64), (5, 96), (2, 1), (33, 257)]


def draw(seed: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)).to(dtype)


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_rms_norm(rows: int, width: int, dtype: torch.dtype) -> None:
    x, scale = draw(1, rows, width, dtype), draw(2, 1, width, torch.float32)[0]
    wanted = naive_norm.rms_norm(x.double(), build_rms_weight(scale.double(), 1e-6))
    weight = build_rms_weight(scale.to(DEVICE), 1e-6)
    assert far(kernel_norm.rms_norm(x.to(DEVICE), weight), wanted) < BOUNDS[dtype]
    apart = poisoned((rows, width + 8), dtype).to(DEVICE)
    apart[:, :width] = x.to(DEVICE)
    assert far(kernel_norm.rms_norm(apart[:, :width], weight), wanted) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_add_rms_norm_gives_the_sum_and_its_norm(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = draw(3, rows, width, dtype), draw(4, rows, width, dtype)
    scale = draw(5, 1, width, torch.float32)[0]
    # The sum is rounded before its norm is taken, by both.
    total = (x.double() + residual.double()).to(dtype).double()
    wanted = naive_norm.rms_norm(total, build_rms_weight(scale.double(), 1e-6))
    weight = build_rms_weight(scale.to(DEVICE), 1e-6)
    kernels = kernel_add.add_rms_norm(x.to(DEVICE), residual.to(DEVICE), weight)
    naives = naive_add.add_rms_norm(x.clone(), residual.clone(), build_rms_weight(scale, 1e-6))
    for found, own in zip(kernels, naives, strict=True):
        assert found.shape == own.shape
        assert found.dtype == own.dtype
    assert min(far(found, total) for found in kernels) < BOUNDS[dtype]
    assert min(far(found, wanted) for found in kernels) < BOUNDS[dtype]
    for found, own in zip(kernels, naives, strict=True):
        assert far(found, own.double()) < 2 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    x = draw(6, rows, 2 * width, dtype)
    found = kernel_silu.silu_mul(x.to(DEVICE))
    assert found.shape == (rows, width)
    assert far(found, naive_silu.silu_mul(x.double())) < BOUNDS[dtype]


def test_infinite_and_huge_gates_are_what_they_are() -> None:
    x = torch.tensor([[100.0, -100.0, 0.0, -1e30, 2.0, 3.0, 4.0, 5.0]]).to(DEVICE)
    found = kernel_silu.silu_mul(x).cpu()
    assert float(found[0, 0]) == 200
    # silu(-100) * 3 is a number too small for a GPU to keep.
    assert float(found[0, 1:].abs().max()) < 1e-30


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_any_order_of_programs_gives_the_same_and_leaves_the_inputs(dtype: torch.dtype) -> None:
    weight = build_rms_weight(draw(7, 1, 40, torch.float32)[0].to(DEVICE), 1e-6)
    wide = poisoned((5, 40 + 8), dtype).to(DEVICE)
    wide[:, :40] = draw(8, 5, 40, dtype).to(DEVICE)
    residual = draw(9, 5, 40, dtype).to(DEVICE)

    def run() -> list[Tensor]:
        x, added = wide.clone(), residual.clone()
        outs = [*kernel_add.add_rms_norm(x[:, :40], added, weight), kernel_silu.silu_mul(x[:, :40])]
        assert torch.equal(x[:, :40], wide[:, :40])
        assert bool(x[:, 40:].isnan().all())
        assert torch.equal(added, residual)
        return outs

    assert_order_free(run)
