"""Device rows as the host sees them: who owns one, and the numbers every step compares, as arrays.

Does not: hold requests' tokens or memory. Row 0 is null and never owned. Arrays, because a step over
hundreds of decoding rows must not run Python per row.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from vtcore.errors import EngineError
from vtcore.scheduling.request_state import RequestState


class RowTable:
    """Rows 1..num_rows and, per row, epoch, bound, limit, cover and kind.

    Attributes:
        epoch: Rises when a row is released; results of an older epoch are dropped. Never reset.
        bound: Upper bound of the row's `computed` after all launched steps, in tokens.
        least: Lower bound of the same; equal to it while nothing drafted is in flight.
        limit: The owner's limit, in tokens.
        covered: Tokens that the owner's block tables cover in every paged pool.
        uniform: A step that samples the row has been launched since its admission.
        inflight: Launched and uncommitted steps of the row's present epoch.
        needs_mask: Sampling the row needs host state.
    """

    def __init__(self, num_rows: int) -> None:
        size = num_rows + 1
        self.num_rows = num_rows
        self.owner: list[RequestState | None] = [None] * size
        self.epoch = np.zeros(size, np.int64)
        self.bound = np.zeros(size, np.int64)
        self.least = np.zeros(size, np.int64)
        self.limit = np.zeros(size, np.int64)
        self.covered = np.zeros(size, np.int64)
        self.uniform = np.zeros(size, np.bool_)
        self.inflight = np.zeros(size, np.int64)
        self.needs_mask = np.zeros(size, np.bool_)
        self._free = deque(range(1, size))

    @property
    def num_free(self) -> int:
        """Rows without an owner."""
        return len(self._free)

    def take(self, request: RequestState, computed: int) -> int:
        """Give a free row to a request whose first query starts at `computed`."""
        row = self._free.popleft()
        self.owner[row] = request
        self.bound[row] = self.least[row] = computed
        self.limit[row] = request.limit
        self.covered[row] = 0
        self.uniform[row] = False
        self.inflight[row] = 0
        self.needs_mask[row] = request.req.needs_mask
        return row

    def release(self, row: int) -> None:
        """Take a row back; frames that still hold it become stale."""
        if self.owner[row] is None:
            raise EngineError(f"row {row} is released but not owned")
        self.owner[row] = None
        self.uniform[row] = False
        self.epoch[row] += 1
        self._free.append(row)

    def reset(self) -> None:
        """Take every row back, whoever owns it."""
        self.owner = [None] * len(self.owner)
        self.uniform[:] = False
        self.epoch += 1
        self._free = deque(range(1, self.num_rows + 1))

    def check(self) -> None:
        """Assert that free and owned rows partition 1..num_rows."""
        owned = {row for row, owner in enumerate(self.owner) if owner is not None}
        free = set(self._free)
        if owned & free or owned | free != set(range(1, self.num_rows + 1)) or len(free) != len(self._free):
            raise EngineError(f"rows: owned {sorted(owned)} and free {sorted(free)} are no partition")
