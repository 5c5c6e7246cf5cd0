"""Pools by lifetime and their sizes; what does not fit is refused with numbers that are true."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from vtcore.errors import ConfigError, MemoryPlanError
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot, Whole, Window
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.planner import PlanLimits, group_by_lifetime, plan_memory
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow


def limits(**changes: Any) -> PlanLimits:
    base = PlanLimits(
        block_size=4,
        num_blocks=10,
        max_num_seqs=3,
        max_model_len=40,
        max_model_len_pinned=True,
        max_query=8,
    )
    return evolve(base, **changes)


def attention(*layers: str, heads: int = 2) -> FullAttentionSpec:
    return FullAttentionSpec(layers=layers, block_size=4, num_kv_heads=heads, head_dim=3, dtype="float32")


def window(layer: str, tokens: int) -> ToyWindow:
    return ToyWindow(layers=(layer,), block_size=4, window=tokens)


def state(*layers: str) -> RecurrentStateSpec:
    return RecurrentStateSpec(
        layers=layers, block_size=4, state=(("conv", (2, 3), "bfloat16"), ("delta", (5,), "float32"))
    )


MIXED: tuple[KVCacheSpec, ...] = (
    state("s0", "s1"),
    window("w9", 9),
    attention("a0", "a1"),
    window("w5", 5),
    window("w5b", 5),
    ToyBlocks(layers=("t",), block_size=4),
)


def test_groups_share_a_pool_by_lifetime_whole_first_then_windows_then_slots() -> None:
    groups = group_by_lifetime(MIXED)
    assert [life for life, _ in groups] == [Whole(), Window(5), Window(9), Slot()]
    assert [[layer for spec in specs for layer in spec.layers] for _, specs in groups] == [
        ["a0", "a1", "t"],
        ["w5", "w5b"],
        ["w9"],
        ["s0", "s1"],
    ]


def test_two_groups_with_one_layer_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a1' is in two cache groups \(full_attention and toy_blocks\)"):
        plan_memory([attention("a0", "a1"), ToyBlocks(layers=("a1",), block_size=4)], limits())


def test_sizes_of_every_kind_of_pool() -> None:
    whole, five, nine, slots = plan_memory(MIXED, limits(k_max=2, lookahead=2)).pools
    assert (whole.num_units, whole.slots_per_request, whole.is_slot) == (11, 0, False)
    # k and v of two layers of 4 * 2 * 3 float32, and 4 int64 ids.
    assert whole.unit_bytes == 2 * 2 * 4 * 2 * 3 * 4 + 4 * 8
    # A window of 5 with 8 in flight and 2 ahead spans 14 positions, 5 blocks when badly aligned.
    assert five.num_units == 3 * 5 + 1
    assert nine.num_units == 3 * 6 + 1
    assert (slots.num_units, slots.slots_per_request, slots.is_slot) == (3 * 3 + 1, 3, True)
    assert slots.unit_bytes == 2 * (2 * 3 * 2 + 5 * 4)


def test_a_bounded_pool_is_as_large_as_its_hungriest_group() -> None:
    class Greedy(ToyWindow):
        def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
            return 17

    specs = [window("w", 5), Greedy(layers=("g",), block_size=4, window=5)]
    [pool] = plan_memory(specs, limits()).pools
    assert pool.num_units == 3 * 17 + 1


@given(
    num_blocks=st.integers(1, 20),
    max_num_seqs=st.integers(1, 4),
    k_max=st.integers(0, 3),
    max_query=st.integers(1, 40),
    chosen=st.sets(st.sampled_from(MIXED), min_size=1),
)
def test_planned_bytes_are_allocated_bytes_and_shapes_lead_with_units(
    num_blocks: int, max_num_seqs: int, k_max: int, max_query: int, chosen: set[KVCacheSpec]
) -> None:
    specs = [spec for spec in MIXED if spec in chosen]
    plan = plan_memory(
        specs,
        limits(
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_model_len_pinned=False,
            k_max=k_max,
            max_query=max_query,
            weight_bytes=77,
        ),
    )
    caches = allocate_caches(plan, k_max, "cpu").layers
    assert sorted(caches) == sorted(layer for spec in specs for layer in spec.layers)
    total = 0
    for index, pool in enumerate(plan.pools):
        own = 0
        for spec in pool.specs:
            for layer in spec.layers:
                assert caches[layer].pool == index
                for key, tensor in spec.tensors(k_max).items():
                    found = caches[layer][key]
                    assert found.shape == (pool.num_units, *tensor.shape)
                    assert str(found.dtype) == f"torch.{tensor.dtype}"
                    own += found.numel() * found.element_size()
        assert own == pool.num_bytes
        total += own
    assert total == plan.cache_bytes
    assert plan.weight_bytes == 77


def test_caches_are_allocated_uninitialised() -> None:
    """Nothing may lean on zeros; under the test suite fresh memory holds NaN."""
    caches = allocate_caches(plan_memory([attention("a")], limits()), 0, "cpu").layers
    assert bool(torch.isnan(caches["a"]["k"]).all())


def test_a_pinned_length_beyond_the_blocks_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory([attention("a")], limits(max_model_len=41))
    text = str(caught.value)
    for part in ("max_model_len=41", "11 blocks of 4 tokens", "num_blocks=10", "40 tokens"):
        assert part in text
    fitting = int(re.search(r"largest max_model_len that fits is (\d+)", text)[1])  # type: ignore[index]
    blocks = int(re.search(r"raise num_blocks to (\d+)", text)[1])  # type: ignore[index]
    assert plan_memory([attention("a")], limits(max_model_len=fitting)).max_model_len == fitting == 40
    with pytest.raises(MemoryPlanError):
        plan_memory([attention("a")], limits(max_model_len=fitting + 1))
    assert plan_memory([attention("a")], limits(max_model_len=41, num_blocks=blocks)).max_model_len == 41
    with pytest.raises(MemoryPlanError):
        plan_memory([attention("a")], limits(max_model_len=41, num_blocks=blocks - 1))


def test_a_length_nobody_pinned_is_cut_to_the_blocks() -> None:
    plan = plan_memory([attention("a")], limits(max_model_len=4096, max_model_len_pinned=False))
    assert plan.max_model_len == 40
    assert (
        plan_memory([attention("a")], limits(max_model_len=7, max_model_len_pinned=False)).max_model_len == 7
    )


def test_without_an_unbounded_pool_blocks_limit_no_length() -> None:
    assert plan_memory([state("s")], limits(max_model_len=10**6)).max_model_len == 10**6


@given(
    num_blocks=st.integers(1, 200),
    available=st.integers(0, 60_000),
    weight_bytes=st.integers(0, 2_000),
    max_num_seqs=st.integers(1, 4),
    pinned=st.booleans(),
)
def test_what_does_not_fit_is_refused_with_the_largest_num_blocks_that_does(
    num_blocks: int, available: int, weight_bytes: int, max_num_seqs: int, pinned: bool
) -> None:
    specs = (attention("a"), state("s"), window("w", 5))
    case = limits(
        num_blocks=num_blocks,
        available_bytes=available,
        weight_bytes=weight_bytes,
        max_num_seqs=max_num_seqs,
        max_model_len=4 if pinned else 4096,
        max_model_len_pinned=pinned,
        max_query=1,
    )
    try:
        plan = plan_memory(specs, case)
    except MemoryPlanError as error:
        text = str(error)
    else:
        assert plan.total_bytes <= available
        return
    assert f"num_blocks={num_blocks}" in text
    assert f"max_num_seqs={max_num_seqs}" in text
    assert text.count("MiB") == 5
    found = re.search(r"largest num_blocks that fits is (\d+)", text)
    largest = int(found[1]) if found else 0
    assert largest < num_blocks
    if largest:
        plan_memory(specs, evolve(case, num_blocks=largest))
    else:
        assert "no num_blocks fits" in text
    # Below three blocks a shorter model also shrinks the window's pool, so there one more may fit.
    if largest + 1 < num_blocks and largest >= 3:
        with pytest.raises(MemoryPlanError):
            plan_memory(specs, evolve(case, num_blocks=largest + 1))


def test_a_plan_that_fits_to_the_byte_is_taken() -> None:
    plan = plan_memory(MIXED, limits(weight_bytes=100))
    total = plan.total_bytes
    assert total == plan.cache_bytes + plan.table_bytes + 100
    assert plan_memory(MIXED, limits(weight_bytes=100, available_bytes=total)).cache_bytes == plan.cache_bytes
    with pytest.raises(MemoryPlanError, match="available are"):
        plan_memory(MIXED, limits(weight_bytes=100, available_bytes=total - 1))


def test_a_pinned_length_is_named_when_fewer_blocks_would_not_hold_it() -> None:
    """The number in the message must work, so it says what length goes with it."""
    case = limits(max_model_len=40)
    total = plan_memory([attention("a")], case).total_bytes
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory([attention("a")], evolve(case, available_bytes=total - 1))
    found = re.search(
        r"largest num_blocks that fits is (\d+), with max_model_len at most (\d+)", str(caught.value)
    )
    assert found is not None, str(caught.value)
    blocks, length = int(found[1]), int(found[2])
    plan_memory(
        [attention("a")], evolve(case, available_bytes=total - 1, num_blocks=blocks, max_model_len=length)
    )


def test_a_slot_only_model_that_does_not_fit_is_told_what_to_lower() -> None:
    with pytest.raises(MemoryPlanError, match=r"^max_num_seqs=3 needs .*; it does not fit: lower max_num"):
        plan_memory([ToyState(layers=("s",), block_size=4)], limits(available_bytes=8))


def test_blocks_or_bytes_size_the_pools_and_never_both() -> None:
    for blocks, num_bytes in ((None, None), (10, 10_000)):
        with pytest.raises(ValueError, match="either num_blocks or kv_cache_memory_bytes"):
            plan_memory(MIXED, limits(num_blocks=blocks, kv_cache_memory_bytes=num_bytes))


@given(num_blocks=st.integers(1, 200), spare=st.integers(0, 4), max_num_seqs=st.integers(1, 4))
def test_the_bytes_of_a_plan_by_blocks_give_the_same_plan(
    num_blocks: int, spare: int, max_num_seqs: int
) -> None:
    """So null units and tables are counted alike; less than a block more changes nothing."""
    case = limits(num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_model_len=3, max_query=1)
    plan = plan_memory(MIXED, case)
    num_bytes = plan.cache_bytes + plan.table_bytes
    assert plan_memory(MIXED, evolve(case, num_blocks=None, kv_cache_memory_bytes=num_bytes + spare)) == plan


@given(
    num_bytes=st.integers(1, 100_000),
    max_num_seqs=st.integers(1, 4),
    k_max=st.integers(0, 2),
    length=st.integers(1, 300),
    pinned=st.booleans(),
    chosen=st.sets(st.sampled_from(MIXED), min_size=1),
)
def test_bytes_hold_as_many_blocks_as_fit_or_say_what_is_needed(
    num_bytes: int, max_num_seqs: int, k_max: int, length: int, pinned: bool, chosen: set[KVCacheSpec]
) -> None:
    specs = [spec for spec in MIXED if spec in chosen]
    case = limits(
        num_blocks=None,
        kv_cache_memory_bytes=num_bytes,
        max_num_seqs=max_num_seqs,
        k_max=k_max,
        max_model_len=length,
        max_model_len_pinned=pinned,
    )
    is_unbounded = any(isinstance(spec.lifetime, Whole) for spec in specs)
    text = ""
    try:
        plan = plan_memory(specs, case)
    except MemoryPlanError as error:
        text = str(error)
    if text:
        assert text.startswith(f"kv_cache_memory_bytes={num_bytes} (")
        needed = int(re.search(r"need, (\d+) bytes", text)[1])  # type: ignore[index]
        assert needed > num_bytes
        least = plan_memory(specs, evolve(case, kv_cache_memory_bytes=needed))
        assert least.cache_bytes + least.table_bytes == needed
        with pytest.raises(MemoryPlanError):
            plan_memory(specs, evolve(case, kv_cache_memory_bytes=needed - 1))
        return
    assert plan.cache_bytes + plan.table_bytes <= num_bytes
    if not is_unbounded:
        assert (plan.num_blocks, plan.max_model_len) == (0, length)
        return
    assert plan.num_blocks >= 1
    assert plan.max_model_len == (length if pinned else min(length, plan.num_blocks * 4))
    more = plan_memory(specs, evolve(case, kv_cache_memory_bytes=None, num_blocks=plan.num_blocks + 1))
    assert more.cache_bytes + more.table_bytes > num_bytes


def test_too_few_bytes_are_refused_with_the_least_that_work() -> None:
    case = limits(num_blocks=None, kv_cache_memory_bytes=1000, max_model_len=40)
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory([attention("a")], case)
    plan = plan_memory([attention("a")], limits(num_blocks=10, max_model_len=40))
    assert str(caught.value) == (
        f"kv_cache_memory_bytes=1000 (0.0 MiB) is less than the caches and tables of max_num_seqs=3 and one "
        f"request of 40 tokens need, {plan.cache_bytes + plan.table_bytes} bytes (0.0 MiB); "
        f"raise it to that, or lower max_num_seqs or max_model_len"
    )


@given(available=st.integers(0, 60_000), weight_bytes=st.integers(0, 2_000), pinned=st.booleans())
def test_bytes_that_the_machine_lacks_are_refused_with_the_most_that_it_has(
    available: int, weight_bytes: int, pinned: bool
) -> None:
    case = limits(
        num_blocks=None,
        kv_cache_memory_bytes=50_000,
        available_bytes=available,
        weight_bytes=weight_bytes,
        max_model_len_pinned=pinned,
    )
    try:
        plan_memory([attention("a"), state("s")], case)
    except MemoryPlanError as error:
        text = str(error)
    else:
        return
    assert text.startswith("kv_cache_memory_bytes=50000 and max_num_seqs=3 need ")
    found = re.search(r"largest kv_cache_memory_bytes that fits is (\d+)", text)
    if found:
        plan_memory([attention("a"), state("s")], evolve(case, kv_cache_memory_bytes=int(found[1])))
    else:
        assert "no kv_cache_memory_bytes fits" in text
        with pytest.raises(MemoryPlanError):
            plan_memory(
                [attention("a"), state("s")],
                evolve(case, kv_cache_memory_bytes=max(available - weight_bytes, 1)),
            )


@pytest.mark.parametrize("weight_bytes", [2**20 + 2**19, 10**400])
def test_a_plan_of_any_size_is_refused_with_its_size(weight_bytes: int) -> None:
    specs = (ToyBlocks(layers=("a",), block_size=4),)
    limits = PlanLimits(
        block_size=4,
        num_blocks=2,
        max_num_seqs=1,
        max_model_len=8,
        max_model_len_pinned=False,
        max_query=8,
        available_bytes=1,
        weight_bytes=weight_bytes,
    )
    shown = "1.5 MiB" if weight_bytes < 2**21 else str(10**400 // 2**20)
    with pytest.raises(MemoryPlanError, match=re.escape(f"(weights {shown}")):
        plan_memory(specs, limits)
