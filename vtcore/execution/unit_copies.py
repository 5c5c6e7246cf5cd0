"""Copies of whole units on the device: zeroed, restored, forked, and states kept for later requests.

Does not: decide which; a batch names every unit.

Shape letters: C checkpoints of a step, B rows of the step, R table rows, S state columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import Checkpoint, CopyOp, ScheduledBatch
from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore.kv_cache.planner import MemoryPlan


class UnitCopies:
    """The cache tensors by pool.

    Args:
        caches: Layer name -> cache tensors; borrowed.
        k_max: Drafts verified per step at most.
    """

    def __init__(self, plan: MemoryPlan, caches: Mapping[str, LayerCache], k_max: int, device: str) -> None:
        self._device = device
        # Every tensor, and whether a fresh unit of it starts at zero.
        self._units: list[list[tuple[Tensor, bool]]] = [[] for _ in plan.pools]
        for index, pool in enumerate(plan.pools):
            for spec in pool.specs:
                for name, tensor_spec in spec.tensors(k_max).items():
                    tensors = [(caches[layer][name], tensor_spec.zeroed) for layer in spec.layers]
                    self._units[index] += tensors

    def run(self, ops: Sequence[CopyOp]) -> None:
        """Copy units, in order.

        Raises:
            EngineError: A copy names the null unit as its destination.
        """
        for op in ops:
            if op.dst == 0:
                raise EngineError("a copy names the null unit as its destination")
            for tensor, is_zeroed in self._units[op.pool]:
                if op.src:
                    tensor[op.dst] = tensor[op.src]
                elif is_zeroed:
                    tensor[op.dst].zero_()

    def keep_states(self, batch: ScheduledBatch, inputs: StepInputs, tables: DeviceTables) -> Tensor:
        """Copy the states that rows have at the wanted positions, if the step took them there.

        Args:
            inputs: Of the step. tables: Already moved on by it.

        Returns:
            [C] bool, whether each was; the others' slots are as they were.
        """
        wanted: tuple[Checkpoint, ...] = batch.checkpoints
        pool = wanted[0].pool
        slots_RS = tables.state_slots[pool]
        assert slots_RS is not None
        index_of = {row: b for b, row in enumerate((*batch.uniform, *(p.row for p in batch.prefill)))}
        numbers = [(c.row, index_of[c.row], c.position, c.dst) for c in wanted]
        rows_C, index_C, position_C, dst_C = torch.tensor(numbers, device=self._device).unbind(1)
        before_C, now_C = inputs.computed.index_select(0, index_C), tables.computed.index_select(0, rows_C)
        is_prefill_C = index_C >= len(batch.uniform)
        # Query row r of a uniform row left its state in column r; a chunk left its end's in column 0.
        column_C = (position_C - before_C - 1).clamp(0, slots_RS.shape[1] - 1).masked_fill(is_prefill_C, 0)
        is_end_C = ~is_prefill_C | (position_C == now_C)
        is_kept_C = (before_C < position_C) & (position_C <= now_C) & is_end_C
        src_C = slots_RS[rows_C, column_C]
        for tensor, _ in self._units[pool]:
            shape = (-1,) + (1,) * (tensor.dim() - 1)
            kept = torch.where(is_kept_C.view(shape), tensor[src_C], tensor[dst_C])
            tensor.index_copy_(0, dst_C, kept)
        return is_kept_C
