"""Dummy weights are those that a checkpoint of random weights would hold, without the checkpoint."""

from __future__ import annotations

import pytest
import torch

from vtcore.checkpoint.dummy import DummyFormat
from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import load_parameters
from vtcore.checkpoint.random_weights import random_tensors
from vtcore.errors import MissingTensorError
from vtcore.interfaces.model_arch import ModelArch


def test_names_and_values_are_those_of_a_random_checkpoint(untied_toy: ModelArch) -> None:
    written = dict(random_tensors(untied_toy, 7, torch.bfloat16))
    dummy = DummyFormat(untied_toy, 7)
    assert dummy.names() == InMemoryFormat(written).names()
    for name, tensor in written.items():
        assert torch.equal(dummy.read(name), tensor)
        assert torch.equal(dummy.read(name, slice(1, 3)), tensor[1:3])


def test_the_loader_makes_the_same_parameters_of_it(toy: ModelArch) -> None:
    written = InMemoryFormat(dict(random_tensors(toy, 3, torch.bfloat16)))
    expected = load_parameters(toy, written, torch.float32, "cpu").tensors
    found = load_parameters(toy, DummyFormat(toy, 3), torch.float32, "cpu").tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_another_seed_gives_other_weights_and_reading_order_does_not(toy: ModelArch) -> None:
    one, two = DummyFormat(toy, 1), DummyFormat(toy, 2)
    assert not torch.equal(one.read("model.embed"), two.read("model.embed"))
    names = list(one.names())
    forwards = {name: one.read(name).clone() for name in names}
    one.close()
    assert all(torch.equal(one.read(name), forwards[name]) for name in reversed(names))


def test_an_unknown_tensor_is_missing(toy: ModelArch) -> None:
    with pytest.raises(MissingTensorError, match=r"no tensor model\.nothing"):
        DummyFormat(toy, 0).read("model.nothing")
