"""A cache spec whose data are wrong stops the start, with its kind, distribution, member and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, EngineCore
from vtcore.errors import ConfigError, EngineError, PluginError
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.kv_cache_spec import TensorSpec, Window
from vtcore.internals import Internals
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.loader import LoadedCore, load_core
from vtcore.testing.schedules import toy_registry
from vtcore.testing.toy_arch import ToyState, ToyWindow
from vtcore.testing.toy_drafters import JunkDrafter

REGISTRY = toy_registry()


def raises(error: BaseException) -> Callable[..., Any]:
    def answer(*args: object) -> Any:
        raise error

    return answer


def load(parts: tuple[str, ...] = ("window", "state"), **options: Any) -> LoadedCore:
    return load_core(
        UserOptions(
            **{"dtype": "float64", "block_size": 4, "max_model_len": 64, "max_num_seqs": 1, **options}
        ),
        hf_config={"model_type": "toy", "parts": parts, "window": 6},
        tensors={},
        registry=REGISTRY,
        environment=Environment(),
        internals=Internals(drafter=JunkDrafter(), captured_k=(0, 1), step_budget=4),
    )


def test_the_toys_specs_are_sound() -> None:
    load().close()


def tensors(shape: Any, dtype: Any) -> Callable[..., Mapping[str, TensorSpec]]:
    return lambda self, k_max: {"hash": TensorSpec(shape, dtype)}


BAD: dict[str, tuple[type, str, Any, str]] = {
    "lifetime_raises": (
        ToyState,
        "lifetime",
        property(raises(KeyError("w"))),
        "lifetime failed: KeyError: 'w'",
    ),
    "lifetime_is_a_text": (
        ToyState,
        "lifetime",
        property(lambda self: "slot"),
        "lifetime is 'slot', not a Wh",
    ),
    "window_of_nothing": (
        ToyWindow,
        "lifetime",
        property(lambda self: Window(0)),
        "lifetime.tokens is 0, not",
    ),
    "rollback_raises": (
        ToyState,
        "rollback",
        property(raises(OSError("no"))),
        "rollback failed: OSError: no",
    ),
    "rollback_is_a_text": (
        ToyState,
        "rollback",
        property(lambda self: "slots"),
        "rollback is 'slots', not a f",
    ),
    "rollback_by_magic": (
        ToyState,
        "rollback",
        property(lambda self: frozenset({"magic"})),
        "rollback is frozenset({'magic'}), not a frozenset out of overwrite, replay, slots",
    ),
    "chunk_raises": (
        ToyState,
        "state_chunk",
        property(raises(ValueError("c"))),
        "state_chunk failed: ValueError",
    ),
    "chunk_of_nothing": (
        ToyState,
        "state_chunk",
        property(lambda self: 0),
        "state_chunk is 0, not an integer",
    ),
    "tensors_raise": (ToyState, "tensors", raises(IndexError("i")), "tensors(1) failed: IndexError: i"),
    "tensors_are_none": (
        ToyState,
        "tensors",
        lambda *args: {},
        "tensors(1) is {}, not a mapping of names to",
    ),
    "half_an_extent": (
        ToyState,
        "tensors",
        tensors((0.5,), "int64"),
        "tensors(1)['hash'] is TensorSpec(shape=(0",
    ),
    "a_strange_dtype": (
        ToyState,
        "tensors",
        tensors((1,), "int3"),
        "tensors(1)['hash'] is TensorSpec(shape=(1",
    ),
    "bytes_beside_the_sum": (
        ToyState,
        "unit_bytes",
        lambda *args: 7,
        "unit_bytes(1) is 7, not 8, the sum over",
    ),
    "max_units_raises": (
        ToyWindow,
        "max_units",
        raises(RuntimeError("r")),
        "max_units(64, 4, 0) failed: Runtime",
    ),
    "max_units_is_a_float": (
        ToyWindow,
        "max_units",
        lambda *args: 2.5,
        "max_units(64, 4, 0) is 2.5, not an int",
    ),
    "no_unit_at_all": (ToyState, "max_units", lambda *args: 0, "max_units(64, 4, 0) is 0, not an integer of"),
    "window_bytes_raise": (
        ToyState,
        "window_bytes",
        raises(SystemExit(2)),
        "window_bytes(1) failed: SystemExit",
    ),
    "bytes_below_none": (
        ToyState,
        "window_bytes",
        lambda *args: -1,
        "window_bytes(1) is -1, not an integer of at",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_data_are_named_with_kind_and_distribution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_class, member, answer, said = BAD[name]
    monkeypatch.setattr(spec_class, member, answer)
    with pytest.raises(PluginError) as caught:
        load()
    owner = REGISTRY.kv_cache_specs[spec_class.kind]  # type: ignore[attr-defined]
    assert str(caught.value).startswith(f"KV-cache spec {owner}: {said}")


def test_who_plans_without_a_registry_is_told_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyState, "max_units", lambda *args: None)
    limits = PlanLimits(
        block_size=4, num_blocks=1, max_num_seqs=1, max_model_len=4, max_model_len_pinned=True, max_query=4
    )
    with pytest.raises(
        PluginError, match=r"spec toy_state \(vtcore\.testing\.toy_arch:ToyState\): max_units"
    ):
        plan_memory([ToyState(layers=("s",), block_size=4)], limits)


def run_to_the_end(core: EngineCore, prompt_len: int) -> None:
    request = EngineRequest(
        id="r",
        prompt_token_ids=tuple(range(prompt_len)),
        params=RowParams(temperature=0.0),
        max_tokens=24,
    )
    core.inbox.append(AddRequest(request))
    while core.has_work:
        core.step()


@pytest.mark.parametrize(
    ("units", "prompt_len", "live"),
    # A chunk of 4 beside 5 older positions takes up to 3 blocks; one token beside them up to 2.
    [(2, 16, 3), (1, 2, 2)],
    ids=["in_a_prompt", "while_decoding"],
)
def test_too_few_units_are_laid_to_the_spec_that_promised_them(
    units: int, prompt_len: int, live: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyWindow, "max_units", lambda *args: units)
    loaded = load()
    owner = REGISTRY.kv_cache_specs["toy_window"]
    said = f"KV-cache spec {owner}: max_units is too small: a request needs {live} live blocks"
    with pytest.raises(EngineError) as caught:
        run_to_the_end(loaded.core, prompt_len)
    assert str(caught.value).startswith(said)
    loaded.close()


@pytest.mark.parametrize("parts", [("window",), ("state",), ("window", "state")])
def test_a_number_of_blocks_is_refused_where_every_cache_is_bounded(parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(parts, num_blocks=4)
    assert str(caught.value) == (
        "$.num_blocks: 4 would have no effect, for every cache of the arch is bounded (windows, slots); "
        "leave it out, or lower max_num_seqs"
    )
    loaded = load(parts)
    assert (loaded.config.cache.num_blocks, loaded.plan.num_blocks) == (0, 0)
    run_to_the_end(loaded.core, 16)
    loaded.close()
    load(("whole", *parts), num_blocks=16).close()
