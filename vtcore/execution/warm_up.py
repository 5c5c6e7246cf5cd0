"""Steps over the null row that stand for everything an engine will run: to measure, to compile, to warm up.

Does not: touch a request. The null row has no blocks and no slots, so such a step changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.batch import PrefillRow, ScheduledBatch


def null_batch(uniform: int, num_drafts_in: int, prefill: Sequence[int] = ()) -> ScheduledBatch:
    """A step of null rows.

    Args:
        uniform: Uniform rows.
        num_drafts_in: Drafts that each of them verifies.
        prefill: Tokens of each prefill row; all yield a token.
    """
    return ScheduledBatch(
        step=-1,
        num_drafts_in=num_drafts_in if uniform else 0,
        num_drafts_out=0,
        max_context=1 + num_drafts_in,
        deltas=(),
        inits=(),
        before=(),
        uniform=(0,) * uniform,
        prefill=tuple(PrefillRow(row=0, start=0, ids=(0,) * length, sample=True) for length in prefill),
    )


def largest_batches(max_num_seqs: int, budget: int, max_model_len: int, k_max: int) -> list[ScheduledBatch]:
    """The steps that need most memory: all rows decoding; the whole budget in as few rows as may be, and in
    as many."""
    whole, rest = divmod(budget, max_model_len)
    few = [max_model_len] * whole + [rest] * bool(rest)
    rows = min(max_num_seqs, budget)
    many = [min(budget // rows, max_model_len)] * rows
    fitting = min(max_num_seqs, max(1, budget // (1 + k_max)))
    return [null_batch(fitting, k_max), null_batch(0, 0, few[:max_num_seqs]), null_batch(0, 0, many)]


def all_batches(
    sizes: Sequence[int], captured_k: Sequence[int], max_num_seqs: int, budget: int, max_model_len: int
) -> Iterator[ScheduledBatch]:
    """One step of every kind: each captured size, chunks of each power of two up to the budget, and mixtures.

    Args:
        sizes: Captured batch buckets.
        budget: Tokens of a step at most.
    """
    for k in captured_k:
        for size in sizes:
            yield null_batch(size, k)
    length = 1
    while length < budget:
        rows = [min(length, max_model_len)]
        yield null_batch(0, 0, rows)
        if max_num_seqs > 1 and length + 1 <= budget:
            yield null_batch(1, 0, rows)
        length *= 2
    yield from largest_batches(max_num_seqs, budget, max_model_len, max(captured_k))
    if max_num_seqs > 2:
        yield null_batch(0, 0, [min(budget // 2, max_model_len)] * 2)


def run_null(runner: ModelRunner, batch: ScheduledBatch) -> None:
    """Run such a step, and sample it with greedy and with random rows."""
    runner.forward(batch)
    runner.sample(batch.step, is_random=False, stays=True)
    runner.sample(batch.step, is_random=True)
