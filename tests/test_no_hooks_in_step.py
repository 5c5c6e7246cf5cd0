"""Plugins are asked while the registry is built and never again: no pluggy runs while tokens are made."""

from __future__ import annotations

import inspect
from typing import Any

import pluggy
import pytest

from vtcore import hookspecs
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.loader import LoadedCore, load_core
from vtcore.plugins import build_registry
from vtcore.testing import toy_plugin
from vtcore.testing.schedules import toy_registry

CLASSES = (pluggy.PluginManager, pluggy.HookCaller, pluggy.HookRelay, pluggy.HookImpl)


def forbid_pluggy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on every function of pluggy's classes raises; returns the names of those that were entered."""
    entered: list[str] = []

    def trap(name: str) -> Any:
        def enter(*args: object, **kwargs: object) -> None:
            entered.append(name)
            raise AssertionError(f"{name} was entered")

        return enter

    for cls in CLASSES:
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value):
                monkeypatch.setattr(cls, name, trap(f"{cls.__name__}.{name}"))
    monkeypatch.setattr("pluggy._callers._multicall", trap("_multicall"))
    return entered


def load() -> LoadedCore:
    return load_core(
        UserOptions(dtype="float64", block_size=4, num_blocks=6, max_num_seqs=3),
        hf_config={"model_type": "toy", "vocab_size": 8, "parts": ("whole", "window", "state")},
        tensors={},
        registry=toy_registry(),
        environment=Environment(),
    )


def test_no_pluggy_function_is_entered_from_the_first_request_to_close() -> None:
    loaded = load()
    requests = [
        EngineRequest(
            id=f"r{index}",
            prompt_token_ids=(1, 2, 3),
            params=RowParams(seed=index),
            max_tokens=12,
            arrival_s=float(index),
        )
        for index in range(5)
    ]
    tokens = 0
    # pytest itself runs on pluggy, so the trap is open only here, and nothing is asserted inside.
    with pytest.MonkeyPatch.context() as patch:
        entered = forbid_pluggy(patch)
        loaded.core.inbox.extend(AddRequest(request) for request in requests)
        while loaded.core.has_work:
            tokens += sum(len(update.tokens) for update in loaded.core.step())
        preemptions = loaded.core.scheduler.counters.preemptions
        loaded.close()
    assert tokens == 60
    assert preemptions > 0
    assert entered == []


def test_the_trap_catches_a_hook_that_is_called() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(toy_plugin)
    caught: list[Exception] = []
    calls = (
        lambda: manager.hook.vtcore_register_archs(),
        lambda: build_registry(extra=(toy_plugin,), entry_points=False),
    )
    with pytest.MonkeyPatch.context() as patch:
        entered = forbid_pluggy(patch)
        for call in calls:
            try:
                call()
            except AssertionError as error:
                caught.append(error)
    assert len(caught) == len(entered) == len(calls)
