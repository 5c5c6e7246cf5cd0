"""A launched step: its batch, and what the host must know to judge its results.

Does not: hold results; they come back by step number.
"""

from __future__ import annotations

import numpy as np
from attrs import define
from numpy.typing import NDArray

from vtcore.interfaces.batch import ScheduledBatch
from vtcore.scheduling.request_state import RequestState


@define(eq=False)
class Frame:
    """One launched step, rows in batch order: uniform, prefill, forks.

    Args:
        rows, epochs: Row of each entry and its epoch at launch.
        bounds: Upper bound of each row's `computed` before this step, in tokens.
        queries: Query tokens of each entry.
        emits: Whether the entry yields tokens.
        keepers: Whose states the batch's checkpoints are, in their order.
        sampled: Whether launch_sample was called.
    """

    batch: ScheduledBatch
    requests: list[RequestState]
    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]
    bounds: NDArray[np.int64]
    queries: list[int]
    emits: list[bool]
    keepers: list[RequestState]
    sampled: bool = False

    @property
    def step(self) -> int:
        """The batch's step number."""
        return self.batch.step

    @property
    def num_uniform(self) -> int:
        """Entries before this index are uniform rows."""
        return len(self.batch.uniform)
