"""Paged attention equals dense attention over the row's own positions, and reads nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.step import LayerCache, PagedPool, PrefillSpan, StepInputs
from vtcore.layers.paged_kv import PagedKV, build_paged_kv
from vtcore.ops.kv_write.naive import kv_write
from vtcore.ops.paged_attention.naive import paged_attention

BLOCK = 4
WIDTH = 8


def dense(q: Tensor, k: Tensor, v: Tensor, position: int, window: int | None) -> Tensor:
    """One query [H, D] over k, v [C, G, D] up to its own position."""
    first = 0 if window is None else max(0, position - window + 1)
    each = q.shape[0] // k.shape[1]
    k, v = (x[first : position + 1].repeat_interleave(each, 1) for x in (k, v))
    weights = (torch.einsum("hd,chd->hc", q, k) * 0.3).softmax(-1)
    return torch.einsum("hc,chd->hd", weights, v)


def run(
    heads: int,
    groups: int,
    window: int | None,
    uniform: list[tuple[int, int]],
    query_len: int,
    prefill: list[tuple[int, int]],
    slack: int = 0,
) -> tuple[Tensor, list[Tensor | None]]:
    """Attend rows of (computed, query) tokens; returns the op's result and the wanted row per token."""
    generator = torch.Generator().manual_seed(heads * 100 + groups)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shape = (120, BLOCK, groups, WIDTH)
    kv: PagedKV = build_paged_kv(
        LayerCache(0, {name: torch.full(shape, float("nan"), dtype=torch.float64) for name in "kv"})
    )
    free = (torch.randperm(119, generator=generator) + 1).tolist()
    rows = uniform + prefill
    width = max(-(-(c + n) // BLOCK) for c, n in rows) + 1
    table = torch.zeros(len(rows), width, dtype=torch.int64)
    slots: list[int] = []
    keys, values, wanted, spans, writers = [], [], [], [], []
    q = draw(len(uniform) * query_len + sum(n for _, n in prefill), heads, WIDTH)
    token = 0
    for index, (computed, length) in enumerate(rows):
        padded = query_len if index < len(uniform) else length
        k, v = draw(computed + padded, groups, WIDTH), draw(computed + padded, groups, WIDTH)
        for block in range(-(-(computed + length) // BLOCK)):
            # Blocks wholly behind the window of every query of this step are freed and null.
            behind = window is not None and (block + 1) * BLOCK <= computed - window + 1
            table[index, block] = 0 if behind else free.pop()
        for position in range(computed):
            block = int(table[index, position // BLOCK])
            if block:
                kv.k_NBHD[block, position % BLOCK] = k[position]
                kv.v_NBHD[block, position % BLOCK] = v[position]
        if index >= len(uniform):
            spans.append(PrefillSpan(index, token, length, computed))
        for offset in range(padded):
            position, valid = computed + offset, offset < length
            block = int(table[index, position // BLOCK]) if valid else 0
            slots.append(block * BLOCK + position % BLOCK if valid else 0)
            if valid:
                writers.append(token)
            wanted.append(dense(q[token], k, v, position, window) if valid else None)
            keys.append(k[position])
            values.append(v[position])
            token += 1
    all_write = len(writers) == token
    pool = PagedPool(BLOCK, window, table, torch.tensor(slots), None if all_write else torch.tensor(writers))
    step = StepInputs(
        ids=torch.zeros(token, dtype=torch.int64),
        positions=torch.zeros(token, dtype=torch.int64),
        num_uniform=len(uniform),
        query_len=query_len,
        prefill=tuple(spans),
        computed=torch.tensor([c for c, _ in rows]),
        query_lens=torch.tensor([n for _, n in rows]),
        query_start=torch.tensor(
            [*(i * query_len for i in range(len(uniform))), *(s.offset for s in spans), token]
        ),
        query_len_min=min((n for _, n in uniform), default=query_len),
        context_max=max((c + n for c, n in uniform), default=0) + slack,
        pools=(pool,),
    )
    kv_write(kv, torch.stack(keys), torch.stack(values), pool)
    assert kv.k_NBHD[0].isnan().all()
    return paged_attention(q, kv, step, pool, 0.3), wanted


@pytest.mark.parametrize("window", [None, 1, 3, 5, 64])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize(
    ("uniform", "query_len", "prefill"),
    [
        ([(9, 1)], 1, []),
        ([(9, 1), (1, 1), (30, 1)], 1, []),
        ([(9, 3), (2, 1), (30, 2), (7, 0)], 3, []),
        ([(0, 0), (12, 2)], 2, []),
        ([], 1, [(0, 11), (0, 1), (8, 6), (13, 1)]),
        ([(5, 2), (21, 2)], 2, [(0, 9), (6, 3)]),
    ],
)
def test_paged_equals_dense_over_the_rows_own_window(
    uniform: list[tuple[int, int]],
    query_len: int,
    prefill: list[tuple[int, int]],
    heads: int,
    groups: int,
    window: int | None,
) -> None:
    for slack in (0, 2):
        found, wanted = run(heads, groups, window, uniform, query_len, prefill, slack)
        assert found.isfinite().all()
        for token, row in enumerate(wanted):
            if row is not None:
                assert torch.allclose(found[token], row, rtol=1e-12, atol=1e-13), token


def test_writing_through_the_null_block_is_an_engine_error() -> None:
    shape = (3, BLOCK, 1, WIDTH)
    kv = build_paged_kv(LayerCache(0, {name: torch.zeros(shape) for name in "kv"}))
    pool = PagedPool(BLOCK, None, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([2]), None)
    with pytest.raises(EngineError, match="null block"):
        kv_write(kv, torch.ones(1, 1, WIDTH), torch.ones(1, 1, WIDTH), pool)
