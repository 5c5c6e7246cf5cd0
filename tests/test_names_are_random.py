"""The core knows no name: an arch, its KV kinds and a policy under random names give the same outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from random import Random
from types import ModuleType
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.errors import UnsupportedArchError, VtcoreError
from vtcore.hookspecs import hookimpl
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import CacheContext
from vtcore.interfaces.registry_entries import ArchEntry, KVCacheSpecEntry, SchedulerPolicyEntry
from vtcore.loader import load_core
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.scheduling.policies.fcfs import FcfsPolicy
from vtcore.testing.draw_case import draw_case
from vtcore.testing.schedule_case import ScheduleCase
from vtcore.testing.schedules import run_schedule, toy_registry
from vtcore.testing.toy_arch import ToyArch, ToyBlocks, ToyState, ToyWindow

PARTS = ("whole", "window", "state")


def random_name() -> str:
    """Not from the seeded source: a name that was ever written down could be known."""
    return f"n{Random().getrandbits(64):x}"


class Named:
    """The toy under names drawn now.

    Attributes:
        model_type: What config.json calls the model.
    """

    def __init__(self, model_type: str | None = None) -> None:
        self.arch, self.policy, self.module_name = random_name(), random_name(), random_name()
        self.model_type = model_type or random_name()
        self.kinds: dict[type[KVCacheSpec], type[KVCacheSpec]] = {
            base: type(random_name(), (base,), {"kind": random_name()})
            for base in (ToyBlocks, ToyWindow, ToyState)
        }
        self.registry = self._register()

    def _register(self) -> PluginRegistry:
        kinds = self.kinds

        class Arch(ToyArch):
            def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
                found = []
                for spec in super().cache_specs(ctx):
                    fields = {"layers": spec.layers, "block_size": spec.block_size}
                    if isinstance(spec, ToyWindow):
                        fields["window"] = spec.window
                    if isinstance(spec, ToyState):
                        fields["chunk"] = spec.chunk
                    found.append(kinds[type(spec)](**fields))  # type: ignore[arg-type]
                return tuple(found)

        module = ModuleType(self.module_name)
        classes = {
            "Arch": Arch,
            "Policy": FcfsPolicy,
            **{base.__name__: kind for base, kind in kinds.items()},
        }
        # The shifted drafter brings groups of the toy's own kinds along.
        classes |= {"Plain": ToyBlocks, "PlainState": ToyState}

        def path(name: str) -> str:
            return f"{self.module_name}:{name}"

        def vtcore_register_archs() -> list[ArchEntry]:
            return [ArchEntry(name=self.arch, model_types=(self.model_type,), implementation=path("Arch"))]

        def vtcore_register_kv_cache_specs() -> list[KVCacheSpecEntry]:
            own = [
                KVCacheSpecEntry(name=kind.kind, implementation=path(base.__name__))
                for base, kind in kinds.items()
            ]
            return [
                *own,
                KVCacheSpecEntry(name=ToyBlocks.kind, implementation=path("Plain")),
                KVCacheSpecEntry(name=ToyState.kind, implementation=path("PlainState")),
            ]

        def vtcore_register_scheduler_policies() -> list[SchedulerPolicyEntry]:
            return [SchedulerPolicyEntry(name=self.policy, implementation=path("Policy"))]

        hooks = (vtcore_register_archs, vtcore_register_kv_cache_specs, vtcore_register_scheduler_policies)
        for hook in hooks:
            setattr(module, hook.__name__, hookimpl(hook))
        for name, cls in classes.items():
            setattr(module, name, cls)
        versions = {"archs": "0.1", "kv_cache_specs": "0.1", "scheduler_policies": "0.1"}
        module.VTCORE_API = versions  # type: ignore[attr-defined]
        sys.modules[self.module_name] = module
        return build_registry(extra=(module,), entry_points=False)


@pytest.fixture
def named() -> Iterator[Named]:
    names = Named()
    yield names
    del sys.modules[names.module_name]


@pytest.fixture
def named_toy() -> Iterator[Named]:
    """Everything renamed but the config's model type, which `run_schedule` writes."""
    names = Named("toy")
    yield names
    del sys.modules[names.module_name]


def generate(
    registry: PluginRegistry, config: Mapping[str, Any], policy: str | None
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    loaded = load_core(
        UserOptions(dtype="float64", block_size=4, num_blocks=6, scheduling_policy=policy, max_num_seqs=3),
        hf_config=config,
        tensors={},
        registry=registry,
        environment=Environment(),
    )
    for index in range(5):
        loaded.core.inbox.append(
            AddRequest(
                EngineRequest(
                    id=f"r{index}",
                    prompt_token_ids=tuple(range(index + 1)),
                    params=RowParams(temperature=index % 2, seed=index),
                    max_tokens=12,
                    arrival_s=float(index),
                )
            )
        )
    outputs: dict[str, tuple[int, ...]] = {}
    while loaded.core.has_work:
        for update in loaded.core.step():
            outputs[update.id] = (*outputs.get(update.id, ()), *update.tokens)
    kinds = [spec.kind for pool in loaded.plan.pools for spec in pool.specs]
    loaded.close()
    return outputs, kinds


def test_random_names_give_the_outputs_of_the_usual_ones(named: Named) -> None:
    config = {"vocab_size": 12, "parts": PARTS, "window": 5}
    usual, usual_kinds = generate(toy_registry(), {"model_type": "toy", **config}, "fcfs")
    found, kinds = generate(named.registry, {"model_type": named.model_type, **config}, named.policy)
    assert found == usual
    assert all(len(tokens) == 12 for tokens in found.values())
    assert usual_kinds == ["toy_blocks", "toy_window", "toy_state"]
    assert sorted(kinds) == sorted(kind.kind for kind in named.kinds.values())


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_runs_under_random_names(seed: int, named_toy: Named) -> None:
    usual: ScheduleCase = draw_case(Random(seed).choice)
    renamed: ScheduleCase = draw_case(Random(seed).choice, policy=named_toy.policy)
    outcome = run_schedule(renamed, named_toy.registry)
    assert outcome.outputs == run_schedule(usual, toy_registry()).outputs


def test_the_usual_names_mean_nothing_where_nobody_registers_them(named: Named) -> None:
    with pytest.raises(UnsupportedArchError, match="toy"):
        generate(named.registry, {"model_type": "toy"}, named.policy)
    with pytest.raises(VtcoreError, match=named.policy):
        generate(toy_registry(), {"model_type": "toy"}, named.policy)


def test_a_kind_that_nobody_registers_is_refused(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec's class alone is not enough: its kind must have an owner, of just that class."""
    monkeypatch.setattr(named.kinds[ToyBlocks], "kind", random_name())
    with pytest.raises(VtcoreError, match="registered by no installed plugin"):
        generate(named.registry, {"model_type": named.model_type}, named.policy)


def test_a_spec_that_wears_anothers_kind_is_refused(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named.kinds[ToyBlocks], "kind", "full_attention")
    with pytest.raises(VtcoreError, match="calls itself kind 'full_attention', which"):
        generate(named.registry, {"model_type": named.model_type}, named.policy)
