"""Tensors that travel in pieces through small buffers arrive whole, whatever their sizes and dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from vtcore.checkpoint.dummy import DummyFormat
from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import load_parameters
from vtcore.checkpoint.random_weights import random_tensors
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.staged_copy import StagedCopy
from vtcore.interfaces.model_arch import ModelArch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(num: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(FLOATS), st.sampled_from(FLOATS)),
        min_size=1,
        max_size=12,
    ),
    st.integers(16, 300),
)
def test_any_sizes_and_dtypes_through_any_buffer(
    tensors: list[tuple[int, torch.dtype, torch.dtype]], buffer_bytes: int
) -> None:
    staged = StagedCopy("cpu", buffer_bytes)
    for seed, (num, stored, final) in enumerate(tensors):
        source = drawn(num, stored, seed)
        expected = source.to(final, copy=True)
        target = torch.full((num + 2,), 7.0, dtype=final)
        staged.copy(target[1:-1], source)
        source.fill_(float("nan"))
        assert torch.equal(target[1:-1], expected)
        assert target[0] == target[-1] == 7, "what lies beside the target stays"
    staged.finish()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("final", [torch.float32, torch.bfloat16])
def test_buffers_are_filled_again_only_when_sent(device: str, final: torch.dtype) -> None:
    """Thousands of pieces of all sizes, checked after the last: a buffer reused too early shows on a GPU."""
    staged = StagedCopy(device, 1 << 16)
    sources = [drawn(1 + 997 * n % 50_021, torch.bfloat16, n) for n in range(300)]
    targets = [torch.empty(len(source), dtype=final, device=device) for source in sources]
    for target, source in zip(targets, sources, strict=True):
        staged.copy(target, source)
    staged.finish()
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target.cpu(), source.to(final))


@pytest.mark.parametrize(
    "source",
    [
        drawn(60, torch.bfloat16, 0).view(6, 10).T,
        drawn(60, torch.bfloat16, 1).view(6, 10)[:, 3:7],
        drawn(1, torch.float32, 2).view(()),
        drawn(6, torch.float32, 3).view(6, 1).expand(6, 5),
        drawn(0, torch.float32, 4).view(0, 5),
    ],
)
def test_views_of_other_layouts_arrive_in_the_targets(source: torch.Tensor) -> None:
    target = torch.empty(source.shape)
    StagedCopy("cpu", 48).copy(target, source)
    assert torch.equal(target, source.float())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("buffer_bytes", [16, 40, 1 << 20])
def test_staged_parameters_are_those_of_a_plain_copy(
    untied_toy: ModelArch, device: str, dtype: torch.dtype, buffer_bytes: int, tmp_path: Path
) -> None:
    save_file(dict(random_tensors(untied_toy, 7, torch.bfloat16)), tmp_path / "model.safetensors")
    expected = load_parameters(untied_toy, SafetensorsFormat(tmp_path), dtype, "cpu")
    staged = StagedCopy(device, buffer_bytes)
    found = load_parameters(untied_toy, SafetensorsFormat(tmp_path), dtype, device, staged)
    assert found.num_bytes == expected.num_bytes
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].is_contiguous()
        assert found.tensors[name].device.type == device
        assert torch.equal(found.tensors[name].cpu(), tensor)


@pytest.mark.gpu
def test_a_gpu_is_loaded_through_pinned_buffers_by_default(untied_toy: ModelArch) -> None:
    tensors = dict(random_tensors(untied_toy, 7, torch.bfloat16))
    expected = load_parameters(untied_toy, InMemoryFormat(tensors), torch.bfloat16, "cpu").tensors
    found = load_parameters(untied_toy, InMemoryFormat(tensors), torch.bfloat16, "cuda").tensors
    assert all(torch.equal(found[name].cpu(), tensor) for name, tensor in expected.items())


@pytest.mark.gpu
def test_dummy_weights_are_drawn_on_the_gpu_the_same_each_time(untied_toy: ModelArch) -> None:
    first, second = (DummyFormat(untied_toy, 3, "cuda") for _ in range(2))
    for name in reversed(list(second.names())):
        assert second.read(name).is_cuda
        assert torch.equal(second.read(name), first.read(name))
    loaded = load_parameters(untied_toy, first, torch.bfloat16, "cuda").tensors
    assert torch.equal(loaded["embed"], second.read("model.embed"))
