"""Turns a scheduled batch and the device tables into the tensors of one forward.

Does not: run the model. Lengths and slots of uniform rows are looked up on the device; the host never sends
them.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, K drafts in.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.interfaces.kv_cache_spec import Window
from vtcore.interfaces.step import PagedPool, PrefillSpan, SlotPool, StepInputs
from vtcore.kv_cache.planner import MemoryPlan, PoolPlan


@frozen
class PreparedStep:
    """A step on the device.

    Args:
        rows_B: Table row of each batch row, int64.
        drafts_UK: Drafts under verification, -1 or illegal from the first unused one on.
        num_illegal: Drafts that were neither -1 nor a token id, summed over rows; they count as -1.
    """

    inputs: StepInputs
    rows_B: Tensor
    drafts_UK: Tensor
    num_illegal: Tensor | None


class StepBuilder:
    """Builds `StepInputs` from the tables.

    Args:
        vocab_size: Ids outside 0..vocab_size-1 are illegal drafts.
    """

    def __init__(self, plan: MemoryPlan, tables: DeviceTables, vocab_size: int, device: str) -> None:
        self._plan = plan
        self._tables = tables
        self._vocab_size = vocab_size
        self._device = device

    def build(self, batch: ScheduledBatch) -> PreparedStep:
        """Prepare one step; tables must already hold the batch's deltas and inits."""
        tables, uniform = self._tables, len(batch.uniform)
        rows_B = torch.tensor(
            (*batch.uniform, *(p.row for p in batch.prefill)), dtype=torch.int64, device=self._device
        )
        computed_B = tables.computed.index_select(0, rows_B)
        rows_U, computed_U = rows_B[:uniform], computed_B[:uniform]
        query = 1 + batch.num_drafts_in
        drafts_UK = tables.drafts.index_select(0, rows_U)[:, : batch.num_drafts_in]
        ids_UQ = tables.last_token.index_select(0, rows_U).unsqueeze(1)
        lens_U, num_illegal, shortest = torch.ones_like(rows_U), None, 1
        positions_UQ = computed_U.unsqueeze(1)
        if query > 1 and uniform:
            legal_UK = (drafts_UK >= 0) & (drafts_UK < self._vocab_size)
            num_illegal = ((drafts_UK >= self._vocab_size) | (drafts_UK < -1)).sum()
            lens_U = 1 + legal_UK.long().cumprod(1).sum(1)
            # The query ends so that no row samples a position >= limit.
            lens_U = torch.minimum(lens_U, tables.limit.index_select(0, rows_U) - 1 - computed_U)
            ids_UQ = torch.cat((ids_UQ, drafts_UK.where(legal_UK, 0)), 1)
            # Tokens past a cut query stay at its last position, inside every table.
            ahead_Q = torch.arange(query, device=self._device)
            positions_UQ = positions_UQ + torch.minimum(ahead_Q, lens_U.unsqueeze(1) - 1)
            shortest = int(lens_U.min())
            if shortest < 1:
                raise EngineError(f"step {batch.step}: a row at its limit was launched")
        ids_T, positions_T = ids_UQ.reshape(-1), positions_UQ.reshape(-1)
        query_lens_B = lens_U
        spans: tuple[PrefillSpan, ...] = ()
        if batch.prefill:
            spans = self._spans(batch, uniform * query)
            prefill_ids = torch.tensor([i for p in batch.prefill for i in p.ids], device=self._device)
            prefill_positions = torch.cat(
                [torch.arange(s.start, s.start + s.length, device=self._device) for s in spans]
            )
            ids_T = torch.cat((ids_T, prefill_ids))
            positions_T = torch.cat((positions_T, prefill_positions))
            lens = torch.tensor([s.length for s in spans], device=self._device)
            query_lens_B = torch.cat((lens_U, lens))
        writes_T = None
        if shortest < query:
            writes_T = self._valid_tokens(lens_U, query, ids_T.shape[0])
        row_of_T = self._row_of_token(uniform, query, spans, rows_B)
        pools = tuple(
            self._slot_pool(index, rows_B)
            if pool.is_slot
            else self._paged_pool(index, pool, rows_B, row_of_T, positions_T, writes_T)
            for index, pool in enumerate(self._plan.pools)
        )
        inputs = StepInputs(
            ids=ids_T,
            positions=positions_T,
            num_uniform=uniform,
            query_len=query,
            prefill=spans,
            computed=computed_B,
            query_lens=query_lens_B,
            query_len_min=shortest if uniform else query,
            context_max=batch.max_context,
            pools=pools,
        )
        return PreparedStep(inputs, rows_B, drafts_UK, num_illegal)

    def _spans(self, batch: ScheduledBatch, offset: int) -> tuple[PrefillSpan, ...]:
        spans = []
        for index, row in enumerate(batch.prefill, start=len(batch.uniform)):
            spans.append(PrefillSpan(index, offset, len(row.ids), row.start))
            offset += len(row.ids)
        return tuple(spans)

    def _valid_tokens(self, lens_U: Tensor, query: int, num_tokens: int) -> Tensor:
        """Indices of the tokens that write: all but those of queries cut short."""
        valid_UQ = torch.arange(query, device=self._device) < lens_U.unsqueeze(1)
        tail = torch.ones(num_tokens - valid_UQ.numel(), dtype=torch.bool, device=self._device)
        return torch.cat((valid_UQ.reshape(-1), tail)).nonzero().squeeze(1)

    def _row_of_token(
        self, uniform: int, query: int, spans: tuple[PrefillSpan, ...], rows_B: Tensor
    ) -> Tensor:
        if query == 1 and not spans:
            return rows_B
        counts = torch.tensor([query] * uniform + [s.length for s in spans], device=self._device)
        return rows_B.repeat_interleave(counts)

    def _paged_pool(
        self,
        index: int,
        pool: PoolPlan,
        rows_B: Tensor,
        row_of_T: Tensor,
        positions_T: Tensor,
        writes_T: Tensor | None,
    ) -> PagedPool:
        table, size = self._tables.block_tables[index], self._plan.block_size
        assert table is not None
        blocks_T = table[row_of_T, positions_T // size]
        slots_T = blocks_T * size + positions_T % size
        if writes_T is not None:
            kept_T = torch.zeros_like(slots_T)
            kept_T[writes_T] = slots_T[writes_T]
            slots_T = kept_T
        window = pool.lifetime.tokens if isinstance(pool.lifetime, Window) else None
        return PagedPool(size, window, table.index_select(0, rows_B), slots_T, writes_T)

    def _slot_pool(self, index: int, rows_B: Tensor) -> SlotPool:
        slots = self._tables.state_slots[index]
        assert slots is not None
        write_BS = slots.index_select(0, rows_B)
        if write_BS.shape[1] == 1:
            return SlotPool(write_BS[:, 0], write_BS)
        current_B = self._tables.cur_slot.index_select(0, rows_B)
        return SlotPool(write_BS.gather(1, current_B.unsqueeze(1)).squeeze(1), write_BS)
