"""A step that raises costs nobody its output, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.errors import EngineError, RequestError
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.request import SamplingParams
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.schedules import toy_registry

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=9)
PROMPT = {"prompt_token_ids": [1, 2, 3]}


def engine(depth: int = 1, parts: tuple[str, ...] = ("whole", "state")) -> Engine:
    loaded = load_core(
        UserOptions(dtype="float64", block_size=4, num_blocks=32),
        hf_config={"model_type": "toy", "parts": parts},
        tensors={},
        registry=toy_registry(),
        environment=Environment(),
        internals=Internals(depth=depth, check=check_invariants),
    )
    return build_frontend(loaded)


def fails_once(function: Callable[..., Any], at: int, error: BaseException) -> Callable[..., Any]:
    """`function`, but its call number `at` raises."""
    calls = iter(range(1000))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", [0, 1, 3, 5])
@pytest.mark.parametrize("where", ["forward", "logits"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("device fault")])
def test_after_a_failed_step_every_request_ends_as_if_nothing_had_been(
    where: str, at: int, depth: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    [wanted] = engine().generate([(PROMPT, PARAMS)])
    it = engine(depth)
    model = it.loaded.model
    monkeypatch.setattr(model, where, fails_once(getattr(model, where), at, error))
    it.add_request(PROMPT, PARAMS, "one")
    finished = []
    failures: list[BaseException] = []
    while it.has_unfinished_requests:
        try:
            finished += it.step(final_only=True)
        except (KeyboardInterrupt, EngineError) as caught:
            failures.append(caught)
    [failure] = failures
    # What a model raises comes as an error that names its plugin.
    assert error in (failure, failure.__cause__)
    [found] = finished
    assert found.outputs == wanted.outputs
    it.step()
    check_idle(it.loaded.core)


def test_ctrl_c_in_generate_ends_its_requests_and_the_next_call_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = engine()
    [wanted] = it.generate([(PROMPT, PARAMS)])
    model = it.loaded.model
    with monkeypatch.context() as patch:
        patch.setattr(model, "logits", fails_once(model.logits, 2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            it.generate([(PROMPT, PARAMS), (PROMPT, PARAMS)])
    assert not it.has_unfinished_requests
    [again] = it.generate([(PROMPT, PARAMS)])
    assert again.outputs == wanted.outputs


def test_an_executor_that_cannot_be_emptied_stops_the_engine_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = engine()
    it.add_request(PROMPT, PARAMS)
    it.step()

    def fail(*args: object) -> None:
        raise RuntimeError("device fault")

    monkeypatch.setattr(it.loaded.runner, "forward", fail)
    monkeypatch.setattr(it.loaded.runner, "drop_launched", fail)
    with pytest.raises(RuntimeError, match="device fault"):
        it.step()
    with pytest.raises(EngineError, match="failed earlier"):
        it.step()


def test_books_in_any_disorder_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    [wanted] = engine().generate([(PROMPT, PARAMS)])
    it = engine()
    it.add_request(PROMPT, PARAMS)
    it.step()
    scheduler = it.loaded.core.scheduler
    scheduler.memory.pools[0].ref[5] = 1
    scheduler.running.clear()
    monkeypatch.setattr(
        it.loaded.model, "forward", fails_once(it.loaded.model.forward, 0, KeyboardInterrupt())
    )
    it.add_request(PROMPT, PARAMS)
    with pytest.raises(KeyboardInterrupt):
        it.step()
    outputs = []
    while it.has_unfinished_requests:
        outputs += it.step(final_only=True)
    assert [output.outputs for output in outputs] == [wanted.outputs] * 2


def test_generate_leaves_requests_of_others_running_and_keeps_what_they_finish() -> None:
    it = engine()
    it.add_request(PROMPT, SamplingParams(temperature=1.0, seed=3, max_tokens=2), "short")
    it.add_request(PROMPT, PARAMS, "long")
    [own] = it.generate([(PROMPT, SamplingParams(temperature=1.0, seed=3, max_tokens=5))])
    assert own.request_id == "request-2"
    finished = {}
    while it.has_unfinished_requests:
        finished.update((output.request_id, output) for output in it.step(final_only=True))
    assert list(finished) == ["short", "long"]
    assert finished["long"].outputs[0].token_ids[:5] == own.outputs[0].token_ids


def test_what_generate_finished_for_others_is_unfinished_business() -> None:
    it = engine()
    it.add_request(PROMPT, SamplingParams(temperature=0.0, max_tokens=1), "other")
    it.generate([(PROMPT, PARAMS)])
    assert it.has_unfinished_requests
    assert [output.request_id for output in it.step()] == ["other"]
    assert not it.has_unfinished_requests


def test_an_automatic_id_avoids_the_ones_in_use() -> None:
    it = engine()
    it.add_request(PROMPT, PARAMS, "request-1")
    names = {it.add_request(PROMPT, PARAMS) for _ in range(3)}
    assert len(names) == 3
    assert "request-1" not in names


def test_an_id_is_text_and_unique() -> None:
    it = engine()
    with pytest.raises(RequestError, match="no text"):
        it.add_request(PROMPT, PARAMS, 5)  # type: ignore[arg-type]
    it.add_request(PROMPT, PARAMS, "a/b")
    with pytest.raises(RequestError, match="in use"):
        it.add_request(PROMPT, PARAMS, "a/b")
    assert not it.step()[0].finished


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(RequestError, match="sampling_params is of type dict, not a SamplingParams"):
        engine().add_request(PROMPT, {"max_tokens": 2})  # type: ignore[arg-type]


def test_a_refused_request_changes_no_later_output() -> None:
    unseeded = SamplingParams(temperature=1.0, max_tokens=6)
    [wanted] = engine().generate([(PROMPT, unseeded)])
    it = engine()
    with pytest.raises(RequestError):
        it.add_request({"prompt_token_ids": []}, unseeded)
    [found] = it.generate([(PROMPT, unseeded)])
    assert found.outputs == wanted.outputs


def test_closing_lets_go_of_model_and_caches() -> None:
    import gc
    import weakref

    it = engine()
    it.generate([(PROMPT, PARAMS)])
    alive = [weakref.ref(it.loaded.model), weakref.ref(it.loaded.runner)]
    it.close()
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
