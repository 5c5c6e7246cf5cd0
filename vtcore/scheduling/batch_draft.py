"""The batch of one step while the scheduler builds it.

Does not: outlive `schedule()`.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from vtcore.interfaces.batch import Checkpoint, CopyOp, Fork, PrefillRow, RowInit
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.token_budget import StepBudget


@define
class BatchDraft:
    """Entries so far, uniform rows first.

    Args:
        requests, queries, emits: One per entry, in batch order; see `Frame`.
        children, forks: Forks of the step and their queries, which are their parents'; they come last.
        after: Copies that the forks need.
        checkpoints, keepers: States to keep, and whose they are.
        memory_short: A request did not get the blocks it needs, so nobody gets new ones in this step.
        preempted: Somebody lost its memory in this step, so nobody is admitted.
    """

    budget: StepBudget
    k_in: int
    requests: list[RequestState] = field(factory=list)
    queries: list[int] = field(factory=list)
    emits: list[bool] = field(factory=list)
    uniform: NDArray[np.int64] = field(factory=lambda: np.zeros(0, np.int64))
    prefill: list[PrefillRow] = field(factory=list)
    inits: list[RowInit] = field(factory=list)
    children: list[tuple[RequestState, int]] = field(factory=list)
    forks: list[Fork] = field(factory=list)
    after: list[CopyOp] = field(factory=list)
    checkpoints: list[Checkpoint] = field(factory=list)
    keepers: list[RequestState] = field(factory=list)
    max_context: int = 0
    memory_short: bool = False
    preempted: bool = False

    def keep(self, checkpoint: Checkpoint, request: RequestState) -> None:
        """Add a state to keep."""
        self.checkpoints.append(checkpoint)
        self.keepers.append(request)
