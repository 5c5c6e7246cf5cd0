"""Step preparation and commit as kernels: the same tensors as their naive twins, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch

from vtcore.ops.commit_step import naive as naive_commit
from vtcore.ops.commit_step import triton as kernel_commit
from vtcore.ops.prepare_step import naive, triton
from vtcore.testing.triton_interpreter import kernel_device

ROWS, WIDTH, BLOCK, VOCAB = 9, 7, 4, 50


@pytest.fixture(autouse=True)
def on_the_device_of_kernels() -> Iterator[None]:
    with torch.device(kernel_device()):
        yield


def draw(seed: int, drafts: int, uniform: int, prefill: list[int]) -> dict[str, Any]:
    """Tables of 8 rows and a step over some of them, a padding row in between."""
    random = Random(seed)
    torch.manual_seed(seed)
    rows = random.sample(range(1, ROWS), uniform + len(prefill))
    if uniform > 1:
        rows[uniform - 1] = 0
    computed = torch.tensor([0, *(random.randrange(WIDTH * BLOCK - 8) for _ in range(ROWS - 1))])
    table = torch.randint(1, 99, (ROWS, WIDTH))
    table[0] = 0
    slots = torch.randint(1, 99, (ROWS, drafts + 1))
    slots[0] = 0
    counts = torch.tensor([1 + drafts] * uniform + prefill)
    tokens = [
        torch.arange(int(computed[r]), int(computed[r]) + n)
        for r, n in zip(rows[uniform:], prefill, strict=True)
    ]
    cur_slot = torch.randint(0, drafts + 1, (ROWS,))
    cur_slot[0] = 0
    return {
        "rows": torch.tensor(rows),
        "starts": torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))),
        "row_of": torch.repeat_interleave(torch.arange(len(rows)), counts),
        "drafts": torch.randint(-1, VOCAB + 3, (uniform, drafts)),
        "last": torch.randint(0, VOCAB, (ROWS,)),
        "computed": computed,
        "limit": computed + torch.randint(2, 6, (ROWS,)),
        "table": table,
        "slots": slots,
        "cur_slot": cur_slot,
        "prefill": tokens,
    }


CASES = [(0, 1, []), (0, 4, []), (0, 3, [5, 1]), (0, 0, [7]), (2, 3, []), (3, 4, [2, 6]), (1, 1, [1])]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("drafts", "uniform", "prefill"), CASES)
def test_a_step_is_prepared_as_by_the_naive_ops(
    drafts: int, uniform: int, prefill: list[int], seed: int
) -> None:
    it = draw(seed, drafts, uniform, prefill)
    columns = (it["last"], it["computed"], it["limit"])
    wanted = naive.prepare_rows(it["rows"], it["starts"], uniform, it["drafts"], VOCAB, *columns)
    found = triton.prepare_rows(it["rows"], it["starts"], uniform, it["drafts"], VOCAB, *columns)
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
    _, positions, computed, lens, _ = wanted
    positions = torch.cat((positions, *it["prefill"]))
    args = (it["rows"], it["row_of"], positions, computed, lens, uniform, 1 + drafts, it["table"], BLOCK)
    table, slots = naive.prepare_blocks(*args)
    own_table, own_slots = triton.prepare_blocks(*args)
    assert torch.equal(slots, own_slots)
    # Entries past a row's last position are not looked at, so the kernel does not read them.
    used = (computed + lens + BLOCK - 1) // BLOCK
    assert torch.equal(own_table, table.masked_fill(torch.arange(WIDTH) >= used[:, None], 0))
    for one, other in zip(
        naive.prepare_slots(it["rows"], it["slots"], it["cur_slot"]),
        triton.prepare_slots(it["rows"], it["slots"], it["cur_slot"]),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("uniform", [0, 2, 5])
def test_columns_move_on_as_by_the_naive_op_and_row_0_stays_zero(uniform: int, columns: int) -> None:
    rows = torch.tensor([3, 0, 7, 1, 0])
    before = [torch.randint(1, 40, (ROWS,)) for _ in range(3)]
    for column in before:
        column[0] = 0
    new, token = torch.randint(1, columns + 1, (5,)), torch.randint(0, VOCAB, (5,))
    results = []
    for op in (naive_commit.commit_step, kernel_commit.commit_step):
        computed, last, cur_slot = (column.clone() for column in before)
        op(
            rows,
            computed[rows],
            new,
            token,
            computed,
            last,
            cur_slot if columns > 1 else None,
            uniform,
        )
        assert not int(computed[0])
        assert not int(last[0])
        assert not int(cur_slot[0])
        results.append((computed, last, cur_slot))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
