"""Processors and cuts equal transformers' where both define the same thing."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

from vtcore.interfaces.batch import RowParams
from vtcore.sampling import processors, truncation
from vtcore.sampling.noise import Purpose, gumbel
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler

VOCAB, ROWS = 97, 16


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(ROWS, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 4


@pytest.fixture
def history() -> Tensor:
    return torch.randint(0, 30, (ROWS, 40), generator=torch.Generator().manual_seed(4))


def long(ids: Tensor) -> torch.LongTensor:
    """Transformers annotates its processors with the legacy tensor types."""
    return cast(torch.LongTensor, ids)


def scaled(logits: Tensor) -> Tensor:
    return logits - logits.amax(dim=1, keepdim=True)


def column(value: float) -> Tensor:
    return torch.full((ROWS, 1), value, dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 5, 50, 97])
def test_top_k_keeps_the_ids_that_transformers_keeps(logits: Tensor, history: Tensor, k: int) -> None:
    expected = TopKLogitsWarper(k)(history, logits).isfinite()
    cut = truncation.cut_top_k(scaled(logits), torch.full((ROWS,), k), k)
    assert torch.equal(cut.isfinite(), expected)
    assert expected.sum() == ROWS * k


@pytest.mark.parametrize("p", [0.01, 0.3, 0.8, 0.95, 0.9999])
def test_top_p_keeps_the_ids_that_transformers_keeps(logits: Tensor, history: Tensor, p: float) -> None:
    expected = TopPLogitsWarper(p)(history, logits).isfinite()
    assert torch.equal(truncation.cut_top_p(scaled(logits), column(p)).isfinite(), expected)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.6, 1.0])
def test_min_p_keeps_the_ids_that_transformers_keeps(logits: Tensor, history: Tensor, p: float) -> None:
    expected = MinPLogitsWarper(p)(long(history), logits).isfinite()
    assert torch.equal(truncation.cut_min_p(scaled(logits), column(p)).isfinite(), expected)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 4.0])
def test_repetition_penalty_equals_transformers(logits: Tensor, history: Tensor, penalty: float) -> None:
    expected = RepetitionPenaltyLogitsProcessor(penalty)(history, logits)
    ends = torch.full((ROWS,), history.shape[1])
    counts = processors.token_counts(history, torch.zeros_like(ends), ends, VOCAB, torch.float64)
    got = logits.clone()
    processors.penalize_repetition(got, counts, column(penalty))
    assert torch.equal(got, expected)
    assert not torch.equal(got, logits)


def test_token_counts_equal_bincount_over_their_range(history: Tensor) -> None:
    first, end = torch.arange(ROWS), torch.arange(ROWS) + 20
    counts = processors.token_counts(history.to(torch.int32), first, end, VOCAB, torch.float32)
    for i in range(ROWS):
        assert counts[i].tolist() == torch.bincount(history[i, i : i + 20], minlength=VOCAB).tolist()


def test_bad_words_equal_transformers(logits: Tensor, history: Tensor) -> None:
    tails = [history[i, -length:].tolist() for i, length in enumerate((1, 2, 3, 4))]
    words = [[*tail, 50 + i] for i, tail in enumerate(tails)] + [[7], [60, 61], [60, 62], [8], [8]]
    expected = NoBadWordsLogitsProcessor(words, eos_token_id=96)(history, logits)
    got = logits.clone()
    pairs = [(row, tuple(word)) for row in range(ROWS) for word in words]
    ends = torch.full((ROWS,), history.shape[1])
    processors.ban_bad_words(got, pairs, torch.arange(ROWS), ends, history)
    assert torch.equal(got, expected)
    assert got.isinf()[:, 50:54].sum() >= 4


def test_logit_bias_equals_transformers(logits: Tensor, history: Tensor) -> None:
    expected = SequenceBiasLogitsProcessor([[[5], 2.5], [[9], -3.0]])(history, logits)
    got = logits.clone()
    index = torch.arange(ROWS).repeat_interleave(2)
    ids, bias = torch.tensor([5, 9]).repeat(ROWS), torch.tensor([2.5, -3.0]).repeat(ROWS)
    processors.add_bias(got, index, ids, bias)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("num_new", [0, 3, 4, 5])
def test_min_tokens_bans_as_transformers_does(logits: Tensor, num_new: int) -> None:
    prompt_len, stop = 6, int(logits[0].argmax())
    history = torch.zeros(1, prompt_len + num_new, dtype=torch.int64)
    warper = MinNewTokensLengthLogitsProcessor(prompt_len, 4, stop, device="cpu")
    expected = warper(history, logits[:1].clone()).argmax(dim=1)
    table = RowParamsTable(2, VOCAB, "cpu")
    table.set(1, RowParams(temperature=0.0, min_tokens=4, stop_ids=(stop,)), prompt_len)
    got = Sampler(table).sample(logits[:1], [1], torch.tensor([history.shape[1]])).ids_N
    assert got.tolist() == expected.tolist()
    assert (got.item() != stop) == (num_new < 4)


def test_whole_chain_picks_the_gumbel_argmax_of_transformers_distribution(
    logits: Tensor, history: Tensor
) -> None:
    params = RowParams(temperature=1.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.4, seed=77)
    chain = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            TemperatureLogitsWarper(params.temperature),
            MinPLogitsWarper(params.min_p),
            TopKLogitsWarper(params.top_k),
            TopPLogitsWarper(params.top_p),
        ]
    )
    positions = torch.full((ROWS,), history.shape[1])
    noise = gumbel(torch.full((ROWS,), 77), positions, torch.arange(VOCAB), Purpose.TARGET)
    expected = (chain(long(history), logits).log_softmax(dim=1) + noise).argmax(dim=1)
    table = RowParamsTable(ROWS + 1, VOCAB, "cpu")
    for row in range(1, ROWS + 1):
        table.set(row, params, prompt_len=10)
    padded = torch.cat([history[:1], history])
    got = Sampler(table).sample(logits, range(1, ROWS + 1), positions, padded).ids_N
    assert torch.equal(got, expected)
    assert len(np.unique(got)) > 3
