"""Fits a cost model to real steps: a real core, real batches, a real executor, timed.

Does not: choose the machine; it measures the model that the options load, where they load it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import fields
from numpy.typing import NDArray

from vtcore.engine.core import AddRequest
from vtcore.errors import ConfigError
from vtcore.execution.executor import InlineExecutor
from vtcore.interfaces.batch import EngineRequest, RowParams, ScheduledBatch, StepResult
from vtcore.internals import Internals
from vtcore.loader import LoadedCore, load_core
from vtcore.simulation.cost_model import CostModel, StepWork
from vtcore.simulation.executor import RowLengths
from vtcore.simulation.tokens import sequence_ids

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions
    from vtcore.execution.model_runner import ModelRunner

NUM_ROUNDS = 3
"""Rounds of equal steps, after one that warms up; of each step the fastest counts."""
LONGEST_PROMPT = 1024
"""Tokens of the longest prompt, or half of what the model may reach."""
NUM_OUTPUT = 24
"""Tokens of each answer."""
_PARTS = (1, 2, 4, 8, 16)
"""The prompts are the longest one's length divided by these."""


class TimedExecutor(InlineExecutor):
    """Runs steps as ever, and notes the work of each and its seconds from launch to result.

    Args:
        runner: Borrowed.
        num_rows: Of the engine.
    """

    def __init__(self, runner: ModelRunner, num_rows: int) -> None:
        super().__init__(runner)
        self.steps: list[tuple[StepWork, float]] = []
        self._lengths = RowLengths(num_rows)
        self._started: dict[int, tuple[StepWork, float]] = {}

    def launch_forward(self, batch: ScheduledBatch) -> None:
        """See `Executor`."""
        work, *_ = self._lengths.launch(batch)
        self._started[batch.step] = (work, time.perf_counter())
        super().launch_forward(batch)

    def poll(self, step: int) -> StepResult:
        """See `Executor`."""
        result = super().poll(step)
        work, start = self._started.pop(step)
        self.steps.append((work, time.perf_counter() - start))
        return result


def measure_cost_model(given: GivenOptions) -> CostModel:
    """Load a model, run prompts of several lengths together, and fit a cost model to the steps.

    Raises:
        VtcoreError: The model cannot be loaded.
        ConfigError: It can hold too few tokens to measure anything.
    """
    executors: list[TimedExecutor] = []

    def make_executor(runner: ModelRunner) -> TimedExecutor:
        executors.append(TimedExecutor(runner, len(runner.tables.computed) - 1))
        return executors[0]

    loaded = load_core(
        given.options,
        sources=given.sources,
        environment=given.environment,
        internals=Internals(make_executor=make_executor, is_policy_timed=False),
    )
    try:
        rounds = []
        for number in range(1 + NUM_ROUNDS):
            executors[0].steps.clear()
            _run_round(loaded, number)
            rounds.append(list(executors[0].steps))
    finally:
        model = loaded.config.model
        loaded.close()
    works = [work for work, _ in rounds[0]]
    if any([work for work, _ in steps] != works for steps in rounds):
        raise ConfigError("$.measure: equal rounds took different steps; the cache is too small, raise it")
    fastest = [min(seconds) for seconds in zip(*([s for _, s in steps] for steps in rounds[1:]), strict=True)]
    return fit_cost_model(works, fastest, f"{model.model} in {model.dtype} on this machine's {model.device}")


def fit_cost_model(works: Sequence[StepWork], seconds: Sequence[float], what: str) -> CostModel:
    """Least squares of relative errors, no term below 0.

    A term that would be negative is left out and the others are fitted again, the most negative first.

    Args:
        works, seconds: Of each step; seconds > 0.
        what: Was measured, for the source.
    """
    terms = np.array([work.terms() for work in works])
    wanted = np.array(seconds)
    kept = [column for column in range(terms.shape[1]) if terms[:, column].any()]
    found: NDArray[np.float64] = np.zeros(terms.shape[1])
    while kept:
        solution = np.linalg.lstsq(terms[:, kept] / wanted[:, None], np.ones(len(wanted)), rcond=None)[0]
        worst = int(solution.argmin())
        if solution[worst] >= 0:
            found[kept] = solution
            break
        del kept[worst]
    error = float(np.abs(terms @ found / wanted - 1).mean())
    names = [one.name for one in fields(CostModel)][: len(found)]
    return CostModel(
        **{name: float(f"{value:.6g}") for name, value in zip(names, found, strict=True)},
        source=f"measured: {len(wanted)} steps of {what}, {100 * error:.0f} % off on average",
    )


def _run_round(loaded: LoadedCore, number: int) -> None:
    """Twice as many requests as run at once, so that prompts and answers mix in every way."""
    limit = loaded.plan.max_model_len
    longest = min(LONGEST_PROMPT, limit // 2)
    outputs = min(NUM_OUTPUT, limit - longest)
    vocab_size = loaded.arch.dims.vocab_size
    for index in range(2 * loaded.config.scheduler.max_num_seqs):
        # Other ids in each round, lest it finds the last round's blocks.
        name = f"{number}/{index}"
        ids = sequence_ids(name, max(1, longest // _PARTS[index % len(_PARTS)]), vocab_size)
        params = RowParams(temperature=0.0)
        request = EngineRequest(id=name, prompt_token_ids=tuple(ids), params=params, max_tokens=outputs)
        loaded.core.inbox.append(AddRequest(request))
    while loaded.core.has_work:
        loaded.core.step()
