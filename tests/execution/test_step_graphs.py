"""Sizes of captured steps, which step finds which graph, and what happens where nothing can be captured."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from vtcore import gpu_start
from vtcore.cli.make_checkpoint import make_config
from vtcore.config.engine_config import EngineConfig
from vtcore.config.options import UserOptions
from vtcore.errors import EngineError, MemoryPlanError, PluginError
from vtcore.execution.step_graphs import CapturedStep, CaptureError, StepGraphs, batch_buckets
from vtcore.execution.warm_up import largest_batches, null_batch
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.internals import Internals
from vtcore.loader import plan_core

MOST_ROWS = [*range(1, 35), 63, 64, 65, 95, 96, 97, 128, 129, 255, 256, 257, 1000, 1024]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (5, (1, 2, 4, 5)),
        (64, (1, 2, 4, 8, 16, 24, 32, 48, 64)),
        (65, (1, 2, 4, 8, 16, 24, 32, 48, 64, 65)),
        (128, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)),
    ],
)
def test_buckets_end_at_the_most_rows(most: int, expected: tuple[int, ...]) -> None:
    assert batch_buckets(most) == expected


@pytest.mark.parametrize("most", MOST_ROWS)
def test_every_number_of_rows_has_a_bucket_that_is_not_much_larger(most: int) -> None:
    buckets = batch_buckets(most)
    assert list(buckets) == sorted(set(buckets))
    assert (buckets[0], buckets[-1]) == (1, most)
    assert len(buckets) <= 10 + most // 32
    for count in range(1, most + 1):
        padded = min(size for size in buckets if size >= count)
        assert padded < 2 * count
        assert padded - count < 32


class Graph:
    """What `torch.cuda.CUDAGraph` is here: it holds nothing."""

    num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """A device that records graphs by running their bodies; 600 bytes of it are gone afterwards."""
    graphs: list[Graph] = []
    free = iter([1000, 400])
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

    @contextlib.contextmanager
    def record(graph: Graph, pool: object, stream: object) -> Iterator[None]:
        yield
        graphs.append(graph)

    fakes: dict[str, Callable[..., Any]] = {
        "empty_cache": lambda: None,
        "mem_get_info": lambda device: (next(free), 5000),
        "graph_pool_handle": object,
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": contextlib.nullcontext,
        "synchronize": lambda device: None,
        "CUDAGraph": Graph,
        "graph": record,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return graphs


class Steps:
    """What graphs are made of: it notes the sizes that are run, and fails where it is told to."""

    def __init__(self, sizes: Sequence[int], captured_k: Sequence[int], can_sample: bool = True) -> None:
        self.run: list[tuple[int, int]] = []
        self.error: tuple[int, BaseException] | None = None
        sample = self.sample if can_sample else None
        self.graphs = StepGraphs(self.prepare, self.forward, sample, sizes, captured_k, torch.device("cpu"))

    def prepare(self, rows_B: torch.Tensor, k: int) -> Any:
        self.run.append((len(rows_B), k))
        return SimpleNamespace(inputs=rows_B)

    def forward(self, inputs: Any) -> Any:
        if self.error is not None and len(self.run) >= self.error[0]:
            raise self.error[1]
        return inputs

    def sample(self, prepared: Any, output: Any, is_random: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(output),), int(is_random)), torch.ones(len(output))


def captured(*args: Any, **kwargs: Any) -> Steps:
    steps = Steps(*args, **kwargs)
    steps.graphs.capture()
    return steps


def found_rows(graphs: StepGraphs, batch: ScheduledBatch) -> int | None:
    found = graphs.find(batch)
    return None if found is None else len(found.rows_B)


def test_each_size_is_run_once_before_it_is_captured_the_largest_first(recorded: list[Graph]) -> None:
    steps = captured((1, 2, 3), (0, 2))
    assert steps.run == [(size, k) for k in (0, 2) for size in (3, 2, 1) for _ in range(2)]
    assert steps.graphs.keys == ((1, 0), (1, 2), (2, 0), (2, 2), (3, 0), (3, 2))
    assert steps.graphs.num_bytes == 600
    # The forward, and sampling of greedy and of any rows.
    assert len(recorded) == 3 * 6


def test_a_replay_takes_the_steps_rows_and_samples_as_asked(recorded: list[Graph]) -> None:
    step = captured((1, 4), (0,)).graphs.find(null_batch(3, 0))
    assert step is not None
    assert step.padded([7, 5, 6]) == [7, 5, 6, 0]
    assert step.padded([4, 5, 6, 7]) == [4, 5, 6, 7]
    prepared, output = step.replay(torch.tensor([7, 5, 6, 0]))
    assert prepared.inputs.tolist() == [7, 5, 6, 0]
    assert output is step.output
    for is_random in (False, True):
        ids_N, emitted_B = step.sample(is_random)
        assert ids_N.tolist() == [int(is_random)] * 4
        assert emitted_B.shape == (4,)
    assert sum(graph.num_replays for graph in recorded) == 3


def test_without_a_sampler_only_the_forward_is_captured(recorded: list[Graph]) -> None:
    step = captured((1,), (0,), can_sample=False).graphs.find(null_batch(1, 0))
    assert isinstance(step, CapturedStep)
    assert not step.can_sample
    assert len(recorded) == 1


@pytest.mark.parametrize("most", [1, 3, 9, 257])
def test_a_step_finds_the_smallest_graph_that_holds_it(recorded: list[Graph], most: int) -> None:
    sizes = batch_buckets(most)
    graphs = captured(sizes, (0, 1)).graphs
    for count in range(1, most + 1):
        for k in (0, 1):
            assert found_rows(graphs, null_batch(count, k)) == min(s for s in sizes if s >= count)
    assert graphs.num_replays == 2 * most


def test_prefill_other_drafts_and_too_many_rows_run_eagerly(recorded: list[Graph]) -> None:
    graphs = captured((1, 2, 3), (0, 2)).graphs
    for batch in (
        null_batch(0, 0, [1]),
        null_batch(2, 0, [1]),
        null_batch(2, 1),
        null_batch(4, 0),
        null_batch(0, 0),
    ):
        assert graphs.find(batch) is None
    assert graphs.num_replays == 0


@pytest.mark.parametrize("when", [1, 2, 3, 6])
@pytest.mark.parametrize("error", [RuntimeError("a wait for the device"), EngineError("a read by the host")])
def test_what_cannot_be_captured_leaves_no_graph(
    recorded: list[Graph], when: int, error: BaseException
) -> None:
    steps = Steps((1, 2, 3), (0,))
    steps.error = (when, error)
    with pytest.raises(CaptureError, match=f"cannot be captured in a CUDA graph: {error}$") as caught:
        steps.graphs.capture()
    assert caught.value.__cause__ is error
    assert steps.graphs.keys == ()
    assert steps.graphs.find(null_batch(3, 0)) is None
    assert steps.graphs.num_replays == 0


@pytest.mark.parametrize("error", [PluginError("wrong data"), torch.OutOfMemoryError("full")])
def test_what_has_nothing_to_do_with_graphs_goes_on_to_the_caller(
    recorded: list[Graph], error: BaseException
) -> None:
    steps = Steps((1,), (0,))
    steps.error = (2, error)
    with pytest.raises(type(error), match=str(error)):
        steps.graphs.capture()


class Runner:
    """A runner that notes what the start asks of it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.batches: list[ScheduledBatch] = []
        self.sampled: list[tuple[bool, bool]] = []
        self.captures: list[tuple[Sequence[int], Sequence[int]]] = []

    def forward(self, batch: ScheduledBatch) -> None:
        assert not self.captures, "a step is run after the capture"
        self.batches.append(batch)

    def sample(self, step: int, *, is_random: bool, stays: bool = False) -> None:
        self.sampled.append((is_random, stays))

    def capture(self, sizes: Sequence[int], captured_k: Sequence[int]) -> Any:
        self.captures.append((sizes, captured_k))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(keys=((1, 0), (2, 1)), seconds=0.25, num_bytes=3 << 20)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineConfig]:
    """Of a GPU, for three requests."""
    # Whatever other tests compile is not late.
    monkeypatch.setattr(gpu_start, "serving_begins", lambda: None)
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    options = UserOptions(
        model=str(tmp_path / "model"), device="cuda", max_num_seqs=3, max_model_len=160, dtype="bfloat16"
    )
    yield plan_core(options).config
    gc.unfreeze()


def warm_up(runner: Runner, config: EngineConfig, internals: Internals | None = None) -> None:
    gpu_start.warm_up(runner, config, internals or Internals(), 160)  # type: ignore[arg-type]


def test_a_start_runs_the_largest_steps_both_ways_then_captures(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner()
    with caplog.at_level(logging.INFO, logger="vtcore.gpu_start"):
        warm_up(runner, config)
    assert runner.batches == largest_batches(3, config.scheduler.max_num_batched_tokens, 160, 0)
    assert runner.sampled == [(False, True), (True, False)] * 3
    assert runner.captures == [((1, 2, 3), (0,))]
    assert "captured graphs for 1, 2x2 rows in 0.2 s, 3 MiB" in caplog.text


def test_a_start_captures_every_number_of_drafts_and_keeps_to_the_tests_budget(config: EngineConfig) -> None:
    runner = Runner()
    warm_up(runner, config, Internals(captured_k=(0, 1, 3), step_budget=8))
    assert runner.captures == [((1, 2, 3), (0, 1, 3))]
    assert runner.batches == largest_batches(3, 8, 160, 3)


def test_an_eager_engine_captures_nothing(config: EngineConfig) -> None:
    runner = Runner()
    warm_up(runner, evolve(config, model=evolve(config.model, enforce_eager=True)))
    assert runner.captures == []
    assert len(runner.batches) == 3


def test_a_model_that_cannot_be_captured_serves_without_graphs_and_says_so(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    warm_up(Runner(CaptureError("it waits for the device")), config)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "steps run without graphs: it waits for the device"


def test_any_other_failure_stops_the_start(config: EngineConfig) -> None:
    with pytest.raises(PluginError, match="wrong data"):
        warm_up(Runner(PluginError("wrong data")), config)


def test_memory_that_runs_out_at_the_capture_is_a_refusal(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 29, 140 << 30))
    with pytest.raises(MemoryPlanError, match=r"on cuda: 1\.5 of 140\.0 GiB are free; lower gpu_memory_util"):
        warm_up(Runner(torch.OutOfMemoryError("full")), config)
