"""The sample_tokens and argmax ops in torch pick what the sampler picks, from parameters on the device."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vtcore.interfaces.batch import RowParams
from vtcore.ops.argmax.naive import argmax
from vtcore.ops.sample_tokens.naive import sample_tokens
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler, SamplerCounters

NAN, INF = float("nan"), float("inf")
params_strategy = st.builds(
    RowParams,
    temperature=st.sampled_from((0.0, 1e-6, 1e-5, 0.013, 0.31, 1.0, 2.7, 100.0)),
    top_k=st.sampled_from((0, 0, 1, 2, 3, 7, 40, 41, 1000)),
    top_p=st.sampled_from((1.0, 1.0, 0.0001, 0.137, 0.513, 0.971)),
    min_p=st.sampled_from((0.0, 0.0, 0.0517, 0.473, 1.0)),
    seed=st.integers(0, 2**63 - 1),
)


def table_of(rows: Sequence[RowParams], vocab_size: int, device: str = "cpu") -> RowParamsTable:
    """Rows 1, 2, ... have these parameters."""
    table = RowParamsTable(len(rows) + 1, vocab_size, device)
    for row, params in enumerate(rows, start=1):
        table.set(row, params, 1)
    return table


def both(rows: Sequence[RowParams], logits: Tensor, positions: Tensor) -> tuple[list[int], list[int]]:
    """Tokens of the sampler and of the op."""
    table = table_of(rows, logits.shape[1])
    device_params = DeviceParams(table)
    index = list(range(1, len(rows) + 1))
    device_params.update(index)
    sampler, counts = Sampler(table), torch.zeros(2, dtype=torch.int64)
    wanted = sampler.sample(logits, index, positions).ids_N.tolist()
    found = sample_tokens(logits, torch.tensor(index), positions, device_params, counts).tolist()
    assert sampler.counters() == SamplerCounters(*counts.tolist())
    return wanted, found


@given(
    st.lists(params_strategy, min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_op_draws_the_samplers_tokens(
    rows: list[RowParams], seed: int, dtype: torch.dtype, is_tied: bool
) -> None:
    source = random.Random(seed)
    value = (lambda: source.randint(-6, 6) / 2) if is_tied else (lambda: source.gauss(0, 3))
    logits = torch.tensor([[value() for _ in range(41)] for _ in rows], dtype=torch.float64).to(dtype)
    positions = torch.tensor([source.randrange(1 << 20) for _ in rows])
    wanted, found = both(rows, logits, positions)
    assert found == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_nan_and_infinities_draw_the_samplers_tokens(temperature: float) -> None:
    rows = [RowParams(temperature=temperature, seed=i, top_p=0.9, top_k=3) for i in range(5)]
    logits = torch.tensor(
        [[NAN, 1, 2, NAN], [-INF] * 4, [NAN] * 4, [-INF, -INF, 0, -INF], [INF, 1, INF, NAN]]
    )
    wanted, found = both(rows, logits, torch.arange(5))
    assert found == wanted
    assert found[0] in (1, 2)
    assert found[3] == 2


def test_argmax_takes_the_lowest_of_equal_ids_and_counts_rows_with_a_nan() -> None:
    logits = torch.tensor([[0, 3, 3], [NAN, -1, -1], [-INF, NAN, -INF], [-INF, INF, INF]])
    counts = torch.tensor([5, 7])
    assert argmax(logits, counts).tolist() == [1, 1, 0, 1]
    assert counts.tolist() == [7, 7]


def test_a_padding_row_is_greedy_and_never_counted() -> None:
    table = table_of([RowParams(seed=3)], 4)
    device_params, counts = DeviceParams(table), torch.zeros(2, dtype=torch.int64)
    logits = torch.tensor([[NAN, 1.0, 5.0, 2.0]])
    zero = torch.zeros(1, dtype=torch.int64)
    assert sample_tokens(logits, zero, zero, device_params, counts).tolist() == [2]
    assert counts.tolist() == [0, 0]


def test_device_parameters_are_what_was_set_and_keep_their_address() -> None:
    given = [RowParams(temperature=0.3, min_p=0.1, top_p=0.7, seed=2**63 - 1, top_k=5), RowParams(seed=9)]
    table = table_of(given, 50)
    device_params = DeviceParams(table)
    address = device_params.ints_RC.data_ptr()
    assert table.changed == {1, 2}
    device_params.update([2])
    assert table.changed == {1}
    device_params.update([1])
    assert not table.changed
    rows_N = torch.tensor([0, 2, 1, 1])
    columns = zip(*(column.tolist() for column in device_params.columns(rows_N)), strict=True)
    plain, first, second = (0.0, 0.0, 0.0, 0, 0), (0.3, 0.1, 0.7, 2**63 - 1, 5), (1.0, 0.0, 1.0, 9, 0)
    assert list(columns) == [plain, second, first, first]
    table.set(2, given[0], 1)
    device_params.update([2])
    assert device_params.ints_RC.data_ptr() == address
    assert device_params.floats_RC[2, 0].item() == 0.3


@pytest.mark.parametrize(
    ("params", "is_fast"),
    [
        (RowParams(temperature=0.0), True),
        (RowParams(temperature=0.4, min_p=0.1, top_p=0.7, top_k=5), True),
        (RowParams(logprobs=0), False),
        (RowParams(logit_bias=((1, 1.0),)), False),
        (RowParams(presence_penalty=0.1), False),
        (RowParams(allowed_token_ids=(1, 2)), False),
        (RowParams(bad_words=((1,),)), False),
        (RowParams(min_tokens=1, stop_ids=(1,)), False),
    ],
)
def test_rows_are_fast_if_the_op_serves_all_they_ask_for(params: RowParams, is_fast: bool) -> None:
    sampler = Sampler(table_of([params, RowParams(temperature=0.0)], 9, "meta"))
    assert sampler.is_fast([2, 1, 1, 0]) is is_fast
    assert sampler.is_fast([2, 0], [None, None])
    assert not sampler.is_fast([2, 0], [None, b"\x01\x00"])
    assert sampler.needs_random([1, 2]) is (params.temperature > 0)
    assert not sampler.needs_random([2, 0])


def test_on_the_cpu_no_row_is_fast() -> None:
    assert not Sampler(table_of([RowParams()], 9)).is_fast([1])


class Ops:
    """The ops, with the shapes of the logits that each was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def named(self, name: str, op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(logits_NV: Tensor, *more: Any) -> Tensor:
            self.calls.append((name, tuple(logits_NV.shape)))
            return op(logits_NV, *more)

        return counted


def test_off_the_cpu_fast_rows_of_a_mixed_batch_go_through_the_op_and_others_do_not() -> None:
    ops = Ops()
    rows = [RowParams(), RowParams(temperature=0.0), RowParams(logit_bias=((1, 1.0),)), RowParams(logprobs=1)]
    table = table_of(rows, 9, "meta")
    served = {"argmax": argmax, "sample_tokens": sample_tokens}
    sampler = Sampler(table, ops={name: ops.named(name, op) for name, op in served.items()})
    logits = torch.empty(5, 9, device="meta")
    positions = torch.empty(5, dtype=torch.int64, device="meta")
    output = sampler.sample(logits, [1, 2, 3, 4, 3], positions)
    assert output.ids_N.shape == (5,)
    assert ops.calls == [("sample_tokens", (3, 9))]
    assert [index.tolist() for index, _ in output.parts] == [[3]]
    assert not table.changed
    sampler.sample(logits[:2], [2, 2], positions[:2])
    assert ops.calls[1:] == [("argmax", (2, 9))]
