"""Paged attention, and what comes before it, as kernels against the naive ops in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from vtcore.interfaces.step import LayerCache, PagedPool, PrefillSpan, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.layers.paged_kv import build_paged_kv
from vtcore.layers.rope import RotaryTable
from vtcore.ops.kv_write import naive as naive_write
from vtcore.ops.kv_write import triton as kernel_write
from vtcore.ops.paged_attention import naive, triton
from vtcore.ops.qk_norm_rope_write import naive as naive_heads
from vtcore.ops.qk_norm_rope_write import triton as kernel_heads
from vtcore.testing.triton_interpreter import assert_order_free, kernel_device

DEVICE = kernel_device()
NAN = float("nan")
BLOCKS, WIDTH = 40, 14
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 8e-3}
"""In bfloat16 scores, probabilities and the result are rounded; each by 2^-9 of itself at most."""


@frozen
class Case:
    """One step over a cache whose unwritten places are NaN, in float64 on the CPU."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    computed: list[int]
    lens: list[int]
    table: Tensor
    num_uniform: int
    query: int
    block_size: int
    window: int | None


def make_case(
    seed: int,
    *,
    uniform: Sequence[tuple[int, int]] = (),
    query: int = 1,
    prefill: Sequence[tuple[int, int]] = (),
    padding: int = 0,
    heads: tuple[int, int] = (4, 2),
    width: int = 16,
    block_size: int = 8,
    window: int | None = None,
) -> Case:
    """Draw one.

    Args:
        uniform, prefill: Each row's tokens before this step and query tokens in it.
        padding: Null rows after the uniform ones.
    """
    random, draw = Random(seed), torch.Generator().manual_seed(seed)
    rows = [*uniform, *[(0, 0)] * padding, *prefill]
    num_uniform = len(uniform) + padding
    tokens = num_uniform * query + sum(length for _, length in prefill)
    k, v = (torch.full((BLOCKS, block_size, heads[1], width), NAN, dtype=torch.float64) for _ in range(2))
    table = torch.zeros(len(rows), WIDTH, dtype=torch.int64)
    free = random.sample(range(1, BLOCKS), BLOCKS - 1)
    for row, (computed, length) in enumerate(rows):
        for position in range(computed + length):
            if position % block_size == 0:
                table[row, position // block_size] = free.pop()
            block = int(table[row, position // block_size])
            for cache in (k, v):
                cache[block, position % block_size] = torch.randn(heads[1], width, generator=draw)
        if window is not None:
            # Blocks that no query reads any more are freed.
            table[row, : max(0, computed - window + 1) // block_size] = 0
    shape = (tokens, heads[0], width)
    return Case(
        2 * torch.randn(shape, generator=draw, dtype=torch.float64),
        k,
        v,
        torch.randn(tokens, heads[0] * width, generator=draw, dtype=torch.float64),
        [computed for computed, _ in rows],
        [length for _, length in rows],
        table,
        num_uniform,
        query,
        block_size,
        window,
    )


def step_of(case: Case, device: str) -> StepInputs:
    starts, spans, offset = [0], [], 0
    for index, length in enumerate(case.lens):
        if index >= case.num_uniform:
            spans.append(PrefillSpan(index, offset, length, case.computed[index]))
        offset += case.query if index < case.num_uniform else length
        starts.append(offset)
    own = range(case.num_uniform)
    pool = PagedPool(
        case.block_size,
        case.window,
        case.table.to(device),
        torch.zeros(offset, dtype=torch.int64).to(device),
        None,
    )
    return StepInputs(
        ids=torch.zeros(offset, dtype=torch.int64).to(device),
        positions=torch.zeros(offset, dtype=torch.int64).to(device),
        num_uniform=case.num_uniform,
        query_len=case.query,
        prefill=tuple(spans),
        computed=torch.tensor(case.computed).to(device),
        query_lens=torch.tensor(case.lens).to(device),
        query_start=torch.tensor(starts).to(device),
        query_len_min=min((case.lens[i] for i in own), default=case.query),
        context_max=max((case.computed[i] + case.lens[i] for i in own), default=0),
        pools=(pool,),
    )


def attend(
    case: Case,
    op: Callable[..., Tensor],
    dtype: torch.dtype,
    into: torch.dtype,
    device: str,
    gated: bool,
    unused: int = 0,
) -> Tensor:
    """Run an op on the numbers as `dtype` holds them, computing in `into`.

    Args:
        unused: Blocks of NaN between the null block and the others.
    """

    def to(tensor: Tensor) -> Tensor:
        return tensor.to(dtype).to(device, into)

    def pool(blocks: Tensor) -> Tensor:
        if not unused:
            return to(blocks)
        out = torch.full((unused + BLOCKS, *blocks.shape[1:]), NAN, dtype=into, device=device)
        out[-BLOCKS:] = to(blocks)
        return out

    step = step_of(evolve(case, table=case.table + unused * (case.table > 0)), device)
    kv = build_paged_kv(LayerCache(0, {"k": pool(case.k), "v": pool(case.v)}))
    gate = to(case.gate) if gated else None
    return op(to(case.q), kv, step, step.pools[0], case.q.shape[2] ** -0.5, gate).cpu().double()


def valid_tokens(case: Case) -> Tensor:
    valid = torch.zeros(case.q.shape[0], dtype=torch.bool)
    start = 0
    for index, length in enumerate(case.lens):
        valid[start : start + length] = True
        start += case.query if index < case.num_uniform else length
    return valid


CASES: dict[str, dict[str, Any]] = {
    "decode at block edges": {"uniform": [(0, 1), (6, 1), (7, 1), (8, 1), (31, 1)]},
    "decode with padding": {"uniform": [(63, 1), (64, 1)], "padding": 2},
    "one long row": {"uniform": [(100, 1)]},
    "verify": {"uniform": [(5, 3), (15, 1), (30, 2)], "query": 3},
    "verify with padding": {"uniform": [(5, 2), (9, 1)], "query": 2, "padding": 1},
    "prefill from the start": {"prefill": [(0, 1), (0, 33), (0, 64)]},
    "prefill after a prefix": {"prefill": [(8, 5), (31, 40), (64, 1)]},
    "mixed": {"uniform": [(40, 1), (3, 1)], "padding": 1, "prefill": [(16, 20), (0, 7)]},
    "no groups": {"uniform": [(20, 1)], "prefill": [(3, 9)], "heads": (3, 3)},
    "one group of eight": {"uniform": [(20, 1), (9, 1)], "prefill": [(3, 9)], "heads": (8, 1)},
    "an odd group": {"uniform": [(20, 2)], "query": 2, "prefill": [(3, 9)], "heads": (6, 2)},
    "decode at tile edges": {"uniform": [(30, 1), (31, 1), (32, 1), (62, 1), (63, 1), (64, 1)]},
    "prefill at tile edges": {"prefill": [(0, 31), (0, 32), (1, 62), (0, 65)]},
    "the width of a release": {"uniform": [(33, 1)], "prefill": [(3, 9)], "heads": (2, 1), "width": 256},
    "wide heads": {"uniform": [(20, 1)], "prefill": [(3, 40)], "heads": (2, 1), "width": 64},
    "an odd width": {"uniform": [(20, 1)], "prefill": [(3, 9)], "width": 24},
    "large blocks": {"uniform": [(20, 1), (47, 1)], "prefill": [(3, 40)], "block_size": 32},
    "a window": {"uniform": [(40, 1), (3, 1)], "prefill": [(30, 20), (0, 25)], "window": 10},
    "a window behind freed blocks": {"uniform": [(90, 1)], "prefill": [(90, 5), (49, 20)], "window": 10},
    "a window of a verify": {"uniform": [(40, 3), (3, 2)], "query": 3, "window": 10},
}


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_naive_one(name: str, dtype: torch.dtype, gated: bool) -> None:
    case = make_case(len(name), **CASES[name])
    wanted = attend(case, naive.paged_attention, dtype, torch.float64, "cpu", gated)
    found = attend(case, triton.paged_attention, dtype, dtype, DEVICE, gated)
    valid = valid_tokens(case)
    assert bool(found[~valid].eq(0).all()), "tokens without a query give zeros"
    assert float((found - wanted)[valid].norm() / wanted[valid].norm()) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_batch_invariant_row_has_the_same_bits_alone(dtype: torch.dtype) -> None:
    rows = [(100, 1), (3, 1), (40, 1), (64, 1)]
    case = make_case(1, uniform=rows)
    op = triton.paged_attention_batch_invariant
    together = attend(case, op, dtype, dtype, DEVICE, False)
    for row in range(len(rows)):
        alone = evolve(
            case,
            q=case.q[row : row + 1],
            gate=case.gate[row : row + 1],
            computed=case.computed[row : row + 1],
            lens=[1],
            table=case.table[row : row + 1],
            num_uniform=1,
        )
        assert torch.equal(attend(alone, op, dtype, dtype, DEVICE, False)[0], together[row])


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_prompt_has_the_same_bits_alone(dtype: torch.dtype) -> None:
    rows = [(0, 37), (8, 5), (31, 40)]
    case = make_case(2, prefill=rows)
    op = triton.paged_attention_batch_invariant
    together, start = attend(case, op, dtype, dtype, DEVICE, True), 0
    for row, (computed, length) in enumerate(rows):
        own = slice(start, start + length)
        alone = evolve(
            case,
            q=case.q[own],
            gate=case.gate[own],
            computed=[computed],
            lens=[length],
            table=case.table[row : row + 1],
        )
        assert torch.equal(attend(alone, op, dtype, dtype, DEVICE, True), together[own])
        start += length


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_blocks_beyond_2_to_the_31st_element_are_read(dtype: torch.dtype) -> None:
    case = make_case(4, uniform=[(40, 2), (3, 1)], query=2, padding=1, prefill=[(16, 20), (0, 40)])
    unused = 2**31 // case.k[0].numel()
    near, far = (attend(case, triton.paged_attention, dtype, dtype, DEVICE, True, n) for n in (0, unused))
    assert torch.equal(far, near)


@pytest.mark.parametrize("op", [triton.paged_attention, triton.paged_attention_batch_invariant])
def test_any_order_of_programs_gives_the_same(op: Callable[..., Tensor]) -> None:
    case = make_case(3, uniform=[(40, 2), (3, 1)], query=2, padding=1, prefill=[(16, 20), (0, 40)])
    assert_order_free(lambda: [attend(case, op, torch.float32, torch.float32, DEVICE, True)])


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("heads", "width"), [((4, 2), 16), ((3, 1), 24), ((2, 2), 64)])
def test_heads_are_normed_rotated_and_written(heads: tuple[int, int], width: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(width)
    tokens, all_heads, block_size = 7, sum(heads), 4

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).double()

    joined = normal(tokens, all_heads * width + heads[1] * width + 5)
    scale = 1 + 0.3 * normal(all_heads, width)
    slots = torch.tensor([4, 30, 0, 17, 3, 5, 19])
    positions = torch.tensor([0, 1, 7, 30, 2, 90, 99])

    def run(op: Callable[..., Tensor], into: torch.dtype, acc: torch.dtype, device: str) -> list[Tensor]:
        data = joined.to(device, into)
        qk, v, _ = data.split_with_sizes((all_heads * width, heads[1] * width, 5), -1)
        cache = {
            name: torch.full((9, block_size, heads[1], width), 7.0, dtype=into, device=device)
            for name in "kv"
        }
        pool = PagedPool(
            block_size, None, torch.zeros(1, 1, dtype=torch.int64).to(device), slots.to(device), None
        )
        if device == "cpu" and op is naive_heads.qk_norm_rope_write:
            writing = torch.tensor([0, 1, 3, 5, 6])
            pool = PagedPool(block_size, None, pool.block_table, slots, writing)
        step = StepInputs(
            ids=slots.to(device),
            positions=positions.to(device),
            num_uniform=0,
            query_len=1,
            prefill=(PrefillSpan(0, 0, tokens, 0),),
            computed=torch.tensor([0]).to(device),
            query_lens=torch.tensor([tokens]).to(device),
            query_start=torch.tensor([0, tokens]).to(device),
            query_len_min=1,
            context_max=0,
            pools=(pool,),
        )
        rotary = RotaryTable(theta=1e4, rotary_dim=8, max_position=100, dtype=acc, device=device)
        weight = build_rms_weight(scale.to(acc).to(device), 1e-6)
        q = op(qk, v, weight, rotary, build_paged_kv(LayerCache(0, cache)), step, pool)
        return [q.cpu().double(), cache["k"].cpu().double(), cache["v"].cpu().double()]

    wanted = run(naive_heads.qk_norm_rope_write, torch.float64, torch.float64, "cpu")
    found = run(kernel_heads.qk_norm_rope_write, dtype, torch.float32, DEVICE)
    for own, right in zip(found, wanted, strict=True):
        assert bool(own.isfinite().all())
        assert float((own - right).norm() / right.norm()) < (1e-6 if dtype == torch.float32 else 4e-3)
        assert torch.equal(own == 7, right == 7), "places that no token has were written"
    assert bool((found[1][0] == 7).all()), "the null block was written"
    assert bool((found[2][0] == 7).all()), "the null block was written"
    assert_order_free(lambda: run(kernel_heads.qk_norm_rope_write, dtype, torch.float32, DEVICE))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("heads", "width"), [(2, 16), (3, 24), (1, 128)])
def test_keys_and_values_are_written(heads: int, width: int, dtype: torch.dtype) -> None:
    """Tokens of the null block write nothing; keys lie as they come from a joint projection, or turned."""
    draw = torch.Generator().manual_seed(width)
    block_size, slots = 4, torch.tensor([4, 30, 0, 17, 3, 5, 19])
    joined = torch.randn(7, 2 * heads * width + 8, generator=draw).to(dtype)
    turned = torch.randn(7, width, heads, generator=draw).to(dtype)

    def run(op: Callable[..., None], device: str, writing: Tensor | None) -> list[Tensor]:
        values = joined.to(device)[:, 8 : 8 + heads * width].view(7, heads, width)
        cache = {
            name: torch.full((9, block_size, heads, width), NAN, dtype=dtype, device=device) for name in "kv"
        }
        pool = PagedPool(
            block_size, None, torch.zeros(1, 1, dtype=torch.int64, device=device), slots.to(device), writing
        )
        op(build_paged_kv(LayerCache(0, cache)), turned.to(device).mT, values, pool)
        return [cache["k"].cpu(), cache["v"].cpu()]

    wanted = run(naive_write.kv_write, "cpu", (slots >= block_size).nonzero().squeeze(1))
    found = run(kernel_write.kv_write, DEVICE, None)
    for own, right in zip(found, wanted, strict=True):
        assert torch.equal(own.nan_to_num(), right.nan_to_num())
        assert torch.equal(own.isnan(), right.isnan())
    assert_order_free(lambda: run(kernel_write.kv_write, DEVICE, None))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_heads_are_written_beyond_the_2_to_the_31st_element(dtype: torch.dtype) -> None:
    block_size, width = 16, 256
    first = 2**31 // (block_size * width)
    cache = {
        name: torch.full((first + 2, block_size, 1, width), 7.0, dtype=dtype, device=DEVICE) for name in "kv"
    }
    slots = torch.tensor([first * block_size, (first + 1) * block_size + 5])
    pool = PagedPool(
        block_size, None, torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), slots.to(DEVICE), None
    )
    numbers = torch.arange(2, device=DEVICE)
    step = StepInputs(
        ids=numbers,
        positions=numbers,
        num_uniform=0,
        query_len=1,
        prefill=(PrefillSpan(0, 0, 2, 0),),
        computed=torch.zeros(1, dtype=torch.int64, device=DEVICE),
        query_lens=torch.full((1,), 2, device=DEVICE),
        query_start=torch.tensor([0, 2], device=DEVICE),
        query_len_min=1,
        context_max=0,
        pools=(pool,),
    )
    rotary = RotaryTable(theta=1e4, rotary_dim=64, max_position=8, dtype=torch.float32, device=DEVICE)
    weight = build_rms_weight(torch.ones(2, width, device=DEVICE), 1e-6)
    qk, v = torch.ones(2, 2 * width, dtype=dtype, device=DEVICE), torch.full((2, width), 3.0, device=DEVICE)
    kernel_heads.qk_norm_rope_write(
        qk, v.to(dtype), weight, rotary, build_paged_kv(LayerCache(0, cache)), step, pool
    )
    for values in cache.values():
        flat = values.view(-1, width)
        written = (flat != 7).any(dim=1).nonzero().flatten()
        assert torch.equal(written.cpu(), slots)
    assert bool((cache["v"].view(-1, width)[slots] == 3).all())
