"""Turns a scheduled batch and the device tables into the tensors of one forward.

Does not: run the model. Lengths and slots of uniform rows are looked up on the device; the host never sends
them, and reads them back only where the naive ops of a CPU need them.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, K drafts in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.staging import Upload
from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.interfaces.kv_cache_spec import Window
from vtcore.interfaces.step import PagedPool, PrefillSpan, SlotPool, StepInputs
from vtcore.kv_cache.planner import MemoryPlan, PoolPlan


@frozen
class PreparedStep:
    """A step on the device.

    Args:
        rows_B: Table row of each batch row, int64; 0 for padding.
        drafts_UK: Drafts under verification, -1 or illegal from the first unused one on.
        num_illegal: Drafts that were neither -1 nor a token id, summed over rows; they count as -1.
    """

    inputs: StepInputs
    rows_B: Tensor
    drafts_UK: Tensor
    num_illegal: Tensor


@frozen
class _Prefill:
    """The prefill rows of a step, on the device; no tokens and no spans without any."""

    spans: tuple[PrefillSpan, ...]
    ids: Tensor
    positions: Tensor
    row_of_T: Tensor
    query_start: Tensor


class StepBuilder:
    """Builds `StepInputs` from the tables.

    Args:
        ops: Op name -> function.
        vocab_size: Ids outside 0..vocab_size-1 are illegal drafts.
        max_rows: Rows of a step at most, padding included.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        tables: DeviceTables,
        ops: Mapping[str, Callable[..., Any]],
        *,
        vocab_size: int,
        max_rows: int,
        device: str,
    ) -> None:
        self._plan = plan
        self._tables = tables
        self._vocab_size = vocab_size
        self._on_host = torch.device(device).type == "cpu"
        self._index_X = torch.arange(max_rows + 1, device=device)
        self._prepare_rows = ops["prepare_rows"]
        self._prepare_blocks = ops["prepare_blocks"]
        self._prepare_slots = ops["prepare_slots"]

    def stage(self, batch: ScheduledBatch, upload: Upload) -> Callable[[Sequence[Tensor]], PreparedStep]:
        """Add what the host knows of a step to an upload.

        Returns:
            What prepares the step, given the sent tensors; tables must already hold the batch's deltas and
            inits.
        """
        uniform, query = len(batch.uniform), 1 + batch.num_drafts_in
        has_null = not all(batch.uniform)
        rows = upload.add([*batch.uniform, *(p.row for p in batch.prefill)])
        if not batch.prefill:
            return lambda sent: self.uniform(sent[rows], batch.num_drafts_in, batch.max_context, has_null)
        spans, offset = [], uniform * query
        for index, row in enumerate(batch.prefill, start=uniform):
            spans.append(PrefillSpan(index, offset, len(row.ids), row.start, row.row == 0))
            offset += len(row.ids)
        lengths = [span.length for span in spans]
        ids = upload.add(np.concatenate([np.array(p.ids, np.int64) for p in batch.prefill]))
        positions = upload.add(np.concatenate([np.arange(s.start, s.start + s.length) for s in spans]))
        counts = np.array([query] * uniform + lengths, np.int64)
        row_of = upload.add(np.repeat(np.arange(len(counts)), counts))
        starts = upload.add(np.concatenate(([0], counts.cumsum())))

        def build(sent: Sequence[Tensor]) -> PreparedStep:
            prefill = _Prefill(tuple(spans), sent[ids], sent[positions], sent[row_of], sent[starts])
            return self._build(sent[rows], uniform, batch.num_drafts_in, batch.max_context, prefill, has_null)

        return build

    def uniform(
        self, rows_B: Tensor, num_drafts_in: int, max_context: int, has_null: bool = True
    ) -> PreparedStep:
        """Prepare a step of uniform rows only; launches kernels but copies nothing from the host.

        Args:
            rows_B: Table rows; 0 for padding.
            max_context: As in `ScheduledBatch`.
            has_null: Whether some row may be padding.
        """
        count, query = rows_B.shape[0], 1 + num_drafts_in
        starts_X = self._index_X[: count + 1]
        row_of_T = starts_X[:count]
        if query > 1:
            starts_X, row_of_T = starts_X * query, row_of_T.repeat_interleave(query)
        none = rows_B[:0]
        return self._build(
            rows_B, count, num_drafts_in, max_context, _Prefill((), none, none, row_of_T, starts_X), has_null
        )

    def _build(
        self,
        rows_B: Tensor,
        uniform: int,
        num_drafts_in: int,
        max_context: int,
        prefill: _Prefill,
        has_null: bool,
    ) -> PreparedStep:
        tables, query = self._tables, 1 + num_drafts_in
        drafts_UK = tables.drafts[:, :num_drafts_in].index_select(0, rows_B[:uniform])
        ids_T, positions_T, computed_B, query_lens_B, num_illegal = self._prepare_rows(
            rows_B,
            prefill.query_start,
            uniform,
            drafts_UK,
            self._vocab_size,
            tables.last_token,
            tables.computed,
            tables.limit,
        )
        if prefill.spans:
            ids_T = torch.cat((ids_T, prefill.ids))
            positions_T = torch.cat((positions_T, prefill.positions))
        shortest, writes_T = (query if self._on_host else 0), None
        if self._on_host:
            has_null_span = any(span.is_null for span in prefill.spans)
            if uniform and (query > 1 or has_null):
                lens_U = query_lens_B[:uniform]
                shortest = int(lens_U.min())
                if shortest < 1 and bool(((lens_U < 1) & (rows_B[:uniform] > 0)).any()):
                    raise EngineError("a row at its limit was launched")
            if shortest < query or has_null_span:
                writes_T = _valid_tokens(query_lens_B[:uniform], query, ids_T.shape[0], prefill.spans)

        def paged(index: int, pool: PoolPlan) -> PagedPool:
            table, size = tables.block_tables[index], self._plan.block_size
            assert table is not None
            table_BM, slots_T = self._prepare_blocks(
                rows_B,
                prefill.row_of_T,
                positions_T,
                computed_B,
                query_lens_B,
                uniform,
                query,
                table,
                size,
            )
            window = pool.lifetime.tokens if isinstance(pool.lifetime, Window) else None
            return PagedPool(size, window, table_BM, slots_T, writes_T)

        def slots(index: int) -> SlotPool:
            slots_RS = tables.state_slots[index]
            assert slots_RS is not None
            return SlotPool(*self._prepare_slots(rows_B, slots_RS, tables.cur_slot))

        inputs = StepInputs(
            ids=ids_T,
            positions=positions_T,
            num_uniform=uniform,
            query_len=query,
            prefill=prefill.spans,
            computed=computed_B,
            query_lens=query_lens_B,
            query_start=prefill.query_start,
            query_len_min=shortest,
            context_max=max_context,
            pools=tuple(
                slots(index) if pool.is_slot else paged(index, pool)
                for index, pool in enumerate(self._plan.pools)
            ),
        )
        return PreparedStep(inputs, rows_B, drafts_UK, num_illegal)


def _valid_tokens(lens_U: Tensor, query: int, num_tokens: int, spans: Sequence[PrefillSpan]) -> Tensor:
    """Indices of the tokens that write: all but those of cut queries and of rows that stand for none."""
    valid_UQ = torch.arange(query, device=lens_U.device) < lens_U.unsqueeze(1)
    tail = torch.ones(num_tokens - valid_UQ.numel(), dtype=torch.bool, device=lens_U.device)
    for span in spans:
        if span.is_null:
            first = span.offset - valid_UQ.numel()
            tail[first : first + span.length] = False
    return torch.cat((valid_UQ.reshape(-1), tail)).nonzero().squeeze(1)
