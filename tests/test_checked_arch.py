"""Whatever an arch does wrong before the first step stops the start with its name, distribution and cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtcore.checked_arch import CheckedArch
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import CheckpointError, EngineError, PluginError
from vtcore.interfaces.model_arch import ModelDims, ParamPart, ParamRule
from vtcore.loader import load_core
from vtcore.testing.schedules import toy_registry
from vtcore.testing.toy_arch import ToyArch, ToyModel

REGISTRY = toy_registry()
OWNER = str(REGISTRY.archs["toy"])
CONFIG = {"model_type": "toy"}


def raises(error: BaseException) -> Callable[..., Any]:
    def answer(*args: object, **kwargs: object) -> Any:
        raise error

    return answer


def load(tensors: dict[str, torch.Tensor] | None = None) -> None:
    load_core(
        UserOptions(dtype="float64", num_blocks=4),
        hf_config=CONFIG,
        tensors=tensors or {},
        registry=REGISTRY,
        environment=Environment(),
    ).close()


def test_the_toy_itself_loads() -> None:
    load()


def broken_cache_specs(self: ToyArch, ctx: object) -> Any:
    yield from ()
    raise RuntimeError("lost the thread")


FAULTS: dict[str, tuple[Any, str]] = {
    "dims": (property(raises(KeyError("hidden_size"))), "dims failed: KeyError: 'hidden_size'"),
    "default_token_budget": (raises(ZeroDivisionError("no")), "default_token_budget(8) failed: ZeroDivis"),
    "cache_specs": (broken_cache_specs, "cache_specs() failed: RuntimeError: lost the thread"),
    "param_rules": (raises(IndexError("list index")), "param_rules() failed: IndexError: list index"),
    "is_skipped": (raises(TypeError("no text")), "is_skipped('unknown') failed: TypeError: no text"),
    "ops": (raises(SystemExit(3)), "ops() failed: SystemExit: 3"),
    "build": (raises(AttributeError("no head")), "build() failed: AttributeError: no head"),
    "validate_layers": (raises(OSError("no")), "validate_layers() failed: OSError: no"),
}


@pytest.mark.parametrize("member", FAULTS)
def test_a_member_that_raises_is_named_with_its_plugin(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, said = FAULTS[member]
    monkeypatch.setattr(ToyArch, member, fault)
    with pytest.raises(PluginError) as caught:
        load({"unknown": torch.zeros(1)} if member == "is_skipped" else None)
    assert str(caught.value).startswith(f"arch {OWNER}: {said}")
    assert caught.value.__cause__ is not None


RULE = ParamRule(name="w", shape=(2, 2), parts=(ParamPart(component="w", rows=2, source="w"),))
MISTYPED: dict[str, tuple[str, Any, str]] = {
    "dims_of_no_class": ("dims", property(lambda self: {}), "dims is {}, not of vtcore.interfaces"),
    "no_layers": (
        "dims",
        property(
            lambda self: ModelDims(vocab_size=4, hidden_size=1, num_layers=0, max_position_embeddings=8)
        ),
        "dims.num_layers is 0, not an integer of at least 1",
    ),
    "half_a_budget": ("default_token_budget", lambda *args: 0.5, "default_token_budget(8) is 0.5, not an"),
    "no_spec": ("cache_specs", lambda *args: ("kv",), "cache_specs()[0] is 'kv', not of vtcore.interfaces"),
    "no_specs": ("cache_specs", lambda *args: None, "cache_specs() failed: TypeError"),
    "no_rule": ("param_rules", lambda *args: (RULE, "w"), "param_rules()[1] is 'w', not of vtcore"),
    "a_shape_of_lists": (
        "param_rules",
        lambda *args: (ParamRule(name="w", shape=[2], parts=RULE.parts),),  # type: ignore[arg-type]
        "param_rules()[0] (w) has shape [2], not a tuple of integers",
    ),
    "two_rules_of_one_name": ("param_rules", lambda *args: (RULE, RULE), "the architecture has two rules"),
    "ops_without_forms": ("ops", lambda self: {"f": "math:sqrt"}, "ops() is {'f': 'math:sqrt'}, not a mapp"),
    "an_op_of_nowhere": ("ops", lambda self: {"f": {"naive": "nowhere:f"}}, "op 'f': 'nowhere:f' cannot be"),
    "no_model": ("build", lambda *args: None, "build() returned NoneType, without bind, forward, logits, em"),
    "rules_of_no_class": ("message_rules", None, "message_rules is None, not of vtcore.interfaces.chat"),
}


@pytest.mark.parametrize("name", MISTYPED)
def test_an_answer_of_a_wrong_type_is_named_with_its_plugin(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, answer, said = MISTYPED[name]
    monkeypatch.setattr(ToyArch, member, answer)
    with pytest.raises(PluginError) as caught:
        load()
    assert str(caught.value).startswith(f"arch {OWNER}: {said}")


def test_a_transform_that_fails_names_rule_source_and_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    part = ParamPart(
        component="w", rows=2, source="w", transform=raises(ValueError("odd")), source_shape=(2, 2)
    )
    rule = ParamRule(name="layer.w", shape=(2, 2), parts=(part,))
    monkeypatch.setattr(ToyArch, "param_rules", lambda *args: (rule,))
    with pytest.raises(PluginError) as caught:
        load({"w": torch.zeros(2, 2)})
    assert str(caught.value) == f"arch {OWNER}: rule layer.w: the transform of w failed: ValueError: odd"


def test_a_model_that_fails_to_take_its_caches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyModel, "bind", raises(KeyError("window")))
    with pytest.raises(EngineError) as caught:
        load()
    assert str(caught.value).startswith(f"arch {OWNER}: bind() failed: KeyError: 'window'")


@pytest.mark.parametrize(
    "error", [CheckpointError("refused on purpose"), MemoryError(), torch.OutOfMemoryError("full")]
)
def test_what_is_no_fault_of_the_plugin_passes(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyArch, "build", raises(error))
    with pytest.raises(type(error)) as caught:
        load()
    assert caught.value is error


def test_layers_outside_the_model_stay_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"aux layer 1 is outside -1\.\.0"):
        CheckedArch(ToyArch(CONFIG), OWNER).validate_layers((1,))


def test_draws_and_skips_are_the_archs_own() -> None:
    arch = CheckedArch(ToyArch(CONFIG), OWNER)
    assert arch.random_init(RULE) == {"kind": "normal", "std": 0.02}
    assert arch.is_skipped("w") is False
