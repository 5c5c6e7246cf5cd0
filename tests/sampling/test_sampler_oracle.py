"""The sampler equals a slow one in plain Python, for every feature, whatever shares its batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.interfaces.batch import RowParams
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler

MASK = 2**64 - 1


def noise(seed: int, position: int, token_id: int) -> float:
    """Gumbel noise of the target's draws."""
    key = seed
    for part in (0, position, token_id):
        key = (key + 0x9E3779B97F4A7C15 * (part + 1)) & MASK
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & MASK
        key = (key ^ key >> 27) * 0x94D049BB133111EB & MASK
        key ^= key >> 31
    return -math.log(-math.log(((key >> 12) + 0.5) / 2**52))


def processed(
    logits: Sequence[float], params: RowParams, prompt_len: int, history: Sequence[int], mask: bytes | None
) -> list[float]:
    """Logits before the temperature; `history` is all tokens before the position drawn."""
    vocab = range(len(logits))
    banned: set[int] = set()
    if mask is not None:
        banned |= {i for i in vocab if not mask[i // 8] >> (i % 8) & 1}
    if params.allowed_token_ids is not None:
        banned |= set(vocab) - set(params.allowed_token_ids)
    for word in params.bad_words:
        if list(word[:-1]) == list(history[len(history) - len(word) + 1 :]) and len(history) >= len(word) - 1:
            banned.add(word[-1])
    output = list(history[prompt_len:])
    if len(output) < params.min_tokens:
        banned |= set(params.stop_ids)
    if all(i in banned for i in vocab):
        allowed = vocab if params.allowed_token_ids is None else params.allowed_token_ids
        return [logits[i] if i in allowed else -math.inf for i in vocab]
    bias = dict(params.logit_bias)
    out = []
    for i in vocab:
        x = -math.inf if i in banned else logits[i] + bias.get(i, 0.0)
        if i in history:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * output.count(i)
        x -= params.presence_penalty * (i in output)
        out.append(x)
    return out


def distribution(logits: Sequence[float], params: RowParams) -> list[float]:
    """Probabilities of processed logits after temperature, min-p, top-k and top-p."""
    peak = max(logits)
    weights = [math.exp((x - peak) / params.temperature) for x in logits]
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    if params.top_k:
        threshold = sorted(weights, reverse=True)[min(params.top_k, len(weights)) - 1]
        weights = [w if w >= threshold else 0.0 for w in weights]
    if params.top_p < 1.0:
        total, mass, kept = sum(weights), 0.0, set()
        for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
            if mass >= params.top_p:
                break
            kept.add(i)
            mass += weights[i] / total
        weights = [w if i in kept else 0.0 for i, w in enumerate(weights)]
    total = sum(weights)
    return [w / total for w in weights]


def pick(
    logits: Sequence[float],
    params: RowParams,
    prompt_len: int,
    history: Sequence[int],
    mask: bytes | None = None,
) -> int:
    """The token drawn at position len(history)."""
    scores = processed(logits, params, prompt_len, history, mask)
    if params.temperature >= 1e-5:
        probs = distribution(scores, params)
        position = len(history)
        scores = [
            math.log(p) + noise(params.seed, position, i) if p > 0 else -math.inf for i, p in enumerate(probs)
        ]
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


VOCAB = 13


@frozen
class Row:
    """One logit row with all that its token may depend on."""

    logits: tuple[float, ...]
    params: RowParams
    prompt_len: int
    history: tuple[int, ...]
    mask: bytes | None

    @property
    def expected(self) -> int:
        return pick(self.logits, self.params, self.prompt_len, self.history, self.mask)


ids = st.integers(0, VOCAB - 1)
# Half-integers make ties common; the odd thresholds never fall on a sum of their probabilities.
tied_logits = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=VOCAB, max_size=VOCAB)
smooth_logits = st.integers(0, 2**32).map(lambda s: [random.Random(s + i).gauss(0, 3) for i in range(VOCAB)])
params = st.builds(
    RowParams,
    temperature=st.sampled_from((0.0, 1e-6, 0.013, 0.31, 1.0, 2.7)),
    top_k=st.sampled_from((0, 0, 1, 2, 3, 7, VOCAB, 50)),
    top_p=st.sampled_from((1.0, 1.0, 0.0001, 0.137, 0.513, 0.971)),
    min_p=st.sampled_from((0.0, 0.0, 0.0517, 0.473, 1.0)),
    repetition_penalty=st.sampled_from((1.0, 1.0, 0.73, 1.31)),
    presence_penalty=st.sampled_from((0.0, 0.0, -0.71, 1.37)),
    frequency_penalty=st.sampled_from((0.0, 0.0, -0.33, 0.59)),
    seed=st.integers(0, 2**63 - 1),
    logit_bias=st.dictionaries(ids, st.sampled_from((-100.0, -1.3, 2.7, 100.0)), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
    allowed_token_ids=st.none() | st.lists(ids, min_size=1, max_size=6, unique=True).map(tuple),
    bad_words=st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 4),
    stop_ids=st.lists(ids, max_size=3).map(tuple),
)


@st.composite
def row_strategy(draw: st.DrawFn) -> Row:
    history = draw(st.lists(st.integers(0, VOCAB - 1) | st.integers(0, 2), min_size=1, max_size=9))
    return Row(
        tuple(draw(tied_logits | smooth_logits)),
        draw(params),
        draw(st.integers(1, len(history))),
        tuple(history),
        draw(st.none() | st.binary(min_size=2, max_size=2)),
    )


def sample(rows: Sequence[Row], dtype: torch.dtype = torch.float64, **options: int) -> list[int]:
    """Ids of one call; unread history holds ids that no row may look at."""
    table = RowParamsTable(len(rows) + 1, VOCAB, "cpu")
    history = torch.full((len(rows) + 1, 12), 999, dtype=torch.int64)
    for i, row in enumerate(rows, start=1):
        table.set(i, row.params, row.prompt_len)
        history[i, : len(row.history)] = torch.tensor(row.history)
    output = Sampler(table, **options).sample(  # type: ignore[arg-type]
        torch.tensor([row.logits for row in rows], dtype=dtype),
        range(1, len(rows) + 1),
        torch.tensor([len(row.history) for row in rows]),
        history,
        [row.mask for row in rows],
    )
    return output.ids_N.tolist()


@given(row_strategy())
@settings(max_examples=600, deadline=None)
def test_a_row_gets_the_token_of_the_plain_python_sampler(row: Row) -> None:
    assert sample([row]) == [row.expected]


@given(st.lists(row_strategy(), min_size=2, max_size=9), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_row_gets_the_same_token_in_any_batch_and_order(rows: list[Row], order: random.Random) -> None:
    expected = [row.expected for row in rows]
    assert sample(rows) == expected
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    assert sample([rows[i] for i in shuffled]) == [expected[i] for i in shuffled]


@given(st.lists(row_strategy(), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_slices_and_survivor_lists_do_not_change_a_token(rows: list[Row]) -> None:
    expected = [row.expected for row in rows]
    assert sample(rows, max_bytes=1) == expected
    assert sample(rows, is_compacting=False) == expected


FULL = RowParams(
    temperature=1.3,
    top_k=6,
    top_p=0.93,
    min_p=0.02,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((4, 1.5), (9, -1.0)),
    allowed_token_ids=tuple(range(11)),
    bad_words=((2, 3), (7,)),
    min_tokens=5,
    stop_ids=(1,),
)


@pytest.mark.parametrize("params", [RowParams(), RowParams(temperature=1.7, top_p=0.8), FULL])
@pytest.mark.parametrize("is_compacting", [False, True])
def test_sampled_frequencies_are_the_processed_distribution(params: RowParams, is_compacting: bool) -> None:
    """Chi-square over independent seeds; the bound is passed by chance once in 10,000."""
    num, history = 20_000, (5, 0, 8, 8, 2)
    source = np.random.default_rng(5)
    logits = source.normal(0, 1.5, VOCAB)
    table = RowParamsTable(num + 1, VOCAB, "cpu")
    for seed in range(num):
        table.set(seed + 1, evolve(params, seed=seed), prompt_len=2)
    output = Sampler(table, is_compacting=is_compacting).sample(
        torch.from_numpy(logits).expand(num, VOCAB),
        range(1, num + 1),
        torch.full((num,), len(history)),
        torch.tensor(history).expand(num + 1, len(history)),
    )
    probs = distribution(processed(logits.tolist(), params, 2, history, None), params)
    counts = np.bincount(output.ids_N.numpy(), minlength=VOCAB)
    live = [i for i, p in enumerate(probs) if p > 0]
    assert counts.sum() == counts[live].sum()
    assert len(live) > 2
    statistic = sum((counts[i] - num * probs[i]) ** 2 / (num * probs[i]) for i in live)
    degrees = len(live) - 1
    # Wilson and Hilferty's normal form of chi-square, 3.72 standard deviations.
    assert statistic < degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
