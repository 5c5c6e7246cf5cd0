"""The spec's own arithmetic, on numbers small enough to check by hand."""

from __future__ import annotations

from itertools import product

import pytest
from vtcore_mistral.spec import SlidingWindowSpec


def spec(window: int = 5, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        layers=("layers.0", "layers.1"),
        block_size=block_size,
        window=window,
        num_kv_heads=2,
        head_dim=8,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("committed", "blocks"),
    [(0, []), (1, [0]), (4, [0]), (7, [0, 1]), (8, [1]), (9, [1, 2]), (61, [14, 15])],
)
def test_needed_blocks_are_those_of_the_window(committed: int, blocks: list[int]) -> None:
    assert list(spec().needed(committed)) == blocks


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9, 40])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_hit_is_the_longest_prefix_whose_window_is_cached(window: int, block_size: int) -> None:
    """Against the definition, over every set of six cached blocks."""
    this = spec(window, block_size)
    for cached in product((False, True), repeat=6):
        fits = [n for n in range(7) if all(cached[i] for i in this.needed(n * block_size))]
        asked: list[int] = []

        def present(block: int, cached: tuple[bool, ...] = cached, asked: list[int] = asked) -> bool:
            asked.append(block)
            return cached[block]

        assert this.hit(present, 6) == max(fits)
        assert len(asked) == len(set(asked))


def test_a_unit_counts_keys_and_values_of_all_its_layers() -> None:
    assert spec().unit_bytes(0) == 2 * 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("num_tokens", "max_query", "blocks"), [(256, 4, 3), (256, 5, 4), (256, 64, 18), (8, 64, 2), (256, 1, 3)]
)
def test_units_cover_window_and_query_but_no_more_than_the_request(
    num_tokens: int, max_query: int, blocks: int
) -> None:
    assert spec().max_units(num_tokens, max_query, 0) == blocks
