"""Ctrl-C ends the step it meets, then the call; nothing is lost and the engine goes on."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.engine.interrupts import interrupt, interrupts_deferred
from vtcore.errors import EngineError
from vtcore.loader import load_core
from vtcore.request import SamplingParams
from vtcore.testing.schedules import toy_registry

PROMPT = {"prompt_token_ids": [1, 2, 3]}
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=9)


@pytest.fixture(autouse=True)
def _python_handles_sigint() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def engine() -> Engine:
    loaded = load_core(
        UserOptions(dtype="float64", block_size=4, num_blocks=32),
        hf_config={"model_type": "toy"},
        tensors={},
        registry=toy_registry(),
        environment=Environment(),
    )
    return build_frontend(loaded)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press(times: int, reached: list[int]) -> None:
    with interrupts_deferred():
        for _ in range(times):
            press_ctrl_c()
        reached.append(times)


def test_ctrl_c_waits_for_the_end_and_a_second_one_does_not() -> None:
    reached: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        press(1, reached)
    with pytest.raises(KeyboardInterrupt):
        press(2, reached)
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupt_while_ignored(reached: list[str]) -> None:
    with interrupts_deferred(), interrupts_deferred():
        interrupt()
        press_ctrl_c()
        reached.append("end")


def test_where_sigint_is_ignored_another_signal_waits_all_the_same() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_while_ignored(reached)
    assert reached == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_handler_of_the_program_is_left_alone() -> None:
    pressed = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    with interrupts_deferred():
        press_ctrl_c()
    assert pressed == [signal.SIGINT]


def test_an_interrupted_step_keeps_its_outputs_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    [wanted] = engine().generate([(PROMPT, PARAMS)])
    it = engine()
    it.add_request(PROMPT, PARAMS)
    forward = it.loaded.model.forward

    def pressed_while_running(step: Any) -> Any:
        press_ctrl_c()
        return forward(step)

    monkeypatch.setattr(it.loaded.model, "forward", pressed_while_running)
    interrupts, outputs = 0, []
    while it.has_unfinished_requests:
        try:
            outputs += it.step()
        except KeyboardInterrupt:
            interrupts += 1
    monkeypatch.undo()
    outputs += it.step()
    assert interrupts == 9
    assert outputs[-1].outputs == wanted.outputs
    assert it.stats()["late_results"] == 0


def test_a_second_thread_in_a_step_gets_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    it = engine()
    it.add_request(PROMPT, PARAMS)
    inside, go_on = threading.Event(), threading.Event()
    forward = it.loaded.model.forward

    def waits(step: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return forward(step)

    monkeypatch.setattr(it.loaded.model, "forward", waits)
    worker = threading.Thread(target=it.step)
    worker.start()
    assert inside.wait(10)
    with pytest.raises(EngineError, match="another thread"):
        it.step()
    go_on.set()
    worker.join()
