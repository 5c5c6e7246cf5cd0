"""Builds the core over an executor: memory, policy guard, scheduler, in this order.

Does not: need torch, weights or a device; whoever has an executor may have a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vtcore.config.engine_config import EngineConfig
from vtcore.engine.core import EngineCore
from vtcore.execution.executor import Executor
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.limits import SchedulerLimits
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.scheduler import Scheduler


def build_core(
    config: EngineConfig,
    plan: MemoryPlan,
    policy: SchedulerPolicy,
    executor: Executor,
    *,
    depth: int = 1,
    step_budget: int | None = None,
    captured_k: tuple[int, ...] = (0,),
    choose_k: Callable[[int], int] | None = None,
    lookahead: int = 0,
    history_always: bool = False,
    is_policy_timed: bool = True,
    clock: Callable[[], float] = time.monotonic,
    check: Callable[[EngineCore], None] | None = None,
) -> EngineCore:
    """Build the core of one engine.

    Args:
        step_budget: Replaces max_num_batched_tokens.
        choose_k: As for `Scheduler`; None proposes as many drafts as `captured_k` allows.
        lookahead: Positions beyond a query that the drafter may write.
        captured_k, history_always: As for `SchedulerLimits`.
        is_policy_timed: Whether the policy's time limit holds.
        depth, check: As for `EngineCore`.
    """
    memory = RequestMemory(
        plan,
        config.cache.enable_prefix_caching,
        root_hash(config.cache.prefix_caching_hash_seed),
        lookahead,
        config.cache.state_checkpoint_interval,
    )
    time_limit_s = config.scheduler.policy_time_limit_ms / 1000 if is_policy_timed else None
    name = config.scheduler.scheduling_policy
    guard = PolicyGuard(policy, clock, memory, time_limit_s, config.scheduler.starvation_s, name)
    limits = SchedulerLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=step_budget or config.scheduler.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        captured_k=captured_k,
        history_always=history_always,
    )
    scheduler = Scheduler(limits, memory, guard, clock, choose_k or (lambda num_rows: max(captured_k)))
    return EngineCore(scheduler, executor, depth, check)
