"""A cache spec that misbehaves while requests run costs itself its say, and nobody an output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import vtcore.kv_cache.request_memory
from vtcore.interfaces.batch import RowParams
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.kv_cache.spec_guard import SpecGuard
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule, toy_registry
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow

REGISTRY = toy_registry()
BLOCKS = ToyBlocks(layers=("whole",), block_size=4)
WINDOW = ToyWindow(layers=("window",), block_size=4, window=6)


def raises(error: BaseException) -> Callable[..., Any]:
    def answer(*args: object) -> Any:
        raise error

    return answer


def late_error(*args: object) -> Iterator[int]:
    yield 2
    raise RuntimeError("lost the thread")


BAD: dict[str, dict[str, Callable[..., Any]]] = {
    "hit": {
        "raises": raises(RuntimeError("no idea")),
        "exits": raises(SystemExit(3)),
        "none": lambda *args: None,
        "a_float": lambda *args: 1.0,
        "a_bool": lambda *args: True,
        "negative": lambda *args: -1,
        "beyond_the_limit": lambda self, present, limit: limit + 1,
        "looks_too_far": lambda self, present, limit: int(present(10**6)),
    },
    "needed": {
        "raises": raises(RuntimeError("no idea")),
        "exits": raises(SystemExit(3)),
        "a_list": lambda *args: [0, 1],
        "negative": lambda *args: range(-1, 4),
        "beyond_the_end": lambda self, n: range(-(-n // 4) + 1, n + 9),
    },
    "cuts": {
        "raises": raises(RuntimeError("no idea")),
        "raises_late": late_error,
        "no_sequence": lambda *args: 3,
        "floats": lambda *args: (1.5,),
        "at_the_start": lambda self, start, end, grid: (start,),
        "at_the_end": lambda self, start, end, grid: (end,),
    },
}
CASES = [(question, fault) for question, faults in BAD.items() for fault in faults]


def ask(guard: SpecGuard, spec: KVCacheSpec, question: str) -> object:
    if question == "hit":
        hashes = [b"a", b"b"]
        return guard.hit(spec, lambda block: hashes[block] in hashes, 2)
    if question == "needed":
        return guard.first_needed(spec, 17)
    return tuple(guard.cuts(spec, 4, 20, 4))


@pytest.mark.parametrize(("question", "fault"), CASES)
def test_a_bad_answer_is_replaced_and_counted_and_logged_once(
    question: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ToyBlocks, question, BAD[question][fault])
    guard = SpecGuard()
    with caplog.at_level(logging.WARNING):
        answers = [ask(guard, BLOCKS, question) for _ in range(3)]
    assert answers == [() if question == "cuts" else 0] * 3
    assert guard.breaches == 3
    [record] = caplog.records
    assert record.getMessage().startswith(f"KV-cache spec toy_blocks: {question}: ")


def test_each_question_of_each_spec_has_its_own_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard = SpecGuard()
    for question in BAD:
        monkeypatch.setattr(ToyBlocks, question, raises(ValueError("bad")))
        monkeypatch.setattr(ToyWindow, question, raises(ValueError("bad")))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for spec in (BLOCKS, WINDOW):
                for question in BAD:
                    ask(guard, spec, question)
    assert guard.breaches == 12
    assert len(caplog.records) == 6


def test_good_answers_pass() -> None:
    guard = SpecGuard()
    assert guard.hit(BLOCKS, lambda block: block < 3, 5) == 3
    assert guard.first_needed(WINDOW, 17) == 3
    assert tuple(guard.cuts(BLOCKS, 0, 9, 4)) == ()
    assert guard.breaches == 0


@pytest.mark.parametrize("committed", range(1, 40))
def test_without_an_answer_a_window_still_frees_what_its_lifetime_says(
    committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = SpecGuard()
    right = guard.first_needed(WINDOW, committed)
    monkeypatch.setattr(ToyWindow, "needed", raises(ValueError("bad")))
    assert guard.first_needed(WINDOW, committed) == right
    assert guard.breaches == 1


def test_ctrl_c_is_no_bad_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyBlocks, "hit", raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ask(SpecGuard(), BLOCKS, "hit")


CASE = ScheduleCase(
    requests=tuple(
        CaseRequest(
            prompt=(*(j * j % 12 for j in range(22)), index),
            max_tokens=9,
            arrival=4 * index,
            params=RowParams(temperature=0.9, seed=index),
        )
        for index in range(3)
    ),
    parts=("whole", "window", "state"),
    depth=2,
    budget=10,
    window=6,
    prefix_caching=True,
    num_state_checkpoints=12,
    num_blocks=40,
    max_num_seqs=2,
)


@pytest.mark.parametrize("fault", ["raises", "wrong"])
@pytest.mark.parametrize("question", BAD)
def test_the_engine_goes_on_and_every_output_is_right(
    question: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guards: list[SpecGuard] = []

    class Recorded(SpecGuard):
        def __init__(self) -> None:
            super().__init__()
            guards.append(self)

    monkeypatch.setattr(vtcore.kv_cache.request_memory, "SpecGuard", Recorded)
    answer = BAD[question]["raises"] if fault == "raises" else list(BAD[question].values())[-1]
    for spec in (ToyBlocks, ToyWindow, ToyState):
        monkeypatch.setattr(spec, question, answer)
    with caplog.at_level(logging.WARNING):
        counters = run_schedule(CASE, REGISTRY).counters
    assert counters["finished_length"] == len(CASE.requests)
    [guard] = guards
    assert guard.breaches > 1
    messages = [record.getMessage() for record in caplog.records if question in record.getMessage()]
    assert messages
    assert len(messages) == len({message.split(": ")[0] for message in messages}) <= 3
    if question == "hit":
        assert counters["hits"] == 0


def test_the_same_run_with_good_specs_hits() -> None:
    assert run_schedule(CASE, REGISTRY).counters["hits"] > 0


def test_a_window_whose_rule_fails_still_fits_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is sized for windows, so whole sequences would find no block."""
    monkeypatch.setattr(ToyWindow, "needed", raises(ValueError("bad")))
    prompt = tuple(i * i % 12 for i in range(60))
    case = ScheduleCase(
        requests=(CaseRequest(prompt=prompt), CaseRequest(prompt=prompt[1:])),
        parts=("window",),
        budget=4,
        max_num_seqs=2,
    )
    assert run_schedule(case, REGISTRY).counters["finished_length"] == 2
