"""Requests come, step, stop and vanish in any order; pools, rows, budget and outputs stay right."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, FinishRequest, counters_of
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import EngineRequest, RowParams, ScheduledBatch, StepResult
from vtcore.internals import Internals
from vtcore.loader import LoadedCore, load_core
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.late_executor import LateExecutor
from vtcore.testing.reference import ToyReference
from vtcore.testing.schedules import toy_registry
from vtcore.testing.wire import through_msgpack

REGISTRY = toy_registry()
VOCAB = 8
WINDOW = 5
BLOCK = 4
SEEN: Counter[str] = Counter()
"""Counters of all finished examples, so that a test can show that the interesting things happened."""


class CountingExecutor(LateExecutor):
    """A late executor that remembers the size of every batch."""

    def __init__(self, runner: ModelRunner, seed: int) -> None:
        super().__init__(runner, Random(seed), through_msgpack)
        self.sizes: list[int] = []

    def launch_forward(self, batch: ScheduledBatch) -> None:
        self.sizes.append(batch.num_tokens)
        super().launch_forward(batch)

    def poll(self, step: int) -> StepResult:
        result = super().poll(step)
        self.polled.clear()
        return result


class EngineMachine(RuleBasedStateMachine):
    """One engine over the toy architecture; subclasses fix which caches it keeps."""

    parts: tuple[str, ...] = ("whole",)

    def __init__(self) -> None:
        super().__init__()
        self.loaded: LoadedCore | None = None
        self.sent: dict[str, EngineRequest] = {}
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str | None] = {}
        self.ended_by_us: set[str] = set()
        self.clock = 0
        self.max_len = 0

    @initialize(
        depth=st.sampled_from((1, 2)),
        budget=st.sampled_from((1, 2, 3, 7, 64)),
        num_blocks=st.sampled_from((3, 4, 5, 8)),
        max_num_seqs=st.sampled_from((1, 2, 3, 4)),
        seed=st.integers(0, 2**16),
    )
    def start(self, depth: int, budget: int, num_blocks: int, max_num_seqs: int, seed: int) -> None:
        self.budget, self.max_len = budget, num_blocks * BLOCK
        executors: list[CountingExecutor] = []

        def make_executor(runner: ModelRunner) -> CountingExecutor:
            executors.append(CountingExecutor(runner, seed))
            return executors[0]

        self.loaded = load_core(
            UserOptions(
                dtype="float64",
                block_size=BLOCK,
                num_blocks=num_blocks,
                max_model_len=self.max_len,
                max_num_seqs=max_num_seqs,
            ),
            hf_config={"model_type": "toy", "vocab_size": VOCAB, "parts": self.parts, "window": WINDOW},
            tensors={},
            registry=REGISTRY,
            environment=Environment(),
            internals=Internals(
                depth=depth,
                make_executor=make_executor,
                step_budget=budget,
                clock=lambda: float(self.clock),
                check=check_invariants,
            ),
        )
        self.core = self.loaded.core
        self.executor = executors[0]
        self.executor.poison(self.core.scheduler.memory, self.loaded.caches)
        assert self.core.scheduler.memory.prefix_caching == ("state" not in self.parts)

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=11),
        max_tokens=st.integers(1, 9),
        temperature=st.sampled_from((0.0, 1.0)),
        stop=st.sampled_from(((), (3,))),
    )
    def add_new(self, prompt: list[int], max_tokens: int, temperature: float, stop: tuple[int, ...]) -> None:
        self.add(tuple(prompt), max_tokens, temperature, stop)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), max_tokens=st.integers(1, 9), with_answer=st.booleans())
    def add_an_earlier_prompt(self, data: st.DataObject, max_tokens: int, with_answer: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.sent)))
        answer = self.got[name] if with_answer else []
        self.add((*self.sent[name].prompt_token_ids, *answer), max_tokens, 1.0, ())

    def add(
        self, prompt: tuple[int, ...], max_tokens: int, temperature: float, stop: tuple[int, ...]
    ) -> None:
        prompt = prompt[: self.max_len - 1]
        self.clock += 1
        request = EngineRequest(
            id=f"r{len(self.sent)}",
            prompt_token_ids=prompt,
            params=RowParams(temperature=temperature, seed=len(self.sent)),
            max_tokens=min(max_tokens, self.max_len - len(prompt)),
            stop_token_ids=stop,
            arrival_s=float(self.clock),
        )
        self.sent[request.id], self.got[request.id] = request, []
        self.core.inbox.append(AddRequest(request))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.core.has_work:
                self.take()

    def take(self) -> None:
        self.clock += 1
        for update in self.core.step():
            if update.id in self.ended_by_us:
                continue
            assert update.id not in self.ended, "an update came after the last one"
            self.got[update.id] += update.tokens
            if update.finish_reason is not None:
                self.ended[update.id] = update.finish_reason

    def unfinished(self) -> list[str]:
        return [name for name in self.sent if name not in self.ended and name not in self.ended_by_us]

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.unfinished())), "abort")

    @precondition(lambda self: any(self.got[name] for name in self.unfinished()))
    @rule(data=st.data())
    def stop_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([n for n in self.unfinished() if self.got[n]]))
        self.end(name, "stop")

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*self.sent, "unknown"]))
        if name in self.ended or name in self.ended_by_us or name == "unknown":
            self.core.inbox.append(FinishRequest(name, "abort"))

    def end(self, name: str, reason: str) -> None:
        self.ended_by_us.add(name)
        self.core.inbox.append(FinishRequest(name, reason, len(self.got[name])))

    @invariant()
    def everything_is_in_one_place(self) -> None:
        if self.loaded is None:
            return
        check_invariants(self.core)
        assert all(0 < size <= self.budget for size in self.executor.sizes), "the budget was exceeded"
        self.executor.sizes.clear()

    def teardown(self) -> None:
        if self.loaded is None:
            return
        steps = 0
        while self.core.has_work:
            self.take()
            steps += 1
            assert steps < 3000, "the schedule does not end"
        self.everything_is_in_one_place()
        check_idle(self.core)
        self.executor.check_canaries()
        self.judge()
        SEEN.update(counters_of(self.core))
        self.loaded.close()

    def judge(self) -> None:
        reference = ToyReference(VOCAB, self.parts, WINDOW)
        for name, request in self.sent.items():
            tokens, _ = reference.continue_prompt(
                request.prompt_token_ids, request.params, request.max_tokens
            )
            reason = "length"
            for index, token in enumerate(tokens):
                if token in request.stop_token_ids:
                    tokens, reason = tokens[: index + 1], "stop"
                    break
            if name in self.ended_by_us:
                assert self.got[name] == tokens[: len(self.got[name])]
            else:
                assert (self.got[name], self.ended[name]) == (tokens, reason), name


class HybridMachine(EngineMachine):
    """Attention and recurrent state, so no prefix cache."""

    parts = ("whole", "state")


class WindowMachine(EngineMachine):
    """Full and window attention over one hash chain."""

    parts = ("whole", "window")


HybridMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
WindowMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30)

TestHybrid = HybridMachine.TestCase
TestWindow = WindowMachine.TestCase


def test_plain_attention_and_that_its_examples_preempt_hit_stall_and_drop_late_results() -> None:
    SEEN.clear()
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=60, stateful_step_count=30))
    for name in ("preemptions", "hits", "late_results", "stalls"):
        assert SEEN[name] > 0, f"{name} never happened in {SEEN}"
