"""Argmax and sampling as kernels: the same tokens as their naive twins, whatever the split."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from vtcore.interfaces.batch import RowParams
from vtcore.ops.argmax import naive as naive_argmax
from vtcore.ops.argmax import triton as kernel_argmax
from vtcore.ops.launch import launch
from vtcore.ops.sample_tokens import naive
from vtcore.ops.sample_tokens import triton as kernel
from vtcore.ops.sample_tokens.noise_kernel import draw_counter, draw_key, mix
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.noise import Purpose, uniform
from vtcore.sampling.params_table import RowParamsTable
from vtcore.testing.triton_interpreter import kernel_device

NAN, INF = float("nan"), float("inf")
GREEDY = RowParams(temperature=0.0)
ROWS = {
    "greedy": GREEDY,
    "below the least temperature": RowParams(temperature=0.9e-5, seed=1),
    "least temperature": RowParams(temperature=1e-5, seed=2),
    "plain": RowParams(seed=2**63 - 1),
    "hot": RowParams(temperature=100.0, seed=3),
    "top-k": RowParams(top_k=50, seed=4),
    "top-k of one": RowParams(top_k=1, temperature=9.0, seed=5),
    "top-k of many": RowParams(top_k=290, temperature=9.0, seed=6),
    "top-k of all": RowParams(top_k=300, seed=7),
    "top-p": RowParams(top_p=0.9, seed=8),
    "low top-p": RowParams(top_p=0.05, temperature=3.0, seed=9),
    "tiny top-p": RowParams(top_p=1e-6, temperature=50.0, seed=10),
    "min-p": RowParams(min_p=0.05, temperature=4.0, seed=11),
    "min-p of one": RowParams(min_p=1.0, temperature=4.0, seed=12),
    "all": RowParams(temperature=2.0, min_p=0.01, top_k=40, top_p=0.6, seed=13),
    "top-k and low top-p": RowParams(temperature=30.0, top_k=7, top_p=0.2, seed=14),
}


@pytest.fixture(autouse=True)
def _floating_point_as_on_a_gpu() -> Iterator[None]:
    """Infinities and their differences raise no warning there."""
    with np.errstate(all="ignore"), torch.device(kernel_device()):
        yield


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups per tile, tiles per split, splits per row, at a vocabulary of hundreds."""
    monkeypatch.setattr(kernel, "GROUP", 16)
    monkeypatch.setattr(kernel, "TILE_BYTES", 128)
    monkeypatch.setattr(kernel, "FINISH_GROUPS", 4)
    monkeypatch.setattr(kernel_argmax, "_BLOCK", 32)
    monkeypatch.setattr(kernel_argmax, "_PROGRAMS", 32)


def draw(
    rows: Sequence[RowParams], logits: Tensor, table_rows: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Tokens of the naive op and of the kernels, whose counts agree."""
    table = RowParamsTable(len(rows) + 1, logits.shape[1], kernel_device())
    for row, params in enumerate(rows, start=1):
        table.set(row, params, 1)
    device_params = DeviceParams(table)
    device_params.update(range(1, len(rows) + 1))
    index = torch.tensor(range(1, len(rows) + 1) if table_rows is None else table_rows)
    positions = torch.arange(len(index)) * 7919 + (1 << 33)
    found = []
    counts = torch.zeros(2, 2, dtype=torch.int64)
    for op, count in zip((naive.sample_tokens, kernel.sample_tokens), counts, strict=True):
        found.append(op(logits, index, positions, device_params, count).tolist())
    assert counts[0].tolist() == counts[1].tolist()
    return found[0], found[1]


def smooth(num: int, vocab_size: int, seed: int) -> Tensor:
    return torch.randn(num, vocab_size, generator=torch.Generator(kernel_device()).manual_seed(seed)) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [300, 1000])
def test_every_kind_of_row_gets_the_naive_token(dtype: torch.dtype, vocab_size: int) -> None:
    wanted, found = draw(list(ROWS.values()), smooth(len(ROWS), vocab_size, 1).to(dtype))
    assert found == wanted


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_many_splits_gets_the_naive_token(name: str, dtype: torch.dtype) -> None:
    rows = [ROWS[name], GREEDY]
    wanted, found = draw(rows, smooth(2, 300, len(name)).to(dtype))
    assert found == wanted


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("seed", range(12))
def test_random_parameters_and_many_ties_get_the_naive_token(seed: int) -> None:
    source = random.Random(seed)
    rows = [
        RowParams(
            temperature=source.choice((0.013, 0.31, 1.0, 2.7, 40.0)),
            top_k=source.choice((0, 0, 1, 2, 7, 19, 60, 200)),
            top_p=source.choice((1.0, 1.0, 0.0001, 0.137, 0.513, 0.971)),
            min_p=source.choice((0.0, 0.0, 0.0517, 0.473)),
            seed=source.randrange(2**63),
        )
        for _ in range(3)
    ]
    logits = torch.tensor([[source.randint(-6, 6) / 2 for _ in range(211)] for _ in rows])
    wanted, found = draw(rows, logits.to(torch.bfloat16) if seed % 2 else logits)
    assert found == wanted


@pytest.mark.usefixtures("small_tiles")
def test_a_row_gets_its_token_in_any_batch_at_any_place() -> None:
    rows, logits = list(ROWS.values())[3:7], smooth(4, 300, 3)
    positions = torch.tensor([5, 6, 7, 8])
    table = RowParamsTable(5, 300, kernel_device())
    for row, params in enumerate(rows, start=1):
        table.set(row, params, 1)
    device_params, counts = DeviceParams(table), torch.zeros(2, dtype=torch.int64)
    device_params.update([1, 2, 3, 4])

    def tokens(order: list[int]) -> list[int]:
        index = torch.tensor(order)
        more = (index + 1, positions[index], device_params, counts)
        return kernel.sample_tokens(logits[index], *more).tolist()

    alone = [tokens([i])[0] for i in range(4)]
    assert tokens([2, 0, 3, 1]) == [alone[i] for i in (2, 0, 3, 1)]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("params", [GREEDY, RowParams(), RowParams(top_p=0.7), RowParams(top_k=3, top_p=0.5)])
def test_rows_of_nan_and_minus_infinity_end_in_the_naive_token(params: RowParams) -> None:
    logits = torch.full((4, 70), -INF)
    logits[0] = NAN
    logits[1, 66] = 1.0
    logits[2] = smooth(1, 70, 9)
    logits[2, ::3] = NAN
    wanted, found = draw([params] * 4, logits)
    assert found == wanted
    assert found[1] == 66
    assert found[2] % 3


@pytest.mark.usefixtures("small_tiles")
def test_plus_infinity_ends_in_an_id_in_range_and_is_what_greedy_picks() -> None:
    logits = smooth(3, 70, 2)
    logits[:, 40] = INF
    _, found = draw([GREEDY, RowParams(), RowParams(top_p=0.5, temperature=1e-5)], logits)
    assert found == [40, 40, 40]


def test_rows_of_padding_are_greedy_and_never_counted() -> None:
    logits = smooth(3, 300, 4)
    logits[1] = NAN
    wanted, found = draw([RowParams()], logits, [0, 0, 1])
    assert found == wanted
    assert found[0] == int(logits[0].argmax())


def test_logits_that_lie_apart_in_memory_are_read_where_they_are() -> None:
    wide = torch.full((4, 320), 100.0)
    wide[:, :300] = smooth(4, 300, 5)
    wanted, found = draw(list(ROWS.values())[8:12], wide[:, :300])
    assert found == wanted
    counts = torch.zeros(2, dtype=torch.int64)
    assert kernel_argmax.argmax(wide[:, :300], counts).tolist() == wide[:, :300].argmax(dim=1).tolist()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 31, 300])
def test_argmax_is_the_naive_one(vocab_size: int, dtype: torch.dtype) -> None:
    source = torch.Generator(kernel_device()).manual_seed(vocab_size)
    logits = torch.randint(-5, 5, (7, vocab_size), generator=source).to(dtype)
    logits[1, vocab_size // 2] = NAN
    logits[2] = -INF
    logits[3] = NAN
    logits[4, vocab_size // 3 :] = INF
    counts = torch.tensor([[1, 2], [1, 2]])
    wanted = naive_argmax.argmax(logits, counts[0])
    assert kernel_argmax.argmax(logits, counts[1]).tolist() == wanted.tolist()
    assert counts[1].tolist() == counts[0].tolist() == [3, 2]


def test_no_rows_give_no_ids() -> None:
    empty, counts = torch.empty(0, 50), torch.zeros(2, dtype=torch.int64)
    none = torch.empty(0, dtype=torch.int64)
    assert kernel_argmax.argmax(empty, counts).shape == (0,)
    device_params = DeviceParams(RowParamsTable(2, 50, kernel_device()))
    assert kernel.sample_tokens(empty, none, none, device_params, counts).shape == (0,)


@pytest.mark.parametrize("num_tiles", [1, 2, 7, 122, 243, 5000])
def test_a_split_plan_covers_all_tiles_and_depends_on_the_bucket_alone(num_tiles: int) -> None:
    for num_rows in range(1, 600):
        splits, per_split = kernel_argmax.split_plan(num_rows, num_tiles)
        assert 1 <= splits <= kernel_argmax.MAX_SPLITS
        assert (splits - 1) * per_split < num_tiles <= splits * per_split
        bucket = 1 << (num_rows - 1).bit_length()
        assert (splits, per_split) == kernel_argmax.split_plan(bucket, num_tiles)


@triton.jit  # type: ignore[untyped-decorator]
def _hash_kernel(seeds_ptr, positions_ptr, ids_ptr, out_ptr, NUM: tl.constexpr):  # type: ignore[no-untyped-def]
    i_n = tl.program_id(0)
    o_k = tl.arange(0, NUM)
    key = draw_key(tl.load(seeds_ptr + i_n), tl.load(positions_ptr + i_n))
    b_hash = mix(draw_counter(key, tl.load(ids_ptr + o_k)))
    tl.store(out_ptr + i_n * NUM + o_k, (b_hash >> 12).to(tl.int64))


def test_the_kernels_random_bits_are_those_of_the_torch_path() -> None:
    seeds = torch.tensor([0, 1, 2**63 - 1, 0x1234_5678_9ABC_DEF0])
    positions = torch.tensor([0, 1, 262_143, (1 << 40) + 1])
    ids = torch.tensor([0, 1, 2, 255, 256, 248_319, 65_535, (1 << 30) - 1], dtype=torch.int32)
    bits = torch.zeros(4, 8, dtype=torch.int64)
    launch(_hash_kernel, (4,), seeds, positions, ids, bits, NUM=8)
    found = (bits.to(torch.float64) + 0.5) * 2.0**-52
    assert found.tolist() == uniform(seeds, positions, ids.to(torch.int64), Purpose.TARGET).tolist()
