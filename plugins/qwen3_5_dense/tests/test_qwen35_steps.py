"""Rows of a step do not see each other, and drafts leave no trace."""

from __future__ import annotations

import pytest
import torch
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config
from torch import Tensor
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch

from vtcore.errors import EngineError
from vtcore.testing.model_harness import Harness, Prefill, Row, Uniform, accept, build_model


@pytest.fixture(scope="module")
def oracle() -> object:
    return build_oracle(tiny_text_config())


def harness(oracle: object, columns: int = 1) -> Harness:
    arch = Qwen35DenseArch(tiny_text_config())
    model = build_model(arch, oracle.state_dict(), torch.float64)  # type: ignore[attr-defined]
    return Harness(arch, model, torch.float64, columns=columns)


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert (found - wanted).abs().max() <= 1e-10 * wanted.abs().max()


def prefilled(h: Harness, ids: list[int]) -> Row:
    row = h.admit()
    h.step(prefill=[Prefill(row, ids)])
    return row


def test_a_mixed_step_equals_each_row_alone(oracle: object) -> None:
    h = harness(oracle, columns=3)
    known = [random_ids(n, seed=n) for n in (5, 17, 70, 1)]
    rows = [prefilled(h, ids) for ids in known[:3]]
    verify = [random_ids(3, seed=50 + i) for i in range(3)]
    fresh, first, more = h.admit(), random_ids(67, 90), random_ids(2, 91)
    chunked = prefilled(h, known[3])
    logits = h.logits(
        uniform=[Uniform(row, ids, 3) for row, ids in zip(rows, verify, strict=True)],
        prefill=[Prefill(fresh, first), Prefill(chunked, more)],
    )
    for index in range(3):
        wanted = oracle_logits(oracle, known[index] + verify[index])[-3:]
        assert_close(logits[3 * index : 3 * index + 3], wanted)
    assert_close(logits[9:76], oracle_logits(oracle, first))
    assert_close(logits[76:], oracle_logits(oracle, known[3] + more)[1:])


@pytest.mark.parametrize("query", [2, 3, 4])
@pytest.mark.parametrize("prompt", [1, 2, 9])
def test_rejection_at_every_position_equals_plain_decoding(oracle: object, query: int, prompt: int) -> None:
    ids = random_ids(prompt + 24, seed=prompt)
    wanted = oracle_logits(oracle, ids)
    for emitted in range(1, query + 1):
        h = harness(oracle, columns=query)
        row = prefilled(h, ids[:prompt])
        done = prompt
        while done + query <= len(ids):
            right = ids[done : done + emitted]
            drafts = right + [(t + 1) % 96 for t in ids[done + emitted : done + query]]
            item = Uniform(row, drafts, query)
            assert_close(h.logits(uniform=[item])[:emitted], wanted[done : done + emitted])
            accept(item, emitted)
            done += emitted
            # A step without drafts starts from the accepted column too.
            single = Uniform(row, [ids[done]], 1) if done < len(ids) else None
            if single is not None:
                assert_close(h.logits(uniform=[single])[0], wanted[done])
                done += 1


def test_short_queries_stop_at_their_length(oracle: object) -> None:
    h = harness(oracle, columns=3)
    known = [random_ids(n, seed=n) for n in (4, 6, 8)]
    rows = [prefilled(h, ids) for ids in known]
    queries = [random_ids(3, seed=60 + i) for i in range(3)]
    lengths = [1, 3, 2]
    logits = h.logits(uniform=[Uniform(*x) for x in zip(rows, queries, lengths, strict=True)], slack=3)
    assert logits.isfinite().all()
    for index, length in enumerate(lengths):
        wanted = oracle_logits(oracle, known[index] + queries[index][:length])[-length:]
        assert_close(logits[3 * index : 3 * index + length], wanted)
    following = h.logits(uniform=[Uniform(row, [7], 1) for row in rows])
    for index, length in enumerate(lengths):
        assert_close(
            following[index], oracle_logits(oracle, known[index] + queries[index][:length] + [7])[-1]
        )


@pytest.mark.parametrize("query", [1, 3])
def test_rows_without_a_query_leave_every_cache_bit_for_bit(oracle: object, query: int) -> None:
    h = harness(oracle, columns=query)
    active, idle, padding = (
        prefilled(h, random_ids(5, 1)),
        prefilled(h, random_ids(6, 2)),
        Row([], [0] * query),
    )
    before = {name: {k: t.clone() for k, t in c.tensors.items()} for name, c in h.caches.items()}
    ids = random_ids(query, 3)
    out = h.step(uniform=[Uniform(padding, ids, 0), Uniform(active, ids, query), Uniform(idle, ids, 0)])
    assert out.hidden.isfinite().all()
    for name, cache in h.caches.items():
        mine = set(active.slots if "state" in cache.tensors else active.blocks)
        others = torch.tensor(
            [i for i in range(cache.tensors[next(iter(cache.tensors))].shape[0]) if i not in mine]
        )
        for key, tensor in cache.tensors.items():
            same = torch.equal(tensor[others].nan_to_num(9.0), before[name][key][others].nan_to_num(9.0))
            assert same, (name, key)
    assert_close(
        h.logits(uniform=[Uniform(idle, [3], 1)])[0], oracle_logits(oracle, [*random_ids(6, 2), 3])[-1]
    )


def test_a_step_whose_rows_all_have_no_query_writes_nothing(oracle: object) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(5, 1))
    before = [t.clone() for c in h.caches.values() for t in c.tensors.values()]
    h.step(uniform=[Uniform(row, [1], 0)])
    after = [t for c in h.caches.values() for t in c.tensors.values()]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.nan_to_num(9.0), new.nan_to_num(9.0))


def test_fifty_sequences_on_recycled_poisoned_memory_give_the_same_logits(oracle: object) -> None:
    h = harness(oracle)
    ids = random_ids(11, 4)
    wanted = oracle_logits(oracle, ids)
    for _ in range(50):
        assert_close(h.run_sequence(ids, [1, 5]), wanted)


@pytest.mark.parametrize("length", [1, 2])
def test_a_first_chunk_shorter_than_the_kernel_starts_from_the_zeroed_slot(
    oracle: object, length: int
) -> None:
    h = harness(oracle)
    other = prefilled(h, random_ids(30, 5))
    h.release(other)
    h.free_slots.sort()
    ids = random_ids(8, 6)
    assert_close(h.run_sequence(ids, [length, 1, 1]), oracle_logits(oracle, ids))


def test_a_batch_of_unequal_lengths_equals_singles(oracle: object) -> None:
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


def test_a_running_row_with_a_null_block_is_an_engine_error(oracle: object) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(9, 1))
    row.blocks[1] = 0
    with pytest.raises(EngineError, match="null block"):
        h.step(uniform=[Uniform(row, [1], 1)])


def test_a_running_row_with_a_null_slot_is_an_engine_error(oracle: object) -> None:
    h = harness(oracle)
    row = prefilled(h, random_ids(9, 1))
    row.slots[0] = 0
    with pytest.raises(EngineError, match="null slot"):
        h.step(uniform=[Uniform(row, [1], 1)])
    with pytest.raises(EngineError, match="null slot"):
        h.step(prefill=[Prefill(row, [1, 2])])


def test_long_decoding_stays_equal_to_recomputation(oracle: object) -> None:
    h = harness(oracle)
    ids = random_ids(300, 8)
    assert_close(h.run_sequence(ids, [1]), oracle_logits(oracle, ids))
