"""The sampler's rules one by one: ties, order, cost, bad input, verification rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vtcore.errors import EngineError
from vtcore.interfaces.batch import RowParams
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler, SamplerCounters
from vtcore.sampling.truncation import cut_top_p

GREEDY = RowParams(temperature=0.0)
NAN, INF = float("nan"), float("inf")


def build(*params: RowParams, vocab_size: int, prompt_len: int = 1, **options: Any) -> Sampler:
    """A sampler whose rows 1, 2, ... have these parameters."""
    table = RowParamsTable(len(params) + 1, vocab_size, "cpu")
    for row, entry in enumerate(params, start=1):
        table.set(row, entry, prompt_len)
    return Sampler(table, **options)


def draw(sampler: Sampler, logits: Tensor, rows: Sequence[int] | None = None, **more: Any) -> list[int]:
    """Ids for logit rows at position 5."""
    rows = range(1, len(logits) + 1) if rows is None else rows
    positions = torch.full((len(rows),), 5)
    return sampler.sample(logits, rows, positions, **more).ids_N.tolist()


def packed(ids: Sequence[int], vocab_size: int) -> bytes:
    bits = sum(1 << i for i in ids)
    return bits.to_bytes(-(-vocab_size // 8), "little")


class CallCounter(TorchDispatchMode):
    """Counts aten calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_plain_greedy_batch_costs_at_most_six_aten_calls() -> None:
    sampler = build(*[GREEDY] * 8, vocab_size=1000)
    with CallCounter() as counter:
        draw(sampler, torch.randn(8, 1000))
    calls = [name for name in counter.names if not name.startswith(("aten.randn", "aten.full"))]
    assert 1 <= len(calls) <= 6, calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [2, 7, 33, 1000, 150_001])
def test_greedy_takes_the_lowest_of_equal_ids(dtype: torch.dtype, vocab_size: int) -> None:
    source = random.Random(vocab_size)
    logits = torch.zeros(6, vocab_size, dtype=dtype)
    expected = []
    for i in range(6):
        tied = sorted(source.sample(range(vocab_size), min(vocab_size, 5)))
        logits[i, tied] = 3.0
        expected.append(tied[0])
    plain = build(*[GREEDY] * 6, vocab_size=vocab_size)
    processed = build(*[RowParams(temperature=0.0, logit_bias=((0, 0.0),))] * 6, vocab_size=vocab_size)
    assert draw(plain, logits) == expected
    assert draw(processed, logits) == expected


def test_temperature_below_1e_5_is_greedy_and_a_tiny_one_above_does_not_overflow() -> None:
    logits = torch.tensor([[1.0, 3e38, 2.0, -3e38]] * 2)
    sampler = build(RowParams(temperature=9e-6), RowParams(temperature=1.1e-5), vocab_size=4)
    assert draw(sampler, logits) == [1, 1]


def test_verification_rows_of_one_table_row_equal_plain_steps() -> None:
    params = RowParams(
        temperature=0.9,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        bad_words=((3, 4),),
        min_tokens=4,
        stop_ids=(2,),
        top_p=0.9,
        seed=9,
    )
    sampler = build(params, vocab_size=6, prompt_len=2)
    logits = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    history = torch.tensor([[0] * 8, [1, 2, 3, 4, 3, 0, 0, 0]], dtype=torch.int32)
    positions = torch.tensor([3, 4, 5, 2])
    together = sampler.sample(logits, [1, 1, 1, 1], positions, history).ids_N
    alone = [
        sampler.sample(logits[i : i + 1], [1], positions[i : i + 1], history).ids_N.item() for i in range(4)
    ]
    assert together.tolist() == alone


def test_output_penalties_leave_prompt_tokens_alone_and_repetition_does_not() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.9, 0.0]], dtype=torch.float64)
    history = torch.tensor([[0] * 5, [1, 1, 1, 3, 3]])
    for params, expected in (
        (RowParams(temperature=0.0, presence_penalty=2.0), 1),
        (RowParams(temperature=0.0, frequency_penalty=2.0), 1),
        (RowParams(temperature=0.0, repetition_penalty=1.5), 2),
    ):
        assert draw(build(params, vocab_size=4, prompt_len=3), logits, history_RL=history) == [expected]
    counted = build(RowParams(temperature=0.0, frequency_penalty=0.04), vocab_size=4, prompt_len=0)
    assert draw(counted, logits, history_RL=history) == [2]


def test_a_host_mask_wins_over_bias_and_stays_with_its_row() -> None:
    sampler = build(RowParams(temperature=0.0, logit_bias=((0, 100.0),)), GREEDY, GREEDY, vocab_size=11)
    logits = torch.arange(11.0).repeat(3, 1)
    masks = [packed([2, 4, 9], 11), None, packed([3], 11)]
    assert draw(sampler, logits, masks=masks) == [9, 10, 3]


def test_random_rows_stay_inside_mask_and_allowed_ids() -> None:
    sampler = build(RowParams(allowed_token_ids=(1, 4, 9)), vocab_size=11)
    logits = torch.zeros(200, 11)
    drawn = sampler.sample(
        logits, [1] * 200, torch.arange(200), masks=[packed([1, 2, 9], 11)] * 200
    ).ids_N.tolist()
    assert set(drawn) == {1, 9}


def test_min_tokens_counts_output_tokens() -> None:
    params = RowParams(temperature=0.0, min_tokens=2, stop_ids=(3,))
    sampler = build(params, vocab_size=4, prompt_len=10)
    logits = torch.arange(4.0).repeat(4, 1)
    ids = sampler.sample(logits, [1] * 4, torch.tensor([10, 11, 12, 13])).ids_N
    assert ids.tolist() == [2, 2, 3, 3]


def test_top_k_keeps_ids_tied_with_the_kth_and_top_p_takes_lower_ids_first() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 5.0]], dtype=torch.float64).expand(300, 4)
    tied = build(RowParams(top_k=2), vocab_size=4)
    assert set(tied.sample(logits, [1] * 300, torch.arange(300)).ids_N.tolist()) == {1, 2, 3}
    nucleus = build(RowParams(top_p=0.6), vocab_size=4)
    assert set(nucleus.sample(logits, [1] * 300, torch.arange(300)).ids_N.tolist()) == {1, 2}
    single = build(RowParams(top_p=1e-9), vocab_size=4)
    assert set(single.sample(logits, [1] * 300, torch.arange(300)).ids_N.tolist()) == {1}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_nan_counts_as_minus_infinity_and_touches_no_other_row(dtype: torch.dtype) -> None:
    params = (GREEDY, RowParams(seed=3), GREEDY, RowParams(temperature=0.0, logit_bias=((0, 1.0),)))
    clean = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    dirty = clean.clone()
    dirty[1, 2], dirty[2, 8], dirty[3] = NAN, NAN, NAN
    expected = clean.clone()
    expected[1, 2], expected[2, 8], expected[3] = -INF, -INF, -INF
    sampler = build(*params, vocab_size=9)
    assert draw(sampler, dirty) == draw(build(*params, vocab_size=9), expected)
    assert sampler.counters() == SamplerCounters(num_nan_rows=3, num_empty_rows=1)
    assert dirty.isnan().sum() == 11


def test_a_row_of_nan_alone_yields_the_lowest_id_it_may() -> None:
    sampler = build(GREEDY, RowParams(allowed_token_ids=(5, 3)), vocab_size=9)
    assert draw(sampler, torch.full((2, 9), NAN)) in ([0, 3], [0, 5])
    greedy = build(RowParams(temperature=0.0, allowed_token_ids=(5, 3)), vocab_size=9)
    assert draw(greedy, torch.full((1, 9), NAN)) == [3]


def test_infinite_logits_are_a_certain_choice() -> None:
    logits = torch.tensor([[0.0, INF, 1.0], [-INF, -INF, 0.5]])
    assert draw(build(RowParams(), RowParams(top_p=0.5), vocab_size=3), logits) == [1, 2]


def test_a_row_with_nothing_left_keeps_its_allowed_ids_and_is_counted() -> None:
    dead = RowParams(
        temperature=0.0, allowed_token_ids=(2, 4), bad_words=((2,),), min_tokens=9, stop_ids=(4,)
    )
    live = RowParams(temperature=0.0, allowed_token_ids=(2, 4), bad_words=((2,),))
    sampler = build(dead, live, GREEDY, vocab_size=6)
    logits = torch.tensor([[9.0, 0.0, 3.0, 0.0, 2.0, 0.0]]).repeat(3, 1)
    history = torch.zeros(4, 5, dtype=torch.int64)
    assert draw(sampler, logits, history_RL=history, masks=[None, None, packed([], 6)]) == [2, 4, 0]
    assert sampler.counters() == SamplerCounters(num_nan_rows=0, num_empty_rows=2)


def test_logits_are_left_as_they_were() -> None:
    params = RowParams(
        top_k=2, logit_bias=((1, 5.0),), repetition_penalty=2.0, allowed_token_ids=(0, 1), logprobs=2
    )
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.randn(3, 7).to(dtype)
        before = logits.clone()
        draw(build(params, GREEDY, params, vocab_size=7), logits, history_RL=torch.ones(4, 5).long())
        assert torch.equal(logits, before)


def test_setting_a_row_again_replaces_all_of_it() -> None:
    table = RowParamsTable(3, 5, "cpu")
    table.set(1, RowParams(allowed_token_ids=(0,), logprobs=3, bad_words=((1,),)), 1)
    table.set(1, GREEDY, 1)
    output = Sampler(table).sample(torch.arange(5.0).unsqueeze(0), [1], torch.tensor([1]))
    assert output.ids_N.tolist() == [4]
    assert output.logprobs == [None]


def test_the_null_row_is_plain_greedy() -> None:
    assert draw(build(RowParams(), vocab_size=5), torch.arange(5.0).unsqueeze(0), rows=[0]) == [4]


def test_an_empty_call_gives_no_tokens() -> None:
    output = build(GREEDY, vocab_size=5).sample(torch.empty(0, 5), [], torch.empty(0, dtype=torch.int64))
    assert output.ids_N.tolist() == []
    assert output.logprobs == []


def test_stop_ids_and_bad_words_outside_the_vocabulary_are_harmless() -> None:
    params = RowParams(temperature=0.0, stop_ids=(99,), min_tokens=5, bad_words=((99, 1), (1, 99)))
    assert draw(build(params, vocab_size=5), torch.arange(5.0).unsqueeze(0)) == [4]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"logits_NV": torch.zeros(1, 4)}, "shape"),
        ({"positions_N": torch.zeros(2, dtype=torch.int64)}, "positions"),
        ({"positions_N": torch.zeros(1, dtype=torch.int32)}, "positions"),
        ({"masks": [None, None]}, "2 host masks"),
        ({"masks": [b"\x01\x00"]}, "exactly 1"),
        ({"rows": [2]}, "without token history"),
    ],
)
def test_a_call_that_does_not_fit_is_an_engine_fault(change: dict[str, Any], match: str) -> None:
    call: dict[str, Any] = {"logits_NV": torch.zeros(1, 5), "rows": [1], "positions_N": torch.tensor([3])}
    sampler = build(GREEDY, RowParams(presence_penalty=1.0), vocab_size=5)
    with pytest.raises(EngineError, match=match):
        sampler.sample(**{**call, **change})


@pytest.mark.parametrize(
    ("row", "params", "match"),
    [
        (0, GREEDY, "row 0"),
        (2, GREEDY, "row 2"),
        (1, RowParams(logit_bias=((5, 1.0),)), "id 5"),
        (1, RowParams(allowed_token_ids=(-1,)), "id -1"),
        (1, RowParams(allowed_token_ids=()), "no id at all"),
    ],
)
def test_a_row_that_cannot_be_sampled_is_refused_when_set(row: int, params: RowParams, match: str) -> None:
    with pytest.raises(EngineError, match=match):
        RowParamsTable(2, 5, "cpu").set(row, params, 1)


def test_top_p_ends_exactly_where_the_mass_is_reached_and_takes_the_lower_of_equal_ids() -> None:
    equal = torch.zeros(2, 4096, dtype=torch.float64)
    kept = cut_top_p(equal, torch.tensor([[0.5], [0.25]], dtype=torch.float64)).isfinite()
    assert kept[0].nonzero().squeeze(1).tolist() == list(range(2048))
    assert kept[1].nonzero().squeeze(1).tolist() == list(range(1024))


def test_a_bad_word_longer_than_the_history_bans_nothing() -> None:
    sampler = build(RowParams(temperature=0.0, bad_words=((1, 1, 4),)), vocab_size=5)
    logits, history = torch.arange(5.0).unsqueeze(0), torch.ones(2, 8, dtype=torch.int64)
    assert sampler.sample(logits, [1], torch.tensor([1]), history).ids_N.tolist() == [4]
    assert sampler.sample(logits, [1], torch.tensor([2]), history).ids_N.tolist() == [3]
