"""Longest prefix match: the order against a plain statement of its rule, and when it has none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.interfaces.scheduler_policy import PolicyContext, WaitingView
from vtcore.kv_cache.block_hash import extend_hashes, root_hash
from vtcore.scheduling.policies.lpm import LpmPolicy

Make = Callable[..., Any]

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
"""Two kinds of stretches, so that prompts often begin alike."""


def context(block_size: int = 32, num_waiting: int = 3, prefix_caching: bool = True) -> PolicyContext:
    return PolicyContext(
        now_s=0.0,
        free_blocks=(100,),
        budget=64,
        block_size=block_size,
        prefix_caching=prefix_caching,
        num_waiting=num_waiting,
        cache_generation=0,
    )


def view(name: str, prompt: Sequence[int], cached: int, block_size: int) -> WaitingView:
    hashes: list[bytes] = []
    extend_hashes(hashes, prompt, block_size, root_hash())
    return WaitingView(
        id=name,
        arrival_s=0.0,
        age_s=0.0,
        priority=0,
        tenant="",
        num_prompt_tokens=len(prompt),
        max_tokens=1,
        num_preemptions=0,
        cached_tokens=cached,
        block_hashes=tuple(hashes),
    )


def plain_rule(window: Sequence[WaitingView], block_size: int) -> list[int]:
    """The rule as it is told: a set of all hashes, and counts of leading blocks in it."""
    seen: set[bytes] = set()
    behind: set[int] = set()
    for index, request in enumerate(window):
        if request.cached_tokens > 32:
            continue
        leading = 0
        while leading < len(request.block_hashes) and request.block_hashes[leading] in seen:
            leading += 1
        if leading * block_size >= 32:
            behind.add(index)
        else:
            seen |= set(request.block_hashes)
    return sorted(range(len(window)), key=lambda i: (i in behind, -window[i].cached_tokens))


@given(
    st.lists(st.tuples(PROMPTS, st.integers(0, 14)), max_size=12),
    st.sampled_from([1, 3, 8, 16, 31, 32, 33, 48, 64]),
)
def test_the_order_is_that_of_the_plain_rule(requests: list[tuple[list[int], int]], block_size: int) -> None:
    # A stretch is 8 tokens: block sizes below, at and above it, and lengths around the threshold.
    window = []
    for index, (stretches, cached_blocks) in enumerate(requests):
        prompt = [token for stretch in stretches for token in (stretch,) * 8]
        cached = min(cached_blocks, (len(prompt) - 1) // block_size) * block_size
        window.append(view(str(index), prompt, cached, block_size))
    assert list(LpmPolicy().order(window, context(block_size))) == plain_rule(window, block_size)


def order_of(*requests: tuple[range, int], block_size: int = 16) -> list[int]:
    window = [view(str(i), prompt, cached, block_size) for i, (prompt, cached) in enumerate(requests)]
    return list(LpmPolicy().order(window, context(block_size)))


def test_the_longest_match_goes_first_and_ties_keep_the_order_of_arrival() -> None:
    own = [range(1000 * i, 1000 * i + 100) for i in range(5)]
    assert order_of(*zip(own, (0, 64, 48, 64, 0), strict=True)) == [1, 3, 2, 0, 4]


def test_who_shares_a_new_beginning_goes_behind_all_others() -> None:
    shared = range(100)
    other = range(1000, 1100)
    assert order_of((shared, 0), (shared, 0), (other, 0), (shared, 16)) == [0, 2, 3, 1]


def test_a_match_of_32_tokens_is_still_compared_and_a_longer_one_is_not() -> None:
    shared = range(100)
    assert order_of((shared, 32), (shared, 32), (range(500, 600), 0)) == [0, 2, 1]
    assert order_of((shared, 48), (shared, 48), (range(500, 600), 0)) == [0, 1, 2]


def test_who_is_not_compared_is_not_compared_with_either() -> None:
    shared = range(100)
    assert order_of((shared, 48), (shared, 0), (range(500, 600), 0)) == [0, 1, 2]


def test_less_than_32_common_tokens_hold_nobody_back() -> None:
    long, short = range(100), [*range(31), *range(900, 970)]
    for block_size in (1, 16, 31):
        window = [view("a", long, 0, block_size), view("b", short, 0, block_size), view("c", [7] * 50, 0, 1)]
        assert list(LpmPolicy().order(window, context(block_size))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("num_waiting", "prefix_caching", "active"),
    [
        (0, True, False),
        (1, True, False),
        (2, True, True),
        (128, True, True),
        (129, True, False),
        (9, False, False),
    ],
)
def test_it_orders_only_few_requests_and_only_with_a_cache(
    num_waiting: int, prefix_caching: bool, active: bool
) -> None:
    ctx = context(num_waiting=num_waiting, prefix_caching=prefix_caching)
    assert LpmPolicy().is_active(ctx) is active


def warm(bench: Make, **options: Any) -> Any:
    """A scheduler whose cache holds the beginning of the prompt 0, 1, 2 ..."""
    b = bench(LpmPolicy(), caching=True, num_blocks=40, max_model_len=64, **options)
    b.add("first", prompt=range(41), max_tokens=1)
    b.run_out()
    return b


def test_a_long_match_is_admitted_before_who_came_earlier(bench: Make) -> None:
    b = warm(bench, max_num_seqs=1)
    b.add("cold", length=41, max_tokens=1)
    b.add("warm", prompt=range(41), max_tokens=1)
    assert [b.step(), b.step()] == [["warm"], ["cold"]]
    assert b.guard.breaches == 0


def test_beyond_the_window_a_step_is_first_come_first_served(bench: Make) -> None:
    b = warm(bench, max_num_seqs=2)
    for index in range(127):
        b.add(f"cold{index}", length=8, max_tokens=1)
    b.add("warm", prompt=range(41), max_tokens=1)
    b.add("last", length=8, max_tokens=1)
    # 129 wait when the step begins, and that holds for all of it, though one admission later 128 do.
    assert b.step() == ["cold0", "cold1"]
    assert b.step() == ["warm", "cold2"]
    assert b.guard.breaches == 0


def test_without_a_cache_it_is_first_come_first_served_and_the_start_says_so_once(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        b = bench(LpmPolicy(), max_num_seqs=1)
        for name in "abc":
            b.add(name, prompt=range(9), max_tokens=1)
        assert [b.step(), b.step(), b.step()] == [["a"], ["b"], ["c"]]
    [record] = caplog.records
    for part in ("LpmPolicy", "prefix caching is off", "enable_prefix_caching", "scheduling_policy"):
        assert part in record.getMessage()


def test_with_a_cache_the_start_warns_of_nothing(bench: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench(LpmPolicy(), caching=True)
    assert not caplog.records


def test_a_request_without_match_is_not_passed_over_for_ever(bench: Make) -> None:
    b = warm(bench, max_num_seqs=1, starvation_s=30.0)
    b.add("cold", length=41, max_tokens=1, arrival_s=100.0)
    admitted = []
    for index in range(8):
        b.now = 100.0 + 5.0 * (index + 1)
        b.add(f"warm{index}", prompt=range(41), max_tokens=1, arrival_s=b.now)
        admitted += b.step()
    assert admitted.index("cold") == 6, "30 s are not beyond the bound, 35 s are"
    assert admitted[:6] == [f"warm{index}" for index in range(6)]
