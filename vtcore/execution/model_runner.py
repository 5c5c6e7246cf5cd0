"""Runs one step on the device: tables, copies, forward; then head, sampling, state commit, drafts.

Does not: see requests, pools or policies; a batch says everything it may know.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, P prefill rows, N
sampled prefill rows, K drafts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.sampled_step import SampledStep
from vtcore.execution.step_builder import PreparedStep, StepBuilder
from vtcore.execution.tables import DeviceTables
from vtcore.execution.unit_copies import UnitCopies
from vtcore.interfaces.batch import RowMasks, ScheduledBatch, TokenLogprobs
from vtcore.interfaces.model_arch import ForwardOutput, Model
from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.sampling.logprobs import prompt_logprobs
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import SampleOutput, Sampler
from vtcore.speculation.drafter import Drafter, DraftView
from vtcore.speculation.verify import accept_matching


@frozen(eq=False)
class _Launched:
    """A step between its forward and its sampling.

    Args:
        sampling: Indices into batch.prefill of the rows that yield a token.
        fork_spans: Index into batch.prefill of each fork's parent.
        uses_history: Whether a row of the step, or the drafter, reads the history column.
    """

    batch: ScheduledBatch
    prepared: PreparedStep
    output: ForwardOutput
    sampling: list[int]
    fork_spans: list[int]
    uses_history: bool


class ModelRunner:
    """One model on one device, with the tables its rows live in.

    Args:
        caches: Layer name -> cache tensors, the drafter's layers included; borrowed.
        vocab_size: Token ids are below it.
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
        self._model = model
        self._drafter = drafter
        self._device = device
        self._builder = StepBuilder(plan, self.tables, vocab_size, device)
        self._copies = UnitCopies(plan, caches, k_max, device)
        self._launched: dict[int, _Launched] = {}
        self._illegal_drafts = torch.zeros((), dtype=torch.int64, device=device)
        if drafter is not None:
            drafter.bind(self.tables, caches, vocab_size)

    @property
    def num_illegal_drafts(self) -> int:
        """Drafts so far that were neither -1 nor a token id; waits for the device."""
        return int(self._illegal_drafts)

    def drop_launched(self) -> None:
        """Forget steps whose sampling will never be asked for."""
        self._launched.clear()

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> None:
        """Apply the batch's deltas, inits and copies, in that order, and run the model."""
        self.tables.apply(batch.deltas, batch.inits)
        for init in batch.inits:
            self.params.set(init.row, init.params, init.prompt_len)
        if self._drafter is not None and batch.inits:
            self._drafter.admit(batch.inits)
        self._copies.run(batch.before)
        prepared = self._builder.build(batch)
        self._assert_starts(batch, prepared)
        output = self._model.forward(prepared.inputs)
        if prepared.num_illegal is not None:
            self._illegal_drafts += prepared.num_illegal
        rows = (*batch.uniform, *(p.row for p in batch.prefill), *(f.child for f in batch.forks))
        span_of = {p.row: index for index, p in enumerate(batch.prefill)}
        drafter_reads = self._drafter is not None and self._drafter.needs_history
        self._launched[batch.step] = _Launched(
            batch,
            prepared,
            output,
            [i for i, p in enumerate(batch.prefill) if p.sample],
            [span_of[fork.parent] for fork in batch.forks],
            drafter_reads or self.params.needs_history(rows),
        )

    @torch.inference_mode()
    def sample(self, step: int, masks: Sequence[RowMasks] = ()) -> SampledStep:
        """Finish a launched step: emit tokens, move the rows on, propose drafts.

        Args:
            masks: Host masks of live rows; a row without one is unmasked.
        """
        launched = self._launched.pop(step)
        inputs, uniform = launched.prepared.inputs, len(launched.batch.uniform)
        query = inputs.query_len
        self._place_drafts(launched)
        output = self._sample_rows(launched, masks)
        ids = torch.zeros(0, dtype=torch.int64, device=self._device) if output is None else output.ids_N
        num_own = uniform * query + len(launched.sampling)
        sampled_UQ = ids[: uniform * query].view(uniform, query)
        emitted_U = inputs.query_lens[:uniform]
        if query > 1:
            emitted_U = accept_matching(sampled_UQ, launched.prepared.drafts_UK, emitted_U)
        drafts_BK = self._commit(launched, sampled_UQ, ids[uniform * query : num_own], emitted_U)
        kept_C = None
        if launched.batch.checkpoints:
            kept_C = self._copies.keep_states(launched.batch, inputs, self.tables)
        if launched.batch.forks:
            self._start_forks(launched, ids[num_own:])
        prompt = tuple(self._prompt_logprobs(launched, index) for index in range(len(launched.batch.prefill)))
        return SampledStep(launched.batch, inputs.computed, emitted_U, output, drafts_BK, prompt, kept_C)

    def _start_forks(self, launched: _Launched, first_F: Tensor) -> None:
        """Place the forks where their parents stand, each with its own token, over copies of its own."""
        batch, tables, inputs = launched.batch, self.tables, launched.prepared.inputs
        rows_F = torch.tensor([fork.child for fork in batch.forks], device=self._device)
        parents_F = torch.tensor(launched.fork_spans, device=self._device) + len(batch.uniform)
        ends_F = inputs.computed.index_select(0, parents_F) + inputs.query_lens.index_select(0, parents_F)
        tables.computed.index_copy_(0, rows_F, ends_F)
        tables.last_token.index_copy_(0, rows_F, first_F)
        if launched.uses_history:
            tables.history[rows_F, ends_F] = first_F.to(tables.history.dtype)
        self._copies.run(batch.after)

    def _assert_starts(self, batch: ScheduledBatch, prepared: PreparedStep) -> None:
        """Prefill positions come from the host and must be where the device stands."""
        if not batch.prefill:
            return
        starts = [p.start for p in batch.prefill]
        found = prepared.inputs.computed[len(batch.uniform) :].tolist()
        if found != starts:
            raise EngineError(f"step {batch.step}: prefill starts at {starts}, the device stands at {found}")

    def _place_drafts(self, launched: _Launched) -> None:
        """Put drafts where the tokens they propose would stand, so each query row sees those before it."""
        k, uniform = launched.batch.num_drafts_in, len(launched.batch.uniform)
        if not k or not uniform or not launched.uses_history:
            return
        rows_U, computed_U = launched.prepared.rows_B[:uniform], launched.prepared.inputs.computed[:uniform]
        positions_UK = computed_U.unsqueeze(1) + torch.arange(1, 1 + k, device=self._device)
        drafts_UK = launched.prepared.drafts_UK.clamp(min=0)
        self.tables.history[rows_U.unsqueeze(1), positions_UK] = drafts_UK.to(self.tables.history.dtype)

    def _sample_rows(self, launched: _Launched, masks: Sequence[RowMasks]) -> SampleOutput | None:
        """Sample every logit row: all query rows of uniform rows, the last of each sampling prefill row."""
        batch, inputs = launched.batch, launched.prepared.inputs
        uniform, query = len(batch.uniform), inputs.query_len
        if not uniform and not launched.sampling:
            return None
        num_uniform = inputs.num_uniform_tokens
        hidden_NH, positions_N = launched.output.hidden[:num_uniform], inputs.positions[:num_uniform] + 1
        if launched.sampling:
            spans = [inputs.prefill[i] for i in launched.sampling]
            last_N = torch.tensor([s.offset + s.length - 1 for s in spans], device=self._device)
            hidden_NH = torch.cat((hidden_NH, launched.output.hidden.index_select(0, last_N)))
            positions_N = torch.cat((positions_N, inputs.positions.index_select(0, last_N) + 1))
        logits_NV = self._model.logits(hidden_NH)
        rows = [row for row in batch.uniform for _ in range(query)]
        rows += [batch.prefill[i].row for i in launched.sampling]
        if batch.forks:
            own = {span: num_uniform + place for place, span in enumerate(launched.sampling)}
            parents_F = torch.tensor([own[span] for span in launched.fork_spans], device=self._device)
            logits_NV = torch.cat((logits_NV, logits_NV.index_select(0, parents_F)))
            positions_N = torch.cat((positions_N, positions_N.index_select(0, parents_F)))
            rows += [fork.child for fork in batch.forks]
        history = self.tables.history if launched.uses_history else None
        flat_masks = _flat_masks(rows, uniform * query, query, masks) if masks else None
        return self.sampler.sample(logits_NV, rows, positions_N, history, flat_masks)

    def _commit(
        self, launched: _Launched, sampled_UQ: Tensor, first_N: Tensor, emitted_U: Tensor
    ) -> Tensor | None:
        """Write the device-owned columns: lengths, last tokens, state column, history, drafts."""
        batch, inputs, tables = launched.batch, launched.prepared.inputs, self.tables
        rows_B, uniform, num_prefill = launched.prepared.rows_B, len(batch.uniform), len(batch.prefill)
        new_B, column_B = emitted_U, emitted_U - 1
        next_B = sampled_UQ.gather(1, column_B.unsqueeze(1)).squeeze(1)
        if num_prefill:
            new_B = torch.cat((emitted_U, inputs.query_lens[uniform:]))
            column_B = torch.cat((column_B, column_B.new_zeros(num_prefill)))
            # A chunk that does not end the prompt is followed by a token the host knows.
            next_P = torch.tensor([p.next_id or 0 for p in batch.prefill], device=self._device)
            if launched.sampling:
                next_P[launched.sampling] = first_N
            next_B = torch.cat((next_B, next_P))
        tables.computed.index_copy_(0, rows_B, inputs.computed + new_B)
        tables.last_token.index_copy_(0, rows_B, next_B)
        if tables.drafts.shape[1]:
            tables.cur_slot.index_copy_(0, rows_B, column_B)
        if launched.uses_history:
            self._write_history(launched, sampled_UQ, next_B[uniform:])
        return None if self._drafter is None else self._draft(self._drafter, launched, new_B, next_B)

    def _write_history(self, launched: _Launched, sampled_UQ: Tensor, next_P: Tensor) -> None:
        inputs, history = launched.prepared.inputs, self.tables.history
        rows_B, uniform = launched.prepared.rows_B, len(launched.batch.uniform)
        if uniform:
            ahead_Q = torch.arange(1, 1 + inputs.query_len, device=self._device)
            positions_UQ = inputs.computed[:uniform].unsqueeze(1) + ahead_Q
            # Samples past the accepted run land beyond the known tokens, where nothing reads before a write.
            history[rows_B[:uniform].unsqueeze(1), positions_UQ] = sampled_UQ.to(history.dtype)
        if launched.batch.prefill:
            ends_P = inputs.computed[uniform:] + inputs.query_lens[uniform:]
            history[rows_B[uniform:], ends_P] = next_P.to(history.dtype)

    def _draft(self, drafter: Drafter, launched: _Launched, new_B: Tensor, next_B: Tensor) -> Tensor:
        """Let the drafter follow the step and fill the drafts column of the sampled rows."""
        batch, rows_B = launched.batch, launched.prepared.rows_B
        uniform = len(batch.uniform)
        sampled = [*range(uniform), *(uniform + i for i in launched.sampling)]
        sampled_N = torch.tensor(sampled, dtype=torch.int64, device=self._device)
        view = DraftView(
            step=launched.prepared.inputs,
            hidden_TH=launched.output.hidden,
            aux_TX=launched.output.aux,
            rows_B=rows_B,
            num_new_B=new_B,
            next_token_B=next_B,
            sampled_N=sampled_N,
        )
        drafter.ingest(view)
        rows_N = rows_B[sampled_N]
        self.tables.drafts[rows_N] = -1
        k = batch.num_drafts_out
        if k and sampled:
            self.tables.drafts[rows_N, :k] = drafter.propose(view, k)
        return self.tables.drafts.index_select(0, rows_B)

    def _prompt_logprobs(self, launched: _Launched, index: int) -> tuple[TokenLogprobs, ...]:
        prefill = launched.batch.prefill[index]
        if prefill.prompt_logprobs is None or not prefill.targets:
            return ()
        span = launched.prepared.inputs.prefill[index]
        hidden_PH = launched.output.hidden[span.offset : span.offset + len(prefill.targets)]
        targets = torch.tensor(prefill.targets, device=self._device)
        return tuple(prompt_logprobs(self._model.logits, hidden_PH, targets, prefill.prompt_logprobs))


def _flat_masks(
    rows: list[int], num_uniform: int, query: int, masks: Sequence[RowMasks]
) -> list[bytes | None]:
    """One mask per logit row: by query row for uniform rows, the first for prefill rows."""
    by_row = {entry.row: entry.masks for entry in masks}
    flat: list[bytes | None] = []
    for index, row in enumerate(rows):
        own = by_row.get(row)
        position = index % query if index < num_uniform else 0
        flat.append(None if own is None else own[position])
    return flat
