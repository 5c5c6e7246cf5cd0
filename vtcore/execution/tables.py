"""The device tables: what every row carries from step to step.

Does not: decide what goes in. Host-owned columns change by deltas and row inits, in stream order; the step
itself writes the device-owned ones. Row 0 is null and stays zero.

Shape letters: R rows with null, M blocks per row, S state columns, K drafts, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vtcore.interfaces.batch import RowInit, TableDelta
from vtcore.kv_cache.planner import MemoryPlan, table_shape


class DeviceTables:
    """One tensor per column.

    Args:
        max_num_seqs: Rows beside null.
        k_max: Width of the drafts column.

    Attributes:
        block_tables: By pool, [R, M] int64; None for slot pools. Host-owned.
        state_slots: By pool, [R, S] int64; None for paged pools. Host-owned.
        limit: [R] int64. Host-owned.
        last_token, computed, cur_slot: [R] int64. Device-owned.
        drafts: [R, K] int64, -1 where there is none. Device-owned.
        history: [R, L] int32, the row's tokens by position. Device-owned.
    """

    def __init__(self, plan: MemoryPlan, max_num_seqs: int, k_max: int, device: str) -> None:
        size = max_num_seqs + 1
        shape = table_shape(plan.max_model_len, plan.block_size, k_max)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.block_tables = [None if pool.is_slot else zeros(size, shape.num_blocks) for pool in plan.pools]
        self.state_slots = [
            zeros(size, pool.slots_per_request) if pool.is_slot else None for pool in plan.pools
        ]
        self.limit = zeros(size)
        self.last_token = zeros(size)
        self.computed = zeros(size)
        self.cur_slot = zeros(size)
        self.drafts = zeros(size, k_max) - 1
        self.history = torch.zeros((size, shape.num_positions), dtype=torch.int32, device=device)

    def apply(self, deltas: Sequence[TableDelta], inits: Sequence[RowInit]) -> None:
        """Upload a batch's deltas, then replace the rows it admits."""
        for index, table in enumerate(self.block_tables):
            mine = [d for d in deltas if d.pool == index]
            if mine and table is not None:
                rows, columns, ids = zip(*((d.row, d.index, d.id) for d in mine), strict=True)
                table[list(rows), list(columns)] = torch.tensor(ids, device=table.device)
        for init in inits:
            self._init_row(init)

    def _init_row(self, init: RowInit) -> None:
        row = init.row
        for index, table in enumerate(self.block_tables):
            if table is not None:
                table[row].zero_()
                ids = init.tables[index]
                table[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device=table.device)
            slots = self.state_slots[index]
            if slots is not None:
                slots[row] = torch.tensor(init.slots[index], dtype=torch.int64, device=slots.device)
        self.limit[row] = init.limit
        self.computed[row] = init.computed
        self.last_token[row] = 0
        self.cur_slot[row] = 0
        self.drafts[row] = -1
        if init.tokens:
            tokens = torch.tensor(init.tokens, dtype=torch.int32, device=self.history.device)
            self.history[row, : len(init.tokens)] = tokens
