"""The lifetime order: built by number, closed in exact reverse, also when any step raises."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import vtcore.loader
from vtcore.checkpoint.format import InMemoryFormat
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, EngineCore
from vtcore.errors import EngineError, ModelNotFoundError
from vtcore.execution.executor import InlineExecutor
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.lifetime import Lifetime, LifetimeEvent
from vtcore.loader import LoadedCore, load_core, plan_core
from vtcore.testing.invariants import check_idle
from vtcore.testing.late_executor import LateExecutor
from vtcore.testing.schedules import toy_registry

REGISTRY = toy_registry()
NUMBERS = [1, 2, 3, 4, 6, 7, 8, 10, 11, 13, 15]
"""Steps of a CPU, by their numbers in docs/architecture.md; 14 is a GPU's; 5, 9 and 12 have no part yet."""


class Recorder:
    """Keeps events, and raises at one of them."""

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        self.at = at
        self.events: list[tuple[str, int]] = []
        self.names: dict[int, set[str]] = {}

    def __call__(self, event: LifetimeEvent) -> None:
        self.events.append((event.kind, event.number))
        self.names.setdefault(event.number, set()).add(event.name)
        if self.at == (event.kind, event.number):
            raise Boom(self.at)

    def of(self, kind: str) -> list[int]:
        return [number for found, number in self.events if found == kind]


class Boom(Exception):
    """Raised on purpose."""


def load(on_event: Callable[[LifetimeEvent], None] | None = None, **internals: Any) -> LoadedCore:
    return load_core(
        UserOptions(dtype="float64", block_size=4, num_blocks=8, max_num_seqs=2),
        hf_config={"model_type": "toy", "vocab_size": 8},
        tensors={},
        registry=REGISTRY,
        environment=Environment(),
        internals=Internals(**internals),
        on_event=on_event,
    )


def request(name: str = "r", max_tokens: int = 6) -> EngineRequest:
    return EngineRequest(
        id=name, prompt_token_ids=(1, 2, 3), params=RowParams(temperature=0.0), max_tokens=max_tokens
    )


def test_steps_are_built_in_ascending_numbers_and_closed_in_reverse() -> None:
    record = Recorder()
    loaded = load(record)
    assert record.events == [(kind, number) for number in NUMBERS for kind in ("begin", "built")]
    assert all(len(names) == 1 for names in record.names.values())
    before = len(record.events)
    loaded.close()
    assert record.events[before:] == [("closed", number) for number in reversed(NUMBERS)]


def test_closing_twice_closes_once() -> None:
    record = Recorder()
    loaded = load(record)
    loaded.close()
    count = len(record.events)
    loaded.close()
    assert len(record.events) == count


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", ["begin", "built"])
def test_when_a_step_raises_what_was_built_is_closed_in_reverse(kind: str, number: int) -> None:
    record = Recorder((kind, number))
    with pytest.raises(Boom):
        load(record)
    last = NUMBERS.index(number) + (kind == "built")
    built = NUMBERS[:last]
    assert record.of("built") == built
    assert record.of("closed") == built[::-1]
    assert record.of("begin") == NUMBERS[: NUMBERS.index(number) + 1]
    # Nothing is closed before the failure, nothing is built after it.
    assert [kind for kind, _ in record.events[-len(built) :]] == ["closed"] * len(built) or not built


def broken(*args: object, **kwargs: object) -> Any:
    raise Boom


PARTS_OF_STEPS: dict[int, tuple[str, str]] = {
    4: ("resolve_for_arch", ""),
    6: ("collect_cache_specs", ""),
    7: ("InMemoryFormat", "__init__"),
    8: ("load_parameters", ""),
    11: ("allocate_caches", ""),
    13: ("ModelRunner", "__init__"),
    15: ("_build_core", ""),
}


@pytest.mark.parametrize("number", PARTS_OF_STEPS)
def test_when_a_steps_own_work_raises_what_was_built_is_closed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, method = PARTS_OF_STEPS[number]
    if method:
        monkeypatch.setattr(getattr(vtcore.loader, name), method, broken)
    else:
        monkeypatch.setattr(vtcore.loader, name, broken)
    record = Recorder()
    with pytest.raises(Boom):
        load(record)
    built = NUMBERS[: NUMBERS.index(number)]
    assert record.of("built") == built
    assert record.of("closed") == built[::-1]


@pytest.mark.parametrize("number", [11, 13, 15])
def test_a_failed_build_leaves_no_cache_and_no_model_behind(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs: list[weakref.ref[Any]] = []
    allocate = allocate_caches

    def spy(*args: Any) -> Any:
        caches = allocate(*args)
        refs.extend(weakref.ref(t) for c in caches.layers.values() for t in c.tensors.values())
        return caches

    build = vtcore.loader.build_model

    def spy_model(*args: Any) -> Any:
        built = build(*args)
        refs.append(weakref.ref(built.model))
        return built

    monkeypatch.setattr(vtcore.loader, "allocate_caches", spy)
    monkeypatch.setattr(vtcore.loader, "build_model", spy_model)
    with pytest.raises(Boom):
        load(Recorder(("built", number)))
    gc.collect()
    assert len(refs) == 3
    assert all(ref() is None for ref in refs)


def test_the_checkpoint_is_let_go_of_after_the_weights_and_again_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, closed = Recorder(), []
    monkeypatch.setattr(InMemoryFormat, "close", lambda self: closed.append(record.of("closed")))
    loaded = load(record)
    assert closed == [[]]
    loaded.close()
    loaded.close()
    assert closed == [[], [number for number in reversed(NUMBERS) if number > 7]]


def test_a_checkpoint_that_is_not_there_stops_the_second_step(tmp_path: Path) -> None:
    record = Recorder()
    options = UserOptions(model=str(tmp_path / "absent"))
    with pytest.raises(ModelNotFoundError, match="absent"):
        load_core(options, registry=REGISTRY, environment=Environment(), on_event=record)
    assert record.of("begin") == [1, 2]
    assert record.of("closed") == [1]


def test_a_plan_is_the_first_seven_steps_of_the_same_build(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "toy", "vocab_size": 8}')
    options = UserOptions(
        model=str(tmp_path),
        dtype="float64",
        block_size=4,
        num_blocks=8,
        max_num_seqs=2,
    )
    planned = plan_core(options, registry=REGISTRY, environment=Environment())
    loaded = load()
    assert planned.plan == loaded.plan
    named = {"model.model": None, "frontend.served_model_name": None}
    assert planned.config.values() | named == loaded.config.values() | named
    loaded.close()


def run_until_in_flight(loaded: LoadedCore, frames: int) -> None:
    for index in range(2):
        loaded.core.inbox.append(AddRequest(request(f"r{index}")))
    while len(loaded.core.frames) < frames:
        loaded.core.step()


@pytest.mark.parametrize("seed", range(5))
def test_closing_with_frames_in_flight_commits_them_first(seed: int) -> None:
    executors: list[LateExecutor] = []

    def late(runner: ModelRunner) -> LateExecutor:
        executors.append(LateExecutor(runner, Random(seed)))
        return executors[0]

    loaded = load(depth=2, make_executor=late)
    run_until_in_flight(loaded, 1)
    core = loaded.core
    launched = core.scheduler.counters.steps
    core.inbox.append(AddRequest(request("late")))
    loaded.close()
    assert not core.frames
    assert not core.inbox, "what waits is not admitted any more"
    assert core.counters.commits == launched
    assert len(executors[0].polled) == launched
    assert not executors[0]._queue


def test_the_device_is_quiet_before_the_first_part_is_closed() -> None:
    frames: list[int] = []
    loaded: LoadedCore | None = None

    def note(event: LifetimeEvent) -> None:
        if event.kind == "closed" and loaded is not None:
            frames.append(len(loaded.core.frames))

    loaded = load(note, depth=2)
    run_until_in_flight(loaded, 1)
    loaded.close()
    assert frames == [0] * len(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_part_that_fails_to_close_does_not_keep_the_others_open(number: int) -> None:
    record = Recorder(("closed", number))
    loaded = load(record)
    with pytest.raises(Boom):
        loaded.close()
    assert record.of("closed") == NUMBERS[::-1]


def test_a_step_that_fails_to_drain_still_closes_the_executor_and_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Closes(InlineExecutor):
        def close(self) -> None:
            closed.append("executor")
            super().close()

    record = Recorder()
    loaded = load(record, make_executor=Closes)
    monkeypatch.setattr(EngineCore, "drain", broken)
    with pytest.raises(Boom):
        loaded.close()
    assert closed == ["executor"]
    assert record.of("closed") == NUMBERS[::-1]


def test_every_entry_is_undone_though_two_of_them_fail() -> None:
    closed = []

    def closer(number: int, fails: bool) -> Callable[[], None]:
        def close() -> None:
            closed.append(number)
            if fails:
                raise EngineError(f"number {number}")

        return close

    lifetime = Lifetime()
    for number in (1, 2, 3, 4):
        with lifetime.step(number, "part", closer(number, number in (2, 4))):
            pass
    with pytest.raises(ExceptionGroup, match="failed to close") as caught:
        lifetime.close()
    assert closed == [4, 3, 2, 1]
    assert [str(error) for error in caught.value.exceptions] == ["number 4", "number 2"]


def test_a_step_that_raises_in_its_body_is_not_closed() -> None:
    record, closed = Recorder(), []
    lifetime = Lifetime(record)
    with lifetime.step(1, "one", lambda: closed.append(1)):
        pass
    with pytest.raises(Boom), lifetime.step(2, "two", lambda: closed.append(2)):
        raise Boom
    lifetime.close()
    assert closed == [1]
    assert record.events == [("begin", 1), ("built", 1), ("begin", 2), ("closed", 1)]


def test_an_engine_that_ran_to_its_end_holds_nothing_at_close() -> None:
    loaded = load()
    loaded.core.inbox.append(AddRequest(request()))
    while loaded.core.has_work:
        loaded.core.step()
    check_idle(loaded.core)
    loaded.close()


def test_numbers_and_names_are_those_of_the_documented_order() -> None:
    text = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (?:`(\w+)`)? ?\|", text[text.index("## Lifetime") :], re.MULTILINE)
    documented = {int(number): {name} for number, name in rows if name}
    record = Recorder()
    load(record).close()
    assert documented.pop(14) == {"warmup"}, "a CPU has no such step"
    assert record.names == documented
