"""Random schedules over any architecture, judged against a one-request-at-a-time reference.

Does not: choose what is random; a `ScheduleCase` is plain data that hypothesis or a seed draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from random import Random
from typing import Any, Protocol

from attrs import define, field, frozen
from torch import Tensor

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, EngineCore, FinishRequest, ResetPrefixCache, counters_of
from vtcore.errors import EngineError
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import EngineRequest, RowInit, RowParams, TokenLogprobs
from vtcore.internals import Internals
from vtcore.kv_cache.block_hash import extend_hashes, root_hash, salted_root
from vtcore.loader import LoadedCore, load_core
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.speculation.drafter import Drafter
from vtcore.testing import toy_plugin
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.judge import Given, judge
from vtcore.testing.late_executor import LateExecutor
from vtcore.testing.reference import ToyReference
from vtcore.testing.schedule_case import ScheduleCase, ToyMask
from vtcore.testing.toy_drafters import JunkDrafter, OracleDrafter, ShiftedDrafter
from vtcore.testing.toy_hash import fold, mix
from vtcore.testing.wire import through_msgpack

PAST_THE_STOP = 12
"""How far the oracle knows a request's continuation beyond its end."""


class Reference(Protocol):
    """What each request gives when nothing else runs."""

    def continue_prompt(
        self,
        prompt: Sequence[int],
        params: RowParams,
        num_tokens: int,
        mask: Callable[[Sequence[int]], bytes | None] | None = None,
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Sample `num_tokens` tokens, stopping for nothing; their logprobs where asked."""


@frozen
class ScheduledModel:
    """The model that a case runs on.

    Args:
        hf_config, tensors: As `load_core` takes them.
        has_blocks: Whether it has a pool of blocks that live as long as the request.
        has_states: Whether it has a recurrent state.
    """

    registry: PluginRegistry
    hf_config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    reference: Reference
    has_blocks: bool = True
    has_states: bool = True


@define
class Outcome:
    """What a run showed."""

    counters: Counter[str] = field(factory=Counter)
    outputs: dict[str, list[int]] = field(factory=dict)


class _Run:
    def __init__(self, case: ScheduleCase, model: ScheduledModel) -> None:
        self.case = case
        self.model = model
        self.random = Random(case.seed)
        self.reference = model.reference
        self.outputs: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, dict[int, TokenLogprobs]] = {}
        self.reasons: dict[str, tuple[str | None, int | None]] = {}
        self.ended_by_us: dict[str, int] = {}
        self.sent: dict[str, EngineRequest] = {}
        self.expected: dict[str, tuple[list[int], list[TokenLogprobs | None]]] = {}
        self.pending = list(enumerate(case.requests))
        self.messages = 0
        self.tick = 0
        self.loaded: LoadedCore | None = None

    def expect(self, request: EngineRequest) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Reference output of a request, and as much more as the oracle wants."""
        key = request.id
        if key not in self.expected:
            mask = ToyMask(self.case.vocab_size).mask if request.needs_mask else None
            self.expected[key] = self.reference.continue_prompt(
                request.prompt_token_ids, request.params, request.max_tokens + PAST_THE_STOP, mask
            )
        return self.expected[key]

    def drafter(self) -> Drafter | None:
        kind = self.case.drafter
        if kind is None:
            return None
        if kind == "junk":
            return JunkDrafter()
        if kind == "shifted":
            return ShiftedDrafter(max(self.case.captured_k), in_slots=self.model.has_states)
        errs = kind == "half"
        return OracleDrafter(self.sequence, lambda token, p: errs and mix(mix(token, p), 5) % 3 == 0)

    def sequence(self, init: RowInit) -> Sequence[int]:
        """The full sequence of the request that owns a row."""
        for request in self.sent.values():
            if request.params == init.params and request.prompt_token_ids == init.tokens[: init.prompt_len]:
                return [*request.prompt_token_ids, *self.expect(request)[0]]
        raise AssertionError("a row was admitted for no request")

    def arrive(self) -> None:
        """Messages that are due: arrivals in order, aborts and stop strings at random moments."""
        assert self.loaded is not None
        inbox = self.loaded.core.inbox
        still = []
        for index, case in self.pending:
            if case.arrival > self.tick or (
                case.follows is not None and f"r{case.follows}" not in self.reasons
            ):
                still.append((index, case))
                continue
            prompt = case.prompt
            if case.follows is not None:
                first = self.sent[f"r{case.follows}"]
                prompt = (*first.prompt_token_ids, *self.outputs[first.id], *prompt)
            fork_of, salt = "", case.cache_salt
            if case.fork_of is not None and f"r{case.fork_of}" in self.sent:
                # One prompt object for all, as the front end sends it.
                first = self.sent[f"r{case.fork_of}"]
                fork_of, prompt, salt = first.id, first.prompt_token_ids, first.cache_salt
            request = EngineRequest(
                id=f"r{index}",
                prompt_token_ids=prompt,
                params=case.params,
                max_tokens=case.max_tokens,
                stop_token_ids=case.stop,
                eos_token_ids=case.eos,
                prompt_logprobs=case.prompt_logprobs,
                arrival_s=float(self.tick),
                priority=case.priority,
                policy_args=case.policy_args,
                needs_mask=case.masked,
                cache_salt=salt,
                fork_of=fork_of,
            )
            self.sent[request.id] = through_msgpack(request)
            self.outputs[request.id] = []
            self.logprobs[request.id] = []
            inbox.append(AddRequest(request, ToyMask(self.case.vocab_size) if case.masked else None))
        self.pending = still
        for index, case in enumerate(self.case.requests):
            name = f"r{index}"
            if name not in self.outputs or name in self.reasons:
                continue
            seen = len(self.outputs[name])
            if case.abort_after is not None and seen >= case.abort_after and self.random.random() < 0.5:
                inbox.append(FinishRequest(name, "abort"))
                self.reasons[name] = ("abort", None)
            elif case.stop_string_at is not None and seen >= case.stop_string_at:
                inbox.append(FinishRequest(name, "stop", case.stop_string_at))
                self.reasons[name] = ("stop", None)

    def take(self, core: EngineCore) -> None:
        """One step; late updates of requests that the front end ended are dropped there."""
        for update in core.step():
            if update.id in self.reasons:
                continue
            self.outputs[update.id] += update.tokens
            self.logprobs[update.id] += update.logprobs
            self.prompt_logprobs.setdefault(update.id, {}).update(update.prompt_logprobs)
            if update.finish_reason is not None:
                self.reasons[update.id] = (update.finish_reason, update.stop_reason)

    def hidden_after(self, tokens: Sequence[int], count: int) -> int:
        """The toy target's hidden after the first `count` tokens."""
        assert isinstance(self.reference, ToyReference)
        return self.reference.hidden(tokens[:count])

    def check_states(self, core: EngineCore) -> None:
        """With nothing in flight, the slot that a decoding row reads next holds the state from scratch."""
        assert self.loaded is not None
        cache = self.loaded.caches.get("state")
        if core.frames or cache is None or not isinstance(self.reference, ToyReference):
            return
        tables = self.loaded.runner.tables
        for request in core.scheduler.running:
            slot = request.slots[cache.pool][int(tables.cur_slot[request.row])]
            expected = fold(request.tokens[: request.computed], 0)
            assert int(cache["hash"][slot, 0]) == expected, f"{request.id}: the state differs from scratch"

    def check_kept_states(self, core: EngineCore) -> None:
        """With nothing in flight, every state kept for a prefix is that prefix's own, from scratch."""
        assert self.loaded is not None
        cache = self.loaded.caches.get("state")
        if core.frames or cache is None or not isinstance(self.reference, ToyReference):
            return
        memory = core.scheduler.memory
        kept = dict(memory.pools[cache.pool].by_hash)
        for request in self.sent.values():
            # The core may know tokens that a front end which ended the request never saw.
            tokens = [*request.prompt_token_ids, *self.expect(request)[0]]
            hashes: list[bytes] = []
            extend_hashes(hashes, tokens, memory.block_size, salted_root(root_hash(), request.cache_salt))
            for index, block_hash in enumerate(hashes):
                if (slot := kept.pop(block_hash, None)) is not None:
                    expected = fold(tokens[: (index + 1) * memory.block_size], 0)
                    assert int(cache["hash"][slot, 0]) == expected, "a kept state differs from scratch"
        assert not kept, "a state is kept of tokens that nobody has"

    def check_drafts(self, core: EngineCore, executor: LateExecutor, drafter: object) -> None:
        """Every live row's drafts equal those of a drafter without any cache."""
        if not isinstance(drafter, ShiftedDrafter):
            executor.polled.clear()
            return
        for batch, result in executor.polled:
            for row in result.rows:
                owner = core.scheduler.rows.owner[row.row]
                if owner is None or owner.home_drafts is not row.drafts or not row.tokens:
                    continue
                if not row.drafts:
                    # A fork's first step: its parent was drafted for.
                    continue
                if not drafter.in_slots and (
                    owner.num_cached_tokens
                    or owner.req.fork_of
                    or (core.scheduler.memory.prefix_caching and owner.num_preemptions)
                ):
                    # The hidden before the first query is unknown then, so the first pair differs.
                    continue
                expected = ShiftedDrafter.from_scratch(
                    owner.tokens,
                    partial(self.hidden_after, owner.tokens),
                    owner.limit,
                    self.case.vocab_size,
                    batch.num_drafts_out,
                )
                assert list(row.drafts[: batch.num_drafts_out]) == expected, "drafts differ from scratch"
                assert set(row.drafts[batch.num_drafts_out :]) <= {-1}
        executor.polled.clear()


def toy_registry() -> PluginRegistry:
    """A registry with the core's own plugins and the toy, none of the installed ones."""
    return build_registry(extra=(toy_plugin,), entry_points=False)


def toy_model(case: ScheduleCase, registry: PluginRegistry) -> ScheduledModel:
    """The toy architecture with the parts and the vocabulary of a case."""
    config = {
        "model_type": "toy",
        "state_chunk": case.state_chunk,
        "vocab_size": case.vocab_size,
        "parts": case.parts,
        "window": case.window,
    }
    reference = ToyReference(case.vocab_size, case.parts, case.window)
    return ScheduledModel(
        registry,
        config,
        {},
        reference,
        has_blocks="whole" in case.parts,
        has_states="state" in case.parts,
    )


def run_schedule(
    case: ScheduleCase, registry: PluginRegistry | None = None, model: ScheduledModel | None = None
) -> Outcome:
    """Run a case to its end, asserting outputs, reasons, logprobs, drafts and every invariant.

    Args:
        registry: For the toy architecture; None is `toy_registry()`.
        model: Another one; None is the toy.

    Raises:
        AssertionError: Something differs from the reference.
    """
    if model is None:
        model = toy_model(case, registry or toy_registry())
    run = _Run(case, model)
    drafter = run.drafter()
    longest = _longest(case)
    num_blocks = max(case.num_blocks or 0, -(-longest // case.block_size))
    # The draft layer of a shifted drafter has blocks of its own.
    has_blocks = model.has_blocks or isinstance(drafter, ShiftedDrafter)
    max_model_len = min(longest, num_blocks * case.block_size) if has_blocks else longest
    ks = cycle(case.ks)
    executors: list[LateExecutor] = []

    def make_executor(runner: ModelRunner) -> LateExecutor:
        executors.append(LateExecutor(runner, run.random, through_msgpack, run.arrive))
        return executors[0]

    internals = Internals(
        depth=case.depth,
        drafter=drafter,
        captured_k=case.captured_k,
        choose_k=lambda num_rows: next(ks),
        make_executor=make_executor,
        chunk=case.chunk,
        step_budget=case.budget,
        is_policy_timed=False,
        may_never_hit=True,
        clock=lambda: float(run.tick),
        check=check_invariants,
    )
    options = UserOptions(
        dtype="float64",
        block_size=case.block_size,
        num_blocks=num_blocks if has_blocks else None,
        max_model_len=max_model_len,
        max_num_seqs=case.max_num_seqs,
        enable_prefix_caching=case.prefix_caching,
        scheduling_policy=case.policy,
        policy_config=case.policy_config or None,
        **_state_options(case, model),
    )
    loaded = load_core(
        options,
        hf_config=model.hf_config,
        tensors=model.tensors,
        registry=model.registry,
        environment=Environment(),
        internals=internals,
    )
    run.loaded = loaded
    core, executor = loaded.core, executors[0]
    executor.poison(core.scheduler.memory, loaded.caches)
    run.arrive()
    bound = 400 + 60 * sum(r.max_tokens + len(r.prompt) for r in case.requests)
    while run.pending or core.has_work:
        run.tick += 1
        run.arrive()
        if run.tick in case.resets:
            core.inbox.append(ResetPrefixCache())
        run.take(core)
        run.check_drafts(core, executor, drafter)
        run.check_states(core)
        run.check_kept_states(core)
        bound -= 1
        if not bound:
            raise EngineError("no progress: the schedule does not end")
    check_idle(core)
    executor.check_canaries()
    for index, request_case in enumerate(case.requests):
        name = f"r{index}"
        given = Given(
            run.outputs[name], run.logprobs[name], run.prompt_logprobs.get(name, {}), run.reasons[name]
        )
        judge(request_case, run.sent[name], given, run.expect(run.sent[name]), loaded.plan.max_model_len)
    counters: Counter[str] = Counter(counters_of(core))
    counters["late_launches"] = executor.num_late
    counters["illegal_drafts"] = loaded.runner.num_illegal_drafts
    loaded.close()
    return Outcome(counters, run.outputs)


def _state_options(case: ScheduleCase, model: ScheduledModel) -> dict[str, Any]:
    """Only where they have an effect are they taken."""
    if not case.prefix_caching or not model.has_states:
        return {}
    return {
        "num_state_checkpoints": case.num_state_checkpoints,
        "state_checkpoint_interval": case.checkpoint_interval,
    }


def _longest(case: ScheduleCase) -> int:
    prompts: list[int] = []
    lengths: list[int] = []
    for request in case.requests:
        before = lengths[request.follows] if request.follows is not None else 0
        own = before + len(request.prompt)
        # A fork that arrives before its leader has the prompt it was drawn with.
        prompts.append(own if request.fork_of is None else max(own, prompts[request.fork_of]))
        lengths.append(prompts[-1] + request.max_tokens)
    return max(lengths)
