"""Runs one step on the device: tables, copies, forward; then head, sampling, state commit, drafts.

Does not: see requests, pools or policies; a batch says everything it may know.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, N sampled rows,
K drafts, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.step_builder import PreparedStep, StepBuilder
from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import (
    CopyOp,
    RowMasks,
    RowResult,
    ScheduledBatch,
    StepResult,
    TokenLogprobs,
)
from vtcore.interfaces.model_arch import Model
from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.sampling.logprobs import prompt_logprobs
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler
from vtcore.speculation.drafter import Drafter, DraftView
from vtcore.speculation.verify import accept_matching


@frozen
class _Launched:
    """A step between its forward and its sampling."""

    batch: ScheduledBatch
    prepared: PreparedStep
    hidden_TH: Tensor


class ModelRunner:
    """One model on one device, with the tables its rows live in.

    Args:
        caches: Layer name -> cache tensors, the drafter's layers included; borrowed.
        vocab_size: V.
        k_max: Drafts verified per step at most.
        drafter: None means that nothing is ever proposed.
    """

    def __init__(
        self,
        model: Model,
        plan: MemoryPlan,
        caches: Mapping[str, LayerCache],
        *,
        vocab_size: int,
        max_num_seqs: int,
        k_max: int = 0,
        drafter: Drafter | None = None,
        device: str = "cpu",
    ) -> None:
        self.tables = DeviceTables(plan, max_num_seqs, k_max, device)
        self.params = RowParamsTable(max_num_seqs + 1, vocab_size, device)
        self.sampler = Sampler(self.params)
        self.num_illegal_drafts = 0
        self._model = model
        self._drafter = drafter
        self._device = device
        self._builder = StepBuilder(plan, self.tables, vocab_size, device)
        self._caches_of_pool = [
            [tensor for cache in caches.values() if cache.pool == index for tensor in cache.tensors.values()]
            for index in range(len(plan.pools))
        ]
        self._launched: dict[int, _Launched] = {}
        if drafter is not None:
            drafter.bind(self.tables, caches, vocab_size)

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> None:
        """Apply the batch's deltas, inits and copies, in that order, and run the model."""
        self.tables.apply(batch.deltas, batch.inits)
        for init in batch.inits:
            self.params.set(init.row, init.params, init.prompt_len)
        if self._drafter is not None and batch.inits:
            self._drafter.admit(batch.inits)
        for op in batch.before:
            self._copy(op)
        prepared = self._builder.build(batch)
        self._assert_starts(batch, prepared)
        output = self._model.forward(prepared.inputs)
        self._launched[batch.step] = _Launched(batch, prepared, output.hidden)

    @torch.inference_mode()
    def sample(self, step: int, masks: Sequence[RowMasks] = ()) -> StepResult:
        """Finish a launched step: emit tokens, move the rows on, propose drafts.

        Args:
            masks: Host masks of live rows; a row without one is unmasked.
        """
        launched = self._launched.pop(step)
        batch, prepared = launched.batch, launched.prepared
        step_inputs, uniform = prepared.inputs, len(batch.uniform)
        sampling = [i for i, p in enumerate(batch.prefill, start=uniform) if p.sample]
        self._place_drafts(batch, prepared)
        ids_N, logprobs = self._sample_rows(launched, sampling, masks)
        query = step_inputs.query_len
        sampled_UQ = ids_N[: uniform * query].view(uniform, query)
        if query == 1:
            emitted_U = step_inputs.query_lens[:uniform]
        else:
            emitted_U = accept_matching(sampled_UQ, prepared.drafts_UK, step_inputs.query_lens[:uniform])
        new_tokens_UQ, first_N = sampled_UQ, ids_N[uniform * query :]
        drafts_host = self._commit(launched, sampling, new_tokens_UQ, first_N, emitted_U)
        if prepared.num_illegal is not None:
            self.num_illegal_drafts += int(prepared.num_illegal)
        prompt = [
            self._prompt_logprobs(launched, index) for index in range(uniform, uniform + len(batch.prefill))
        ]
        return self._result(
            batch, step_inputs.computed, sampled_UQ, emitted_U, first_N, logprobs, drafts_host, prompt
        )

    def copy_unit(self, pool: int, src: int, dst: int) -> None:
        """Copy one unit of a pool in every layer; src 0 zeroes it."""
        self._copy(CopyOp(pool, src, dst))

    def _copy(self, op: CopyOp) -> None:
        if op.dst == 0:
            raise EngineError("a copy names the null unit as its destination")
        for tensor in self._caches_of_pool[op.pool]:
            if op.src == 0:
                tensor[op.dst].zero_()
            else:
                tensor[op.dst] = tensor[op.src]

    def _assert_starts(self, batch: ScheduledBatch, prepared: PreparedStep) -> None:
        """Prefill positions come from the host and must be where the device stands."""
        if not batch.prefill:
            return
        starts = [p.start for p in batch.prefill]
        found = prepared.inputs.computed[len(batch.uniform) :].tolist()
        if found != starts:
            raise EngineError(f"step {batch.step}: prefill starts at {starts}, the device stands at {found}")

    def _place_drafts(self, batch: ScheduledBatch, prepared: PreparedStep) -> None:
        """Put drafts where the tokens they propose would stand, so each query row sees those before it."""
        if not batch.num_drafts_in or not batch.uniform or not self._uses_history(batch):
            return
        uniform = len(batch.uniform)
        rows_U = prepared.rows_B[:uniform]
        ahead_K = torch.arange(1, 1 + batch.num_drafts_in, device=self._device)
        positions_UK = prepared.inputs.computed[:uniform].unsqueeze(1) + ahead_K
        self.tables.history[rows_U.unsqueeze(1), positions_UK] = prepared.drafts_UK.clamp(min=0)

    def _uses_history(self, batch: ScheduledBatch) -> bool:
        if self._drafter is not None and self._drafter.needs_history:
            return True
        return self.params.needs_history((*batch.uniform, *(p.row for p in batch.prefill)))

    def _sample_rows(
        self, launched: _Launched, sampling: list[int], masks: Sequence[RowMasks]
    ) -> tuple[Tensor, list[TokenLogprobs | None]]:
        """Sample every logit row: all query rows of uniform rows, the last of each sampling prefill row."""
        batch, step_inputs = launched.batch, launched.prepared.inputs
        uniform, query = len(batch.uniform), step_inputs.query_len
        if not uniform and not sampling:
            return torch.zeros(0, dtype=torch.int64, device=self._device), []
        num_uniform = step_inputs.num_uniform_tokens
        hidden_NH, positions_N = launched.hidden_TH[:num_uniform], step_inputs.positions[:num_uniform] + 1
        if sampling:
            spans = [step_inputs.prefill[i - uniform] for i in sampling]
            last = torch.tensor([s.offset + s.length - 1 for s in spans], device=self._device)
            hidden_NH = torch.cat((hidden_NH, launched.hidden_TH.index_select(0, last)))
            positions_N = torch.cat((positions_N, step_inputs.positions.index_select(0, last) + 1))
        rows = [row for row in batch.uniform for _ in range(query)]
        rows += [batch.prefill[i - uniform].row for i in sampling]
        history = self.tables.history if self.params.needs_history(rows) else None
        flat_masks = self._flat_masks(rows, uniform * query, query, masks) if masks else None
        output = self.sampler.sample(self._model.logits(hidden_NH), rows, positions_N, history, flat_masks)
        return output.ids_N, output.logprobs

    def _flat_masks(
        self, rows: list[int], num_uniform: int, query: int, masks: Sequence[RowMasks]
    ) -> list[bytes | None]:
        by_row = {entry.row: entry.masks for entry in masks}
        flat: list[bytes | None] = []
        for index, row in enumerate(rows):
            own = by_row.get(row)
            position = index % query if index < num_uniform else 0
            flat.append(None if own is None else own[position])
        return flat

    def _commit(
        self,
        launched: _Launched,
        sampling: list[int],
        sampled_UQ: Tensor,
        first_N: Tensor,
        emitted_U: Tensor,
    ) -> list[list[int]]:
        """Write the device-owned columns: lengths, last tokens, state column, history, drafts."""
        batch, step_inputs, tables = launched.batch, launched.prepared.inputs, self.tables
        rows_B, uniform = launched.prepared.rows_B, len(batch.uniform)
        computed_B = step_inputs.computed
        uses_history = self._uses_history(batch)
        num_prefill = len(batch.prefill)
        new_B, column_B = emitted_U, emitted_U - 1
        if num_prefill:
            new_B = torch.cat((emitted_U, step_inputs.query_lens[uniform:]))
            column_B = torch.cat((column_B, column_B.new_zeros(num_prefill)))
        last_U = sampled_UQ.gather(1, (emitted_U - 1).unsqueeze(1)).squeeze(1)
        next_B = self._next_tokens(batch, sampling, last_U, first_N)
        tables.computed.index_copy_(0, rows_B, computed_B + new_B)
        tables.last_token.index_copy_(0, rows_B, next_B)
        if tables.drafts.shape[1]:
            tables.cur_slot.index_copy_(0, rows_B, column_B)
        if uses_history:
            self._write_history(launched, sampling, sampled_UQ, first_N, emitted_U)
        if self._drafter is None:
            return []
        return self._draft(launched, sampling, new_B, next_B)

    def _next_tokens(
        self, batch: ScheduledBatch, sampling: list[int], last_U: Tensor, first_N: Tensor
    ) -> Tensor:
        """Token after each row's last committed query token: sampled, or known from the prompt."""
        if not batch.prefill:
            return last_U
        next_P = torch.tensor([p.next_id or 0 for p in batch.prefill], device=self._device)
        if sampling:
            next_P[[i - len(batch.uniform) for i in sampling]] = first_N
        return torch.cat((last_U, next_P))

    def _write_history(
        self,
        launched: _Launched,
        sampling: list[int],
        sampled_UQ: Tensor,
        first_N: Tensor,
        emitted_U: Tensor,
    ) -> None:
        batch, step_inputs, history = launched.batch, launched.prepared.inputs, self.tables.history
        rows_B, uniform = launched.prepared.rows_B, len(batch.uniform)
        if uniform:
            ahead_Q = torch.arange(1, 1 + step_inputs.query_len, device=self._device)
            positions_UQ = step_inputs.computed[:uniform].unsqueeze(1) + ahead_Q
            # Samples past the accepted run land beyond the known tokens, where nothing reads before a write.
            history[rows_B[:uniform].unsqueeze(1), positions_UQ] = sampled_UQ
        for position, index in enumerate(sampling):
            span = step_inputs.prefill[index - uniform]
            history[batch.prefill[index - uniform].row, span.start + span.length] = first_N[position]

    def _draft(
        self, launched: _Launched, sampling: list[int], new_B: Tensor, next_B: Tensor
    ) -> list[list[int]]:
        """Let the drafter follow the step and fill the drafts column of the sampled rows."""
        drafter, batch = self._drafter, launched.batch
        assert drafter is not None
        uniform = len(batch.uniform)
        sampled_N = torch.tensor([*range(uniform), *sampling], dtype=torch.int64, device=self._device)
        view = DraftView(
            launched.prepared.inputs, launched.hidden_TH, launched.prepared.rows_B, new_B, next_B, sampled_N
        )
        drafter.ingest(view)
        rows_N = launched.prepared.rows_B[sampled_N]
        self.tables.drafts[rows_N] = -1
        k = batch.num_drafts_out
        if k and len(sampled_N):
            self.tables.drafts[rows_N, :k] = drafter.propose(view, k)
        return self.tables.drafts[launched.prepared.rows_B].tolist()

    def _prompt_logprobs(self, launched: _Launched, index: int) -> tuple[TokenLogprobs, ...]:
        prefill = launched.batch.prefill[index - len(launched.batch.uniform)]
        if prefill.prompt_logprobs is None or not prefill.targets:
            return ()
        span = launched.prepared.inputs.prefill[index - len(launched.batch.uniform)]
        hidden_PH = launched.hidden_TH[span.offset : span.offset + len(prefill.targets)]
        targets = torch.tensor(prefill.targets, device=self._device)
        return tuple(prompt_logprobs(self._model.logits, hidden_PH, targets, prefill.prompt_logprobs))

    def _result(
        self,
        batch: ScheduledBatch,
        computed_B: Tensor,
        sampled_UQ: Tensor,
        emitted_U: Tensor,
        first_N: Tensor,
        logprobs: list[TokenLogprobs | None],
        drafts: list[list[int]],
        prompt: list[tuple[TokenLogprobs, ...]],
    ) -> StepResult:
        positions, sampled = computed_B.tolist(), sampled_UQ.tolist()
        emitted, first = emitted_U.tolist(), iter(first_N.tolist())
        query = 1 + batch.num_drafts_in
        entries = []
        for index, row in enumerate(batch.uniform):
            count = emitted[index]
            tokens = tuple(sampled[index][:count])
            entries.append((row, tokens, logprobs[index * query : index * query + count]))
        at = len(batch.uniform) * query
        for prefill in batch.prefill:
            tokens, own = (), []
            if prefill.sample:
                tokens, own = (next(first),), logprobs[at : at + 1]
                at += 1
            entries.append((prefill.row, tokens, own))
        no_prompt: list[tuple[TokenLogprobs, ...]] = [()] * len(batch.uniform)
        rows = tuple(
            RowResult(
                row,
                position,
                tokens,
                tuple(entry for entry in own if entry is not None),
                tuple(drafts[index]) if drafts else (),
                prompt_entries,
            )
            for index, ((row, tokens, own), position, prompt_entries) in enumerate(
                zip(entries, positions, no_prompt + prompt, strict=True)
            )
        )
        return StepResult(batch.step, rows)
