"""Reported log probabilities come from the raw logits, with exact ranks, order and bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.batch import RowParams, TokenLogprobs
from vtcore.sampling.logprobs import logprobs_of, prompt_logprobs
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler


def reference(logits: list[float], token_id: int, num_top: int) -> TokenLogprobs:
    peak = max(logits)
    total = peak + math.log(sum(math.exp(x - peak) for x in logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    top = order if num_top < 0 else order[:num_top]
    return TokenLogprobs(
        token_id=token_id,
        logprob=logits[token_id] - total,
        rank=1 + sum(x > logits[token_id] for x in logits),
        top_ids=tuple(top),
        top_logprobs=tuple(logits[i] - total for i in top),
    )


def assert_same(got: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert (got.token_id, got.rank, got.top_ids) == (expected.token_id, expected.rank, expected.top_ids)
    assert got.logprob == pytest.approx(expected.logprob, abs=1e-12)
    assert got.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-12)


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=4),
    st.integers(0, 8),
    st.integers(-1, 12),
)
@settings(max_examples=200, deadline=None)
def test_entries_equal_a_plain_python_reference_on_tied_logits(
    logits: list[list[int]], target: int, num_top: int
) -> None:
    rows = [[float(x) for x in row] for row in logits]
    got = logprobs_of(torch.tensor(rows, dtype=torch.float64), torch.full((len(rows),), target), num_top)
    for row, entry in zip(rows, got, strict=True):
        assert_same(entry, reference(row, target, num_top))


def test_bf16_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    got = logprobs_of(logits, torch.tensor([3, 7]), 5)
    for row, entry in zip(logits.tolist(), got, strict=True):
        expected = reference(row, entry.token_id, 5)
        assert entry.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert entry.top_ids == expected.top_ids


def test_rows_report_what_they_asked_for_from_the_raw_logits() -> None:
    asked = (None, 0, 2, -1, 2)
    table = RowParamsTable(6, 7, "cpu")
    for row, logprobs in enumerate(asked, start=1):
        params = RowParams(
            temperature=0.5, top_k=1, logit_bias=((3, 50.0),), presence_penalty=1.0, logprobs=logprobs
        )
        table.set(row, params, 1)
    logits = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    history = torch.zeros(6, 4, dtype=torch.int64)
    for sampler in (Sampler(table), Sampler(table, max_bytes=1)):
        output = sampler.sample(logits, range(1, 6), torch.full((5,), 4), history)
        assert output.ids_N.tolist() == [3] * 5
        assert output.logprobs[0] is None
        for i in range(1, 5):
            entry, num_top = output.logprobs[i], asked[i]
            assert entry is not None
            assert num_top is not None
            assert_same(entry, reference(logits[i].tolist(), 3, num_top))


def test_a_nan_logit_is_reported_as_minus_infinity() -> None:
    logits = torch.tensor([[0.0, math.nan, 0.0], [math.nan] * 3], dtype=torch.float64)
    first, second = logprobs_of(logits, torch.tensor([0, 1]), 3)
    assert first.logprob == pytest.approx(-math.log(2))
    assert first.top_ids == (0, 2, 1)
    assert first.top_logprobs[2] == second.logprob == -math.inf
    assert second.rank == 1


@pytest.mark.parametrize("num_top", [0, 3, -1])
@pytest.mark.parametrize("max_rows", [1, 3, 7, 100])
def test_prompt_logprobs_run_the_head_in_slices_that_fit(num_top: int, max_rows: int) -> None:
    source = torch.Generator().manual_seed(5)
    weight = torch.randn(11, 6, dtype=torch.float64, generator=source)
    hidden = torch.randn(7, 6, dtype=torch.float64, generator=source)
    targets = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    sizes: list[int] = []

    def head(part: Tensor) -> Tensor:
        sizes.append(part.shape[0])
        return part @ weight.T

    bytes_per_row = 11 * (8 + 2 * 8 + 18)
    got = prompt_logprobs(head, hidden, targets, num_top, max_bytes=max_rows * bytes_per_row)
    assert sum(sizes) == 7
    assert sizes[0] == 1
    assert max(sizes) == min(6, max_rows)
    for row, target, entry in zip((hidden @ weight.T).tolist(), targets.tolist(), got, strict=True):
        assert_same(entry, reference(row, target, num_top))


def test_prompt_logprobs_run_one_row_at_least_and_none_without_targets() -> None:
    hidden = torch.ones(2, 3, dtype=torch.float64)
    assert len(prompt_logprobs(lambda part: part, hidden, torch.tensor([0, 1]), 1, max_bytes=1)) == 2
    assert prompt_logprobs(lambda part: part, hidden[:0], torch.tensor([]), 1) == []


def test_prompt_logprobs_need_one_target_per_hidden_state() -> None:
    with pytest.raises(EngineError, match="3 targets came with 2"):
        prompt_logprobs(lambda part: part, torch.ones(2, 3), torch.tensor([0, 1, 2]), 1)
