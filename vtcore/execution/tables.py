"""The device tables: what every row carries from step to step.

Does not: decide what goes in. Host-owned columns change by deltas and row inits, in stream order; the step
itself writes the device-owned ones. Row 0 is null and stays zero.

Shape letters: R rows with null, M blocks per row, S state columns, K drafts, L positions, I rows replaced,
E entries of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vtcore.execution.staging import Upload
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

    def stage(
        self, deltas: Sequence[TableDelta], inits: Sequence[RowInit], upload: Upload
    ) -> Callable[[Sequence[Tensor]], None]:
        """Add a batch's deltas and the rows it admits to an upload.

        Returns:
            What writes them, given the sent tensors: the deltas first, then whole rows.
        """
        writes: list[Callable[[Sequence[Tensor]], object]] = []
        for index, table in enumerate(self.block_tables):
            mine = [(d.row, d.index, d.id) for d in deltas if d.pool == index]
            if mine and table is not None:
                writes.append(_entries(table, np.array(mine, np.int64).T, upload))
        if inits:
            writes.append(self._stage_inits(inits, upload))

        def apply(sent: Sequence[Tensor]) -> None:
            for write in writes:
                write(sent)

        return apply

    def _stage_inits(self, inits: Sequence[RowInit], upload: Upload) -> Callable[[Sequence[Tensor]], None]:
        rows = upload.add([init.row for init in inits])
        numbers = upload.add([number for init in inits for number in (init.limit, init.computed)])
        slots = {
            index: upload.add([slot for init in inits for slot in init.slots[index]])
            for index, table in enumerate(self.state_slots)
            if table is not None
        }
        entries = [
            _entries(table, _ragged(inits, [init.tables[index] for init in inits]), upload)
            for index, table in enumerate(self.block_tables)
            if table is not None and any(init.tables[index] for init in inits)
        ]
        if any(init.tokens for init in inits):
            entries.append(_entries(self.history, _ragged(inits, [init.tokens for init in inits]), upload))

        def apply(sent: Sequence[Tensor]) -> None:
            rows_I = sent[rows]
            limit_I, computed_I = sent[numbers].view(-1, 2).unbind(1)
            for table in self.block_tables:
                if table is not None:
                    table.index_fill_(0, rows_I, 0)
            for index, at in slots.items():
                table = self.state_slots[index]
                assert table is not None
                table.index_copy_(0, rows_I, sent[at].view(len(inits), -1))
            self.limit.index_copy_(0, rows_I, limit_I)
            self.computed.index_copy_(0, rows_I, computed_I)
            self.last_token.index_fill_(0, rows_I, 0)
            self.cur_slot.index_fill_(0, rows_I, 0)
            if self.drafts.shape[1]:
                self.drafts.index_fill_(0, rows_I, -1)
            for write in entries:
                write(sent)

        return apply


def _ragged(inits: Sequence[RowInit], values: Sequence[Sequence[int]]) -> np.ndarray:
    """[3, E]: row, place and value of each entry."""
    lengths = [len(own) for own in values]
    rows = np.repeat([init.row for init in inits], lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    return np.stack((rows, places, np.concatenate([np.asarray(own, np.int64) for own in values])))


def _entries(table: Tensor, entries_3E: np.ndarray, upload: Upload) -> Callable[[Sequence[Tensor]], None]:
    at = upload.add(entries_3E)

    def write(sent: Sequence[Tensor]) -> None:
        rows_E, places_E, values_E = sent[at].view(3, -1).unbind(0)
        table.index_put_((rows_E, places_E), values_E.to(table.dtype))

    return write
