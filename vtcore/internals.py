"""Switches of the engine that have no public option.

Does not: come from a user; tests and benchmarks turn them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

from vtcore.execution.executor import Executor, InlineExecutor

if TYPE_CHECKING:
    from vtcore.engine.core import EngineCore
    from vtcore.execution.model_runner import ModelRunner
    from vtcore.speculation.drafter import Drafter


@frozen(kw_only=True)
class Internals:
    """Switches that have no public option yet; tests turn them.

    Args:
        depth: Frames in flight at most, 1 or 2; None takes it from `async_scheduling`.
        drafter: Proposes drafts; `captured_k` says how many a step may verify.
        choose_k: Sampled rows -> drafts to propose, one of `captured_k`.
        make_executor: Wraps the runner.
        chunk: Multiple at which prompts' chunks end; None takes it from `batch_invariant`.
        step_budget: Replaces max_num_batched_tokens, below its floor too.
        is_policy_timed: Whether the policy's time limit holds.
        may_never_hit: Whether prefix caching may be asked for where no prefix is long enough.
        check: Called after every step of the core.
    """

    depth: int | None = None
    drafter: Drafter | None = None
    captured_k: tuple[int, ...] = (0,)
    choose_k: Callable[[int], int] | None = None
    make_executor: Callable[[ModelRunner], Executor] = InlineExecutor
    chunk: int | None = None
    step_budget: int | None = None
    is_policy_timed: bool = True
    may_never_hit: bool = False
    clock: Callable[[], float] = time.monotonic
    check: Callable[[EngineCore], None] | None = None

    @property
    def k_max(self) -> int:
        """Drafts verified per step at most."""
        return max(self.captured_k)

    def frames(self, async_scheduling: bool) -> int:
        """Frames in flight at most."""
        return self.depth or (2 if async_scheduling else 1)
