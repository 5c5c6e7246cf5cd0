"""A sampled step on its way to the host, and how it becomes plain data.

Does not: wait for the device before `to_host`, so that the next forward can be launched meanwhile.

Shape letters: B rows of the step, U uniform rows, Q their query length, N sampled prefill rows, K drafts, C
checkpoints.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.errors import EngineError
from vtcore.execution.staging import Results
from vtcore.interfaces.batch import RowResult, ScheduledBatch, StepResult, TokenLogprobs
from vtcore.sampling.sampler import SampleOutput


class SampledStep:
    """What a step emitted.

    Args:
        computed_B: The rows' lengths before the step.
        emitted_U: Tokens each uniform row emits.
        output: Samples of all logit rows: U * Q of the uniform rows, N, then one per fork. None when nothing
            was sampled.
        drafts_BK: Drafts of every row after the step; None without a drafter.
        prompt: Prompt log probabilities, one tuple per prefill row.
        kept_C: 1 for each checkpoint that was written; None when the batch has none.

    All int64; copies towards the host start here, so that later steps may overwrite the tensors.
    """

    def __init__(
        self,
        batch: ScheduledBatch,
        computed_B: Tensor,
        emitted_U: Tensor,
        output: SampleOutput | None,
        drafts_BK: Tensor | None,
        prompt: tuple[tuple[TokenLogprobs, ...], ...],
        kept_C: Tensor | None,
    ) -> None:
        self._batch = batch
        self._output = output
        self._prompt = prompt
        self._has_drafts, self._has_kept = drafts_BK is not None, kept_C is not None
        ids_N = computed_B[:0] if output is None else output.ids_N
        optional = [tensor for tensor in (drafts_BK, kept_C) if tensor is not None]
        self._results = Results([computed_B, emitted_U, ids_N, *optional])

    def to_host(self) -> StepResult:
        """Wait for the device and take everything over.

        Raises:
            EngineError: A prefill row did not start where the device stood.
        """
        batch, query = self._batch, 1 + self._batch.num_drafts_in
        computed, emitted, ids, *optional = (array.tolist() for array in self._results.wait())
        drafts = optional.pop(0) if self._has_drafts else None
        kept = optional.pop(0) if self._has_kept else ()
        logprobs = [] if self._output is None else self._output.logprobs
        self._check_starts(computed)
        spans = [(i * query, i * query + count) for i, count in enumerate(emitted)]
        at = len(batch.uniform) * query
        for prefill in batch.prefill:
            spans.append((at, at + prefill.sample))
            at += prefill.sample
        prompt = ((),) * len(batch.uniform) + self._prompt
        rows = (*batch.uniform, *(p.row for p in batch.prefill))
        place = {row: index for index, row in enumerate(rows)}
        forks = tuple(
            RowResult(
                fork.child,
                computed[place[fork.parent]],
                (ids[at + index],),
                tuple(entry for entry in logprobs[at + index : at + index + 1] if entry is not None),
            )
            for index, fork in enumerate(batch.forks)
        )
        return StepResult(
            batch.step,
            tuple(
                RowResult(
                    row,
                    computed[index],
                    tuple(ids[start:end]),
                    tuple(entry for entry in logprobs[start:end] if entry is not None),
                    () if drafts is None else tuple(drafts[index]),
                    prompt[index],
                )
                for index, (row, (start, end)) in enumerate(zip(rows, spans, strict=True))
            )
            + forks,
            tuple(map(bool, kept)),
        )

    def _check_starts(self, computed: list[int]) -> None:
        """Prefill positions come from the host and must be where the device stood."""
        starts = [p.start for p in self._batch.prefill]
        found = computed[len(self._batch.uniform) :]
        if found != starts:
            raise EngineError(
                f"step {self._batch.step}: prefill starts at {starts}, the device stands at {found}"
            )
