"""Runs one step on the device: tables, copies, forward; then head, sampling, state commit, drafts.

Does not: see requests, pools or policies; a batch says everything it may know.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, P prefill rows, N
sampled prefill rows, K drafts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from vtcore.execution.sampled_step import SampledStep
from vtcore.execution.staged_sampling import StagedSampling, stage_sampling
from vtcore.execution.staging import Staging
from vtcore.execution.step_builder import PreparedStep, StepBuilder
from vtcore.execution.step_graphs import CapturedStep, StepGraphs
from vtcore.execution.step_timer import StepTimer
from vtcore.execution.tables import DeviceTables
from vtcore.execution.unit_copies import UnitCopies
from vtcore.interfaces.batch import RowMasks, ScheduledBatch, TokenLogprobs
from vtcore.interfaces.model_arch import ForwardOutput, Model
from vtcore.interfaces.step import StepInputs
from vtcore.kv_cache.allocator import Caches
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
        captured: The graph whose tensors `prepared` and `output` are views of; None for an eager forward.
        staged: What sampling needs from the host, already on the device.
        keep_states: Copies the checkpoints; None without any.
        copy_after: Copies what forks need.
        uses_history: Whether a row of the step, or the drafter, reads the history column.
    """

    batch: ScheduledBatch
    prepared: PreparedStep
    output: ForwardOutput
    captured: CapturedStep | None
    staged: StagedSampling
    keep_states: Callable[[StepInputs, DeviceTables], Tensor] | None
    copy_after: Callable[[], None]
    uses_history: bool


class ModelRunner:
    """One model on one device, with the tables its rows live in.

    Args:
        caches: The drafter's layers included; borrowed.
        ops: Op name -> function.
        vocab_size: Token ids are below it.
        k_max: Drafts verified per step at most.
        drafter: None means that nothing is ever proposed.
    """

    def __init__(
        self,
        model: Model,
        plan: MemoryPlan,
        caches: Caches,
        *,
        ops: Mapping[str, Callable[..., Any]],
        vocab_size: int,
        max_num_seqs: int,
        k_max: int = 0,
        drafter: Drafter | None = None,
        device: str = "cpu",
    ) -> None:
        self.tables = DeviceTables(plan, max_num_seqs, k_max, device)
        self.params = RowParamsTable(max_num_seqs + 1, vocab_size, device)
        self.sampler = Sampler(self.params, ops=ops)
        # torch's current GPU is a thread's own, and steps may run in another thread than the start.
        self._gpu = torch.device(device).index if device.startswith("cuda:") else None
        self.graphs: StepGraphs | None = None
        self.timer = StepTimer()
        self._model = model
        self._drafter = drafter
        self._staging = Staging(device)
        self._builder = StepBuilder(
            plan, self.tables, ops, vocab_size=vocab_size, max_rows=max_num_seqs, device=device
        )
        self._copies = UnitCopies(caches)
        self._commit_step = ops["commit_step"]
        self._launched: dict[int, _Launched] = {}
        self._illegal_drafts = torch.zeros((), dtype=torch.int64, device=device)
        if drafter is not None:
            drafter.bind(self.tables, caches.layers, vocab_size)

    @property
    def num_illegal_drafts(self) -> int:
        """Drafts so far that were neither -1 nor a token id; waits for the device."""
        return int(self._illegal_drafts)

    def _choose_gpu(self) -> None:
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)

    def drop_launched(self) -> None:
        """Forget steps whose sampling will never be asked for."""
        self._launched.clear()

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int], captured_k: Sequence[int]) -> StepGraphs:
        """Capture graphs of steps that have uniform rows only; later steps of such sizes replay them.

        Args:
            sizes: Batch buckets, in rows.
            captured_k: Drafts verified.

        Raises:
            CaptureError: The model cannot be captured; nothing has changed.
        """
        graphs = StepGraphs(
            lambda rows_B, k: self._builder.uniform(rows_B, k, 0),
            self._model.forward,
            # A drafter's part of the step is not captured, so neither is what comes before it.
            self._sample_captured if self._drafter is None else None,
            sizes,
            captured_k,
            self.tables.computed.device,
        )
        graphs.capture()
        self.graphs = graphs
        return graphs

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> None:
        """Apply the batch's deltas, inits and copies, in that order, and run the model."""
        self._choose_gpu()
        captured = None if self.graphs is None else self.graphs.find(batch)
        upload = self._staging.begin()
        apply = self.tables.stage(batch.deltas, batch.inits, upload)
        if captured is not None:
            rows = upload.add(captured.padded(batch.uniform))
        else:
            build = self._builder.stage(batch, upload)
        finish = stage_sampling(batch, upload)
        stage_states = self._copies.stage_states(batch, upload) if batch.checkpoints else None
        copy_before = self._copies.stage(batch.before, upload)
        copy_after = self._copies.stage(batch.after, upload)
        sent = upload.send()
        self.timer.forward_begins()
        apply(sent)
        for init in batch.inits:
            self.params.set(init.row, init.params, init.prompt_len)
        if batch.inits:
            self.sampler.admit([init.row for init in batch.inits])
            if self._drafter is not None:
                self._drafter.admit(batch.inits)
        copy_before(sent)
        if captured is not None:
            prepared, output = captured.replay(sent[rows])
        else:
            prepared = build(sent)
            output = self._model.forward(prepared.inputs)
        if batch.num_drafts_in:
            self._illegal_drafts += prepared.num_illegal
        table_rows = (*batch.uniform, *(p.row for p in batch.prefill), *(f.child for f in batch.forks))
        drafter_reads = self._drafter is not None and self._drafter.needs_history
        self._launched[batch.step] = _Launched(
            batch,
            prepared,
            output,
            captured,
            finish(sent),
            None if stage_states is None else partial(stage_states, sent),
            partial(copy_after, sent),
            drafter_reads or self.params.needs_history(table_rows),
        )
        self.timer.mark()

    @torch.inference_mode()
    def sample(
        self, step: int, masks: Sequence[RowMasks] = (), is_random: bool | None = None, stays: bool = False
    ) -> SampledStep:
        """Finish a launched step: emit tokens, move the rows on, propose drafts.

        Args:
            masks: Host masks of live rows; a row without one is unmasked.
            is_random: Whether rows may draw at random; None asks their parameters.
            stays: Whether the step may be sampled once more, which only a step of null rows can be.
        """
        self._choose_gpu()
        self.timer.mark()
        launched = self._launched[step] if stays else self._launched.pop(step)
        batch, captured = launched.batch, launched.captured
        can_replay = captured is not None and captured.can_sample and not launched.uses_history
        if captured is not None and can_replay and not masks and self.sampler.is_fast(batch.uniform):
            uniform = len(batch.uniform)
            if is_random is None:
                is_random = self.sampler.needs_random(batch.uniform)
            ids_N, emitted_U = captured.sample(is_random)
            output: SampleOutput | None = SampleOutput(ids_N[:uniform])
            computed_B, emitted_U = launched.prepared.inputs.computed[:uniform], emitted_U[:uniform]
            drafts_BK: Tensor | None = None
            prompt: tuple[tuple[TokenLogprobs, ...], ...] = ()
        else:
            if captured is not None:
                launched = evolve(launched, prepared=captured.cut(len(batch.uniform)))
            output, emitted_U, drafts_BK, prompt = self._sample_eagerly(launched, masks, is_random)
            computed_B = launched.prepared.inputs.computed
        kept_C = None
        if launched.keep_states is not None:
            kept_C = launched.keep_states(launched.prepared.inputs, self.tables)
        if batch.forks:
            assert output is not None
            self._start_forks(launched, output.ids_N[-len(batch.forks) :])
        sampled = SampledStep(batch, computed_B, emitted_U, output, drafts_BK, prompt, kept_C)
        self.timer.mark()
        return sampled

    def _sample_captured(
        self, prepared: PreparedStep, output: ForwardOutput, is_random: bool
    ) -> tuple[Tensor, Tensor]:
        """What graph B holds: ids of all logit rows, and how many tokens each row emits."""
        inputs, query = prepared.inputs, prepared.inputs.query_len
        rows_N = prepared.rows_B if query == 1 else prepared.rows_B.repeat_interleave(query)
        logits_NV = self._model.logits(output.hidden)
        ids_N = self.sampler.sample_fast(logits_NV, rows_N, inputs.positions + 1, is_random)
        emitted_U, next_U = inputs.query_lens, ids_N
        if query > 1:
            sampled_UQ = ids_N.view(-1, query)
            emitted_U = accept_matching(sampled_UQ, prepared.drafts_UK, emitted_U)
            next_U = sampled_UQ.gather(1, (emitted_U - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self._advance(prepared, emitted_U, next_U)
        return ids_N, emitted_U

    def _sample_eagerly(
        self, launched: _Launched, masks: Sequence[RowMasks], is_random: bool | None
    ) -> tuple[SampleOutput | None, Tensor, Tensor | None, tuple[tuple[TokenLogprobs, ...], ...]]:
        inputs, uniform = launched.prepared.inputs, len(launched.batch.uniform)
        query = inputs.query_len
        self._place_drafts(launched)
        output = self._sample_rows(launched, masks, is_random)
        ids = launched.prepared.rows_B[:0] if output is None else output.ids_N
        sampled_UQ = ids[: uniform * query].view(uniform, query)
        emitted_U = inputs.query_lens[:uniform]
        if query > 1:
            emitted_U = accept_matching(sampled_UQ, launched.prepared.drafts_UK, emitted_U)
        num_own = uniform * query + launched.staged.num_sampled
        drafts_BK = self._commit(launched, sampled_UQ, ids[uniform * query : num_own], emitted_U)
        prompt = tuple(self._prompt_logprobs(launched, index) for index in range(len(launched.batch.prefill)))
        return output, emitted_U, drafts_BK, prompt

    def _start_forks(self, launched: _Launched, first_F: Tensor) -> None:
        """Place the forks where their parents stand, each with its own token, over copies of its own."""
        tables, inputs, staged = self.tables, launched.prepared.inputs, launched.staged
        rows_F, parents_F = staged.fork_rows_F, staged.fork_parents_F
        ends_F = inputs.computed.index_select(0, parents_F) + inputs.query_lens.index_select(0, parents_F)
        tables.computed.index_copy_(0, rows_F, ends_F)
        tables.last_token.index_copy_(0, rows_F, first_F)
        if launched.uses_history:
            tables.history[rows_F, ends_F] = first_F.to(tables.history.dtype)
        launched.copy_after()

    def _place_drafts(self, launched: _Launched) -> None:
        """Put drafts where the tokens they propose would stand, so each query row sees those before it."""
        k, uniform = launched.batch.num_drafts_in, len(launched.batch.uniform)
        if not k or not uniform or not launched.uses_history:
            return
        rows_U, computed_U = launched.prepared.rows_B[:uniform], launched.prepared.inputs.computed[:uniform]
        positions_UK = computed_U.unsqueeze(1) + torch.arange(1, 1 + k, device=rows_U.device)
        drafts_UK = launched.prepared.drafts_UK.clamp(min=0)
        self.tables.history[rows_U.unsqueeze(1), positions_UK] = drafts_UK.to(self.tables.history.dtype)

    def _sample_rows(
        self, launched: _Launched, masks: Sequence[RowMasks], is_random: bool | None
    ) -> SampleOutput | None:
        """Sample every logit row: all query rows of uniform rows, the last of each sampling prefill row."""
        batch, inputs, staged = launched.batch, launched.prepared.inputs, launched.staged
        uniform, query = len(batch.uniform), inputs.query_len
        if not uniform and not staged.num_sampled:
            return None
        num_uniform = inputs.num_uniform_tokens
        hidden_NH, positions_N = launched.output.hidden[:num_uniform], inputs.positions[:num_uniform] + 1
        if staged.num_sampled:
            hidden_NH = torch.cat((hidden_NH, launched.output.hidden.index_select(0, staged.last_N)))
            positions_N = torch.cat((positions_N, inputs.positions.index_select(0, staged.last_N) + 1))
        logits_NV = self._model.logits(hidden_NH)
        if batch.forks:
            parents_F = staged.fork_logits_F
            logits_NV = torch.cat((logits_NV, logits_NV.index_select(0, parents_F)))
            positions_N = torch.cat((positions_N, positions_N.index_select(0, parents_F)))
        rows = staged.rows
        if not masks and not launched.uses_history and self.sampler.is_fast(rows):
            if is_random is None:
                is_random = self.sampler.needs_random(rows)
            return SampleOutput(self.sampler.sample_fast(logits_NV, staged.rows_N, positions_N, is_random))
        history = self.tables.history if launched.uses_history else None
        flat_masks = _flat_masks(rows, uniform * query, query, masks) if masks else None
        return self.sampler.sample(logits_NV, rows, positions_N, history, flat_masks)

    def _commit(
        self, launched: _Launched, sampled_UQ: Tensor, first_N: Tensor, emitted_U: Tensor
    ) -> Tensor | None:
        """Write the device-owned columns: lengths, last tokens, state column, history, drafts."""
        prepared, staged = launched.prepared, launched.staged
        uniform = prepared.inputs.num_uniform
        new_B = emitted_U
        next_B = sampled_UQ.gather(1, (emitted_U - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        if launched.batch.prefill:
            new_B = torch.cat((emitted_U, prepared.inputs.query_lens[uniform:]))
            # A chunk that does not end the prompt is followed by a token the host knows.
            next_P = staged.next_P
            if staged.num_sampled:
                next_P = next_P.index_copy(0, staged.sampling_N, first_N)
            next_B = torch.cat((next_B, next_P))
        self._advance(prepared, new_B, next_B)
        if launched.uses_history:
            self._write_history(launched, sampled_UQ, next_B[uniform:])
        return None if self._drafter is None else self._draft(self._drafter, launched, new_B, next_B)

    def _advance(self, prepared: PreparedStep, num_new_B: Tensor, next_token_B: Tensor) -> None:
        tables, inputs = self.tables, prepared.inputs
        self._commit_step(
            prepared.rows_B,
            inputs.computed,
            num_new_B,
            next_token_B,
            tables.computed,
            tables.last_token,
            tables.cur_slot if tables.drafts.shape[1] else None,
            inputs.num_uniform,
        )

    def _write_history(self, launched: _Launched, sampled_UQ: Tensor, next_P: Tensor) -> None:
        inputs, history = launched.prepared.inputs, self.tables.history
        rows_B, uniform = launched.prepared.rows_B, len(launched.batch.uniform)
        if uniform:
            ahead_Q = torch.arange(1, 1 + inputs.query_len, device=rows_B.device)
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
        sampled_N = torch.arange(uniform, device=rows_B.device)
        if launched.staged.num_sampled:
            sampled_N = torch.cat((sampled_N, uniform + launched.staged.sampling_N))
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
        if k and sampled_N.numel():
            self.tables.drafts[rows_N, :k] = drafter.propose(view, k)
        return self.tables.drafts.index_select(0, rows_B)

    def _prompt_logprobs(self, launched: _Launched, index: int) -> tuple[TokenLogprobs, ...]:
        prefill = launched.batch.prefill[index]
        if prefill.prompt_logprobs is None or not prefill.targets:
            return ()
        span = launched.prepared.inputs.prefill[index]
        hidden_PH = launched.output.hidden[span.offset : span.offset + len(prefill.targets)]
        targets = torch.tensor(prefill.targets, device=hidden_PH.device)
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
