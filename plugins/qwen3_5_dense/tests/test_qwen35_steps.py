"""Steps that the conformance kit does not make: null units, empty steps, first chunks below the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config
from torch import Tensor
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch

from vtcore.errors import EngineError
from vtcore.testing.model_harness import Harness, Prefill, Row, Uniform, build_model


@pytest.fixture(scope="module")
def oracle() -> Any:
    return build_oracle(tiny_text_config())


def harness(oracle: Any) -> Harness:
    arch = Qwen35DenseArch(tiny_text_config())
    return Harness(arch, build_model(arch, oracle.state_dict(), torch.float64), torch.float64)


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert (found - wanted).abs().max() <= 1e-10 * wanted.abs().max()


def prefilled(h: Harness, ids: list[int]) -> Row:
    row = h.admit()
    h.step(prefill=[Prefill(row, ids)])
    return row


def test_a_step_whose_rows_all_have_no_query_writes_nothing(oracle: Any) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(5, 1))
    before = h.snapshot()
    h.step(uniform=[Uniform(row, [1], 0)])
    assert h.changed(before, besides=Row({pool: [] for pool in h.paged}, [])) == []


@pytest.mark.parametrize("length", [1, 2])
def test_a_first_chunk_shorter_than_the_kernel_starts_from_the_zeroed_slot(oracle: Any, length: int) -> None:
    h = harness(oracle)
    h.release(prefilled(h, random_ids(30, 5)))
    h.free_slots.sort()
    ids = random_ids(8, 6)
    assert_close(h.run_sequence(ids, [length, 1, 1]), oracle_logits(oracle, ids))


def test_a_batch_of_unequal_prompts_equals_singles(oracle: Any) -> None:
    h = harness(oracle)
    known = [random_ids(n, seed=n) for n in (3, 40, 101, 64)]
    rows = [h.admit() for _ in known]
    logits = h.logits(prefill=[Prefill(row, ids) for row, ids in zip(rows, known, strict=True)])
    following = h.logits(uniform=[Uniform(row, [5], 1) for row in rows], slack=13)
    offset = 0
    for index, ids in enumerate(known):
        wanted = oracle_logits(oracle, [*ids, 5])
        assert_close(logits[offset : offset + len(ids)], wanted[:-1])
        assert_close(following[index], wanted[-1])
        offset += len(ids)


def test_a_running_row_with_a_null_block_is_an_engine_error(oracle: Any) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(9, 1))
    row.blocks[h.paged[0]][1] = 0
    with pytest.raises(EngineError, match="null block"):
        h.step(uniform=[Uniform(row, [1], 1)])


def test_a_running_row_with_a_null_slot_is_an_engine_error(oracle: Any) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(9, 1))
    row.slots[0] = 0
    with pytest.raises(EngineError, match="null slot"):
        h.step(uniform=[Uniform(row, [1], 1)])
    with pytest.raises(EngineError, match="null slot"):
        h.step(prefill=[Prefill(row, [1, 2])])


def test_long_decoding_stays_equal_to_recomputation(oracle: Any) -> None:
    ids = random_ids(300, 8)
    assert_close(harness(oracle).run_sequence(ids, [1]), oracle_logits(oracle, ids))
