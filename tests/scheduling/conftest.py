"""A scheduler over real pools, and the results a device would give for its frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import define, field

from vtcore.interfaces.batch import EngineRequest, RequestUpdate, RowParams, RowResult, StepResult
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.commit import commit
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.limits import SchedulerLimits
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.scheduler import Scheduler
from vtcore.testing.toy_arch import ToyBlocks


@define(eq=False)
class Bench:
    """One scheduler, driven by hand.

    Args:
        now: The clock, in seconds.
    """

    policy: SchedulerPolicy = field(factory=SchedulerPolicy)
    specs: Sequence[KVCacheSpec] = (ToyBlocks(layers=("whole",), block_size=4),)
    num_blocks: int = 8
    budget: int = 64
    max_num_seqs: int = 4
    max_model_len: int = 32
    captured_k: tuple[int, ...] = (0,)
    caching: bool = False
    num_checkpoints: int = 0
    chunk: int = 1
    time_limit_s: float | None = None
    starvation_s: float = 30.0
    now: float = 0.0
    added: int = 0
    scheduler: Scheduler = field(init=False)
    guard: PolicyGuard = field(init=False)

    def __attrs_post_init__(self) -> None:
        plan = plan_memory(
            self.specs,
            PlanLimits(
                block_size=4,
                num_blocks=self.num_blocks,
                max_num_seqs=self.max_num_seqs,
                max_model_len=self.max_model_len,
                max_model_len_pinned=False,
                max_query=2 * self.budget,
                k_max=max(self.captured_k),
                num_checkpoints=self.num_checkpoints,
                chunk=self.chunk,
            ),
        )
        memory = RequestMemory(plan, self.caching, root_hash(), 0)
        self.guard = PolicyGuard(self.policy, lambda: self.now, memory, self.time_limit_s, self.starvation_s)
        limits = SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_model_len=plan.max_model_len,
            captured_k=self.captured_k,
        )
        k_max = max(self.captured_k)
        self.scheduler = Scheduler(limits, memory, self.guard, lambda: self.now, lambda num_rows: k_max)

    def add(
        self,
        name: str,
        length: int = 3,
        max_tokens: int = 8,
        prompt: Sequence[int] | None = None,
        arrival_s: float | None = None,
        priority: int = 0,
        stop: tuple[int, ...] = (),
        min_tokens: int = 0,
        policy_args: str = "",
        fork_of: str = "",
        cache_salt: str = "",
        prompt_logprobs: int | None = None,
    ) -> RequestState:
        """Queue a request; arrivals are a second apart unless said otherwise."""
        self.added += 1
        ids = tuple(prompt) if prompt is not None else tuple(100 * self.added + i for i in range(length))
        return self.scheduler.add(
            EngineRequest(
                id=name,
                prompt_token_ids=ids,
                params=RowParams(min_tokens=min_tokens),
                max_tokens=max_tokens,
                stop_token_ids=stop,
                arrival_s=float(self.added) if arrival_s is None else arrival_s,
                priority=priority,
                policy_args=policy_args,
                fork_of=fork_of,
                cache_salt=cache_salt,
                prompt_logprobs=prompt_logprobs,
            )
        )

    def results(self, frame: Frame, accepted: int = 1, token: int = 1) -> StepResult:
        """What a device would answer: uniform rows emit `accepted` tokens, sampling prefill rows one."""
        rows = []
        for index, request in enumerate(frame.requests):
            uniform = index < frame.num_uniform
            count = (
                min(accepted, request.limit - 1 - request.computed) if uniform else int(frame.emits[index])
            )
            rows.append(RowResult(int(frame.rows[index]), request.computed, (token,) * count))
        return StepResult(frame.step, tuple(rows), (True,) * len(frame.batch.checkpoints))

    def commit(self, frame: Frame, accepted: int = 1, token: int = 1) -> list[RequestUpdate]:
        """Commit a frame with a device's answer."""
        return commit(self.scheduler, frame, self.results(frame, accepted, token))

    def step(self) -> list[str]:
        """Schedule and commit one frame; returns the ids in the batch, in order."""
        frame = self.scheduler.schedule()
        if frame is None:
            return []
        names = [request.id for request in frame.requests]
        self.commit(frame)
        self.scheduler.memory.check(self.scheduler.running)
        self.scheduler.rows.check()
        return names

    def running(self) -> list[str]:
        """Ids of the running requests, in visiting order."""
        return [request.id for request in self.scheduler.running]

    def run_out(self, steps: int = 300) -> None:
        """Step until nothing is left."""
        for _ in range(steps):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests, "the schedule does not end"
        self.scheduler.memory.check([])
        for pool in self.scheduler.memory.pools:
            assert pool.num_unused == pool.num_units - 1


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes schedulers."""
    return Bench
