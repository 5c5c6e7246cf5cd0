"""Copies of whole units on the device: zeroed, restored, forked, and states kept for later requests.

Does not: decide which; a batch names every unit.

Shape letters: C checkpoints of a step, B rows of the step, R table rows, S state columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.staging import Upload
from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import CopyOp, ScheduledBatch
from vtcore.interfaces.step import StepInputs
from vtcore.kv_cache.allocator import Caches


class UnitCopies:
    """The cache tensors by pool.

    Args:
        caches: Borrowed.
    """

    def __init__(self, caches: Caches) -> None:
        self._pools = caches.pools

    def stage(self, ops: Sequence[CopyOp], upload: Upload) -> Callable[[Sequence[Tensor]], None]:
        """Add what copies need to an upload; units that are zeroed one after another are zeroed together.

        Returns:
            What copies, in order, given the sent tensors.

        Raises:
            EngineError: A copy names the null unit as its destination.
        """
        if any(op.dst == 0 for op in ops):
            raise EngineError("a copy names the null unit as its destination")
        steps: list[Callable[[Sequence[Tensor]], None]] = []
        for (pool, is_copy), group in groupby(ops, lambda op: (op.pool, op.src != 0)):
            if is_copy:
                steps.extend(partial(self._copy, op) for op in group)
            else:
                steps.append(partial(self._zero, pool, upload.add([op.dst for op in group])))

        def run(sent: Sequence[Tensor]) -> None:
            for step in steps:
                step(sent)

        return run

    def _copy(self, op: CopyOp, sent: Sequence[Tensor]) -> None:
        for tensor in self._pools[op.pool]:
            tensor.data[:, op.dst] = tensor.data[:, op.src]

    def _zero(self, pool: int, at: int, sent: Sequence[Tensor]) -> None:
        for tensor in self._pools[pool]:
            if tensor.zeroed:
                tensor.data.index_fill_(1, sent[at], 0)

    def stage_states(
        self, batch: ScheduledBatch, upload: Upload
    ) -> Callable[[Sequence[Tensor], StepInputs, DeviceTables], Tensor]:
        """Add a batch's checkpoints to an upload.

        Returns:
            What copies the states that rows have at the wanted positions, if the step took them there, given
            the sent tensors, the step's inputs and the tables it moved on: [C] int64, whether each was; the
            others' slots are as they were.
        """
        wanted = batch.checkpoints
        index_of = {row: b for b, row in enumerate((*batch.uniform, *(p.row for p in batch.prefill)))}
        numbers = [(c.row, index_of[c.row], c.position, c.dst) for c in wanted]
        at = upload.add(np.array(numbers, np.int64).T)
        tensors = self._pools[wanted[0].pool]

        def keep(sent: Sequence[Tensor], inputs: StepInputs, tables: DeviceTables) -> Tensor:
            slots_RS = tables.state_slots[wanted[0].pool]
            assert slots_RS is not None
            rows_C, index_C, position_C, dst_C = sent[at].view(4, -1).unbind(0)
            before_C, now_C = (
                inputs.computed.index_select(0, index_C),
                tables.computed.index_select(0, rows_C),
            )
            is_prefill_C = index_C >= len(batch.uniform)
            # Query row r of a uniform row left its state in column r; a chunk left its end's in column 0.
            column_C = (
                (position_C - before_C - 1).clamp(0, slots_RS.shape[1] - 1).masked_fill(is_prefill_C, 0)
            )
            is_end_C = ~is_prefill_C | (position_C == now_C)
            is_kept_C = (before_C < position_C) & (position_C <= now_C) & is_end_C
            src_C = slots_RS[rows_C, column_C]
            for tensor in tensors:
                shape = (1, -1) + (1,) * (tensor.data.dim() - 2)
                kept = torch.where(
                    is_kept_C.view(shape),
                    tensor.data.index_select(1, src_C),
                    tensor.data.index_select(1, dst_C),
                )
                tensor.data.index_copy_(1, dst_C, kept)
            return is_kept_C.long()

        return keep
