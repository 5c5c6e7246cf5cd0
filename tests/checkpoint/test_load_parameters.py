"""Parameter rules applied to stored tensors: slicing, fusing, conversion, and every mismatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import save_file

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import estimate_parameter_bytes, load_parameters
from vtcore.checkpoint.random_weights import draw_tensor, random_tensors
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.errors import (
    MissingTensorError,
    PluginError,
    TensorShapeError,
    UnknownTensorError,
    UnsupportedFeatureError,
)
from vtcore.interfaces.model_arch import ModelArch, ParamPart, ParamRule


def stored(arch: ModelArch, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    return dict(random_tensors(arch, 7, dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parameters_are_the_stored_values_in_their_final_dtype(toy: ModelArch, dtype: torch.dtype) -> None:
    tensors = stored(toy)
    loaded = load_parameters(toy, InMemoryFormat(tensors), dtype, "cpu")
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    expected = {
        "embed": tensors["model.embed"].to(dtype),
        "gate_up": torch.cat([tensors["model.gate"], tensors["model.up"]]).to(dtype),
        "conv": tensors["model.conv"][:, 0].roll(-1, 0).to(dtype),
        "decay": tensors["model.decay"].to(acc),
    }
    assert loaded.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert loaded.tensors[name].is_contiguous()
        assert torch.equal(loaded.tensors[name], tensor)
    assert loaded.num_bytes == sum(t.numel() * t.element_size() for t in expected.values())
    assert loaded.num_bytes == estimate_parameter_bytes(toy, tensors.keys(), dtype)
    assert loaded.num_bytes == estimate_parameter_bytes(toy, (), dtype)


def test_files_and_memory_give_the_same_parameters(toy: ModelArch, tmp_path: Path) -> None:
    tensors = stored(toy)
    save_file(tensors, tmp_path / "model.safetensors")
    from_files = load_parameters(toy, SafetensorsFormat(tmp_path), torch.float32, "cpu")
    from_memory = load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")
    for name, tensor in from_memory.tensors.items():
        assert torch.equal(from_files.tensors[name], tensor)


def test_parameters_do_not_share_memory_with_the_checkpoint(toy: ModelArch) -> None:
    tensors = stored(toy, torch.float32)
    loaded = load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")
    before = loaded.tensors["embed"].clone()
    tensors["model.embed"].zero_()
    assert torch.equal(loaded.tensors["embed"], before)


def test_skipped_tensors_are_listed(toy: ModelArch) -> None:
    tensors = {**stored(toy), "visual.b": torch.zeros(2, dtype=torch.int64), "visual.a": torch.zeros(1)}
    loaded = load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")
    assert loaded.skipped == ("visual.a", "visual.b")


def test_missing_tensors_are_named_up_to_five_with_their_count(toy: ModelArch) -> None:
    tensors = stored(toy)
    del tensors["model.up"], tensors["model.gate"]
    with pytest.raises(MissingTensorError, match=r"lacks 2 of the 5 tensors.*: model\.gate, model\.up;"):
        load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")


def test_an_untied_head_that_is_absent_is_missing(toy: ModelArch, untied_toy: ModelArch) -> None:
    with pytest.raises(MissingTensorError, match="head"):
        load_parameters(untied_toy, InMemoryFormat(stored(toy)), torch.float32, "cpu")


def test_unknown_tensors_are_named_up_to_five_with_their_count(toy: ModelArch) -> None:
    tensors = {**stored(toy), **{f"extra.{i}": torch.zeros(1) for i in range(7)}}
    with pytest.raises(UnknownTensorError, match=r"has 7 tensor\(s\).*extra\.0, .*extra\.4 and 2 more;"):
        load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("model.up", (17, 6)), ("model.up", (18,)), ("model.conv", (6, 4)), ("model.decay", ())],
)
def test_a_wrong_shape_names_tensor_rule_and_both_shapes(
    toy: ModelArch, name: str, shape: tuple[int, ...]
) -> None:
    tensors = {**stored(toy), name: torch.zeros(shape)}
    with pytest.raises(TensorShapeError) as caught:
        load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")
    message = str(caught.value)
    assert name in message
    assert f"has shape {list(shape)}," in message
    assert "the config implies [" in message
    assert "(rule " in message


def test_shapes_are_judged_before_any_data_is_read(toy: ModelArch) -> None:
    class Unreadable(InMemoryFormat):
        def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
            raise AssertionError(f"{name} was read")

    tensors = {**stored(toy), "model.decay": torch.zeros(5)}
    with pytest.raises(TensorShapeError):
        load_parameters(toy, Unreadable(tensors), torch.float32, "cpu")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_a_tensor_that_is_not_plain_floating_is_refused(toy: ModelArch, dtype: torch.dtype) -> None:
    tensors = stored(toy)
    tensors["model.up"] = tensors["model.up"].to(dtype)
    with pytest.raises(UnsupportedFeatureError, match=r"model\.up is stored as"):
        load_parameters(toy, InMemoryFormat(tensors), torch.float32, "cpu")


class Altered:
    """The rules of another architecture, altered."""

    def __init__(self, arch: ModelArch, rules: tuple[ParamRule, ...]) -> None:
        self._arch, self._rules = arch, rules

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        return self._rules

    def __getattr__(self, name: str) -> object:
        return getattr(self._arch, name)


def alter(arch: ModelArch, rule_name: str, /, **changes: Any) -> ModelArch:
    rules = tuple(evolve(r, **changes) if r.name == rule_name else r for r in arch.param_rules(()))
    altered: ModelArch = Altered(arch, rules)  # type: ignore[assignment]
    return altered


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "conv"}, "two rules for parameter conv"),
        ({"dtype": "float16"}, 'dtype must be "model" or "acc"'),
        ({"shape": (31, 6)}, "its parts have 30 rows"),
        ({"shape": ()}, "its parts have 30 rows"),
        ({"shape": (30, 5)}, r"component up takes rows 0 to 12 of shape \[30, 5\] from a source of shape"),
    ],
)
def test_rules_that_contradict_themselves_are_the_plugins_fault(
    toy: ModelArch, changes: dict[str, Any], message: str
) -> None:
    altered = alter(toy, "gate_up", **changes)
    with pytest.raises(PluginError, match=message):
        load_parameters(altered, InMemoryFormat(stored(toy)), torch.float32, "cpu")
    with pytest.raises(PluginError, match=message):
        estimate_parameter_bytes(altered, (), torch.float32)


@pytest.mark.parametrize("changes", [{"source_row": 7}, {"source_row": -1}, {"source_shape": (18,)}])
def test_rows_outside_the_source_are_the_plugins_fault(toy: ModelArch, changes: dict[str, Any]) -> None:
    [rule] = [r for r in toy.param_rules(()) if r.name == "gate_up"]
    gate, up, tail = rule.parts
    with pytest.raises(PluginError, match=r"component up (takes rows|has no rows)"):
        estimate_parameter_bytes(
            alter(toy, "gate_up", parts=(gate, evolve(up, **changes), tail)), (), torch.float32
        )


def test_two_parts_of_one_component_name_are_refused(toy: ModelArch) -> None:
    [rule] = [r for r in toy.param_rules(()) if r.name == "gate_up"]
    parts = tuple(evolve(p, component="same") for p in rule.parts)
    with pytest.raises(PluginError, match="same component name"):
        estimate_parameter_bytes(alter(toy, "gate_up", parts=parts), (), torch.float32)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (lambda t: t, TensorShapeError, r"has shape \[5, 1, 4\] once cut and transformed"),
        (lambda t: t[:3, 0], TensorShapeError, r"has shape \[2, 4\] once cut and transformed"),
        (lambda t: t.sum(), TensorShapeError, r"has shape \[\] once cut and transformed"),
        (lambda t: None, PluginError, r"the transform of model\.conv returned no tensor"),
    ],
)
def test_what_a_transform_returns_is_checked(
    toy: ModelArch, transform: Any, error: type[Exception], message: str
) -> None:
    [rule] = [r for r in toy.param_rules(()) if r.name == "conv"]
    parts = (evolve(rule.parts[0], transform=transform), rule.parts[1])
    with pytest.raises(error, match=message):
        load_parameters(alter(toy, "conv", parts=parts), InMemoryFormat(stored(toy)), torch.float32, "cpu")


def test_two_rules_may_read_one_source(toy: ModelArch) -> None:
    rules = toy.param_rules(())
    head = evolve(rules[0], name="head")
    altered: ModelArch = Altered(toy, (*rules, head))  # type: ignore[assignment]
    loaded = load_parameters(altered, InMemoryFormat(stored(toy)), torch.float32, "cpu")
    assert torch.equal(loaded.tensors["head"], loaded.tensors["embed"])


def test_every_rule_must_be_asked_for_and_nothing_else(toy: ModelArch) -> None:
    loaded = load_parameters(toy, InMemoryFormat(stored(toy)), torch.float32, "cpu")
    assert loaded.param("embed") is loaded.tensors["embed"]
    with pytest.raises(PluginError, match="asks for parameter nope, for which it has no rule"):
        loaded.param("nope")
    loaded.param("conv")
    with pytest.raises(PluginError, match="built without 2 of its rules: decay, gate_up"):
        loaded.check_all_used()
    loaded.param("decay")
    loaded.param("gate_up")
    loaded.check_all_used()


def experts_of(source_shape: tuple[int, ...], num_groups: int | None = 3) -> ParamRule:
    """Three matrices [2, 6] from one tensor, the second half of each in a part of its own."""
    parts = tuple(
        ParamPart(component=f"{i}", rows=1, source="model.experts", source_shape=source_shape, source_row=i)
        for i in range(6)
    )
    return ParamRule(name="experts", shape=(6, 6), parts=parts, num_groups=num_groups)


def with_experts(toy: ModelArch, rule: ParamRule) -> ModelArch:
    return Altered(toy, (*toy.param_rules(()), rule))  # type: ignore[return-value]


@pytest.mark.parametrize("shape", [(3, 2, 6), (6, 6), (1, 3, 2, 6)])
def test_leading_dimensions_of_a_source_count_as_rows(
    toy: ModelArch, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    tensors = {**stored(toy, torch.float32), "model.experts": torch.randn(shape)}
    save_file(tensors, tmp_path / "model.safetensors")
    for fmt in (InMemoryFormat(tensors), SafetensorsFormat(tmp_path)):
        loaded = load_parameters(with_experts(toy, experts_of(shape)), fmt, torch.float32, "cpu")
        assert torch.equal(loaded.tensors["experts"], tensors["model.experts"].reshape(6, 6))


@pytest.mark.parametrize("shape", [(2, 2, 6), (3, 2, 7), (36,)])
def test_a_source_that_has_other_rows_than_its_parts_take_is_the_plugins_fault(
    toy: ModelArch, shape: tuple[int, ...]
) -> None:
    with pytest.raises(PluginError, match="rule experts: component"):
        estimate_parameter_bytes(with_experts(toy, experts_of(shape)), (), torch.float32)


@pytest.mark.parametrize("num_groups", [0, 4, -1])
def test_groups_must_divide_the_rows(toy: ModelArch, num_groups: int) -> None:
    with pytest.raises(PluginError, match=f"is not {num_groups} equal matrices"):
        estimate_parameter_bytes(with_experts(toy, experts_of((3, 2, 6), num_groups)), (), torch.float32)


def test_groups_are_asked_for_by_their_own_name(toy: ModelArch) -> None:
    tensors = {**stored(toy, torch.float32), "model.experts": torch.randn(3, 2, 6)}
    rule = experts_of((3, 2, 6))
    loaded = load_parameters(with_experts(toy, rule), InMemoryFormat(tensors), torch.float32, "cpu")
    with pytest.raises(PluginError, match="parameter experts has groups"):
        loaded.hand_over("experts")
    with pytest.raises(PluginError, match="no num_groups"):
        loaded.hand_over_groups("gate_up")
    tensor, is_shared, num_groups = loaded.hand_over_groups("experts")
    assert (tensor.shape, is_shared, num_groups) == ((6, 6), False, 3)
    assert "experts" not in loaded.tensors
    assert "gate_up" in loaded.tensors


def test_draws_have_the_distribution_asked_for() -> None:
    normal = draw_tensor({"kind": "normal", "std": 0.25}, (200, 200), 1, "n")
    assert abs(normal.std().item() - 0.25) < 0.005
    assert abs(normal.mean().item()) < 0.005
    decay = draw_tensor({"kind": "log_uniform", "low": 1.0, "high": 16.0}, (40_000,), 1, "d").exp()
    assert 1.0 <= decay.min().item() < 1.01
    assert 15.99 < decay.max().item() <= 16.001
    assert abs(decay.mean().item() - 8.5) < 0.1
    assert draw_tensor({"kind": "zeros"}, (3,), 1, "z").tolist() == [0, 0, 0]
    assert draw_tensor({"kind": "ones"}, (3,), 1, "o").tolist() == [1, 1, 1]


def test_a_draw_depends_on_seed_and_name_only() -> None:
    init: dict[str, float | str] = {"kind": "normal", "std": 1.0}
    one = draw_tensor(init, (50,), 3, "a")
    torch.manual_seed(99)
    assert torch.equal(one, draw_tensor(init, (50,), 3, "a"))
    assert not torch.equal(one, draw_tensor(init, (50,), 4, "a"))
    assert not torch.equal(one, draw_tensor(init, (50,), 3, "b"))


@pytest.mark.parametrize(
    "init",
    [
        {"kind": "cauchy"},
        {},
        {"kind": "normal"},
        {"kind": "normal", "std": -1.0},
        {"kind": "normal", "std": "wide"},
        {"kind": "log_uniform", "low": 0.0, "high": 1.0},
        {"kind": "log_uniform", "low": 2.0, "high": 1.0},
    ],
)
def test_an_unusable_draw_is_the_plugins_fault(init: Mapping[str, float | str]) -> None:
    with pytest.raises(PluginError, match="unknown random draw for x"):
        draw_tensor(init, (2,), 0, "x")
