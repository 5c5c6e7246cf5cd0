"""Which steps stand for all that an engine will run: no row too long, no step too large, every kind once."""

from __future__ import annotations

import pytest

from vtcore.execution.step_graphs import batch_buckets
from vtcore.execution.warm_up import all_batches, largest_batches, null_batch
from vtcore.interfaces.batch import ScheduledBatch

LIMITS = [
    # max_num_seqs, budget, max_model_len
    (1, 1, 1),
    (1, 160, 160),
    (1, 7, 160),
    (2, 2, 1),
    (3, 192, 160),
    (3, 480, 160),
    (5, 5, 160),
    (9, 100, 64),
    (256, 256, 16),
    (257, 8192, 4096),
    (257, 8192, 100_000),
]


def lengths(batch: ScheduledBatch) -> list[int]:
    return [len(row.ids) for row in batch.prefill]


def num_tokens(batch: ScheduledBatch) -> int:
    return len(batch.uniform) * (1 + batch.num_drafts_in) + sum(lengths(batch))


def test_a_null_step_holds_null_rows_that_all_yield_a_token() -> None:
    batch = null_batch(2, 3, [4, 1])
    assert (batch.uniform, batch.num_drafts_in, batch.max_context) == ((0, 0), 3, 4)
    assert [(row.row, row.start, row.ids, row.sample) for row in batch.prefill] == [
        (0, 0, (0, 0, 0, 0), True),
        (0, 0, (0,), True),
    ]
    assert (batch.deltas, batch.inits, batch.before, batch.num_drafts_out) == ((), (), (), 0)
    assert null_batch(0, 3, [1]).num_drafts_in == 0


@pytest.mark.parametrize(
    ("limits", "few", "many"),
    [
        ((1, 1, 1), [1], [1]),
        ((1, 160, 160), [160], [160]),
        ((3, 192, 160), [160, 32], [64, 64, 64]),
        ((3, 480, 160), [160] * 3, [160] * 3),
        ((3, 481, 160), [160] * 3, [160] * 3),
        ((9, 100, 64), [64, 36], [11] * 9),
        ((5, 3, 160), [3], [1] * 3),
    ],
)
def test_the_largest_steps_are_all_rows_and_the_budget_in_few_rows_and_in_many(
    limits: tuple[int, int, int], few: list[int], many: list[int]
) -> None:
    decoding, *prefills = largest_batches(*limits, 0)
    assert (len(decoding.uniform), decoding.prefill) == (min(limits[:2]), ())
    assert [lengths(batch) for batch in prefills] == [few, many]
    assert not any(batch.uniform for batch in prefills)


@pytest.mark.parametrize("k_max", [0, 1, 3])
@pytest.mark.parametrize("limits", LIMITS)
def test_the_largest_steps_are_steps_that_an_engine_may_run(limits: tuple[int, int, int], k_max: int) -> None:
    max_num_seqs, budget, max_model_len = limits
    decoding, few, many = largest_batches(*limits, k_max)
    # The scheduler lets one row verify its drafts whatever the budget.
    assert num_tokens(decoding) <= max(budget, 1 + k_max)
    assert num_tokens(decoding) + 1 + k_max > budget or len(decoding.uniform) == max_num_seqs
    assert num_tokens(few) == min(budget, max_num_seqs * max_model_len)
    assert budget - max_num_seqs < num_tokens(many) <= budget
    for batch in (decoding, few, many):
        assert 1 <= len(batch.uniform) + len(batch.prefill) <= max_num_seqs
        assert all(1 <= length <= max_model_len for length in lengths(batch))


@pytest.mark.parametrize("limits", [(1, 4096, 160), (2, 322, 160), (3, 8192, 1)])
def test_a_budget_beyond_all_rows_makes_no_row_longer_than_the_model(limits: tuple[int, int, int]) -> None:
    max_num_seqs, _, max_model_len = limits
    for batch in largest_batches(*limits, 0):
        assert all(length <= max_model_len for length in lengths(batch))
        assert num_tokens(batch) <= max_num_seqs * max_model_len


@pytest.mark.parametrize("limits", LIMITS)
def test_every_kind_of_step_is_run_once_and_none_that_cannot_be(limits: tuple[int, int, int]) -> None:
    max_num_seqs, budget, max_model_len = limits
    sizes = batch_buckets(max_num_seqs)
    batches = list(all_batches(sizes, (0,), max_num_seqs, budget, max_model_len))
    assert {len(batch.uniform) for batch in batches if not batch.prefill} == set(sizes)
    chunks = {length for batch in batches for length in lengths(batch)}
    most = min(budget, max_model_len)
    assert {2**i for i in range(most.bit_length()) if 2**i <= most} <= chunks
    assert most in chunks
    has_mixture = any(batch.uniform and batch.prefill for batch in batches)
    assert has_mixture == (max_num_seqs > 1 and budget > 1)
    for batch in batches:
        assert 1 <= num_tokens(batch) <= budget
        assert len(batch.uniform) + len(batch.prefill) <= max_num_seqs
        assert all(1 <= length <= max_model_len for length in lengths(batch))


def test_every_captured_number_of_drafts_is_run_in_every_size() -> None:
    batches = all_batches((1, 2, 3), (0, 1, 3), 3, 64, 64)
    kinds = {(len(batch.uniform), batch.num_drafts_in) for batch in batches if not batch.prefill}
    assert kinds == {(size, k) for size in (1, 2, 3) for k in (0, 1, 3)}
