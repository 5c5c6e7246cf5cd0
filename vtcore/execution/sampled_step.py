"""A sampled step still on the device, and how it becomes plain data.

Does not: wait for the device before `to_host`, so that the next forward can be launched meanwhile.

Shape letters: B rows of the step, U uniform rows, Q their query length, N sampled prefill rows, K drafts.
"""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from vtcore.interfaces.batch import RowResult, ScheduledBatch, StepResult, TokenLogprobs
from vtcore.sampling.sampler import SampleOutput


@frozen(eq=False)
class SampledStep:
    """What a step emitted.

    Args:
        computed_B: The rows' lengths before the step.
        emitted_U: Tokens each uniform row emits.
        output: Samples of all logit rows: U * Q of the uniform rows, N, then one per fork. None when nothing
            was sampled.
        drafts_BK: Drafts of every row after the step; None without a drafter.
        prompt: Prompt log probabilities, one tuple per prefill row.
        kept_C: Whether each checkpoint was written; None when the batch has none.
    """

    batch: ScheduledBatch
    computed_B: Tensor
    emitted_U: Tensor
    output: SampleOutput | None
    drafts_BK: Tensor | None
    prompt: tuple[tuple[TokenLogprobs, ...], ...]
    kept_C: Tensor | None

    def to_host(self) -> StepResult:
        """Wait for the device and copy everything over."""
        batch, query = self.batch, 1 + self.batch.num_drafts_in
        ids = [] if self.output is None else self.output.ids_N.tolist()
        logprobs = [] if self.output is None else self.output.logprobs
        emitted, positions = self.emitted_U.tolist(), self.computed_B.tolist()
        drafts = None if self.drafts_BK is None else self.drafts_BK.tolist()
        spans = [(i * query, i * query + count) for i, count in enumerate(emitted)]
        at = len(batch.uniform) * query
        for prefill in batch.prefill:
            spans.append((at, at + prefill.sample))
            at += prefill.sample
        prompt = ((),) * len(batch.uniform) + self.prompt
        rows = (*batch.uniform, *(p.row for p in batch.prefill))
        place = {row: index for index, row in enumerate(rows)}
        forks = tuple(
            RowResult(
                fork.child,
                positions[place[fork.parent]],
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
                    positions[index],
                    tuple(ids[start:end]),
                    tuple(entry for entry in logprobs[start:end] if entry is not None),
                    () if drafts is None else tuple(drafts[index]),
                    prompt[index],
                )
                for index, (row, (start, end)) in enumerate(zip(rows, spans, strict=True))
            )
            + forks,
            () if self.kept_C is None else tuple(self.kept_C.tolist()),
        )
