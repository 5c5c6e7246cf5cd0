"""Plans of the experts' kernels: the rule, the bound on tiles, and entries of a tuned file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import asdict, evolve
from vtcore_qwen3_5_moe.ops.sparse_moe import plan
from vtcore_qwen3_5_moe.ops.sparse_moe.plan import (
    TOKENS,
    ByRow,
    ByTile,
    RowTile,
    Shape,
    Tile,
    choose_plan,
    max_tiles,
    parse_entry,
    rule,
)

from vtcore.errors import ConfigError

SHAPE = Shape(dtype="bfloat16", hidden=2048, inner=512, experts=256, top_k=8, has_shared=True)
TILE = Tile(rows=16, columns=64, depth=128, swap=True)
ROW = RowTile(columns=4, depth=256)
BY_ROW: dict[str, Any] = {
    **asdict(SHAPE),
    "tokens": 8,
    "kernel": "rows",
    "first": asdict(ROW),
    "second": asdict(evolve(ROW, columns=8)),
    "us": 20.5,
    "rule_us": 24,
}
BY_TILE = BY_ROW | {"tokens": 64, "kernel": "tiles", "first": asdict(TILE), "second": asdict(TILE)}


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Entries that every GPU has."""
    entries: list[dict[str, Any]] = []
    monkeypatch.setattr(plan, "tuned_entries", lambda *_: entries)
    plan._tuned.cache_clear()
    yield entries
    plan._tuned.cache_clear()


@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("rows", [16, 64])
def test_no_routing_needs_more_tiles_than_the_bound_and_some_need_all(rows: int, has_shared: bool) -> None:
    draw = random.Random(rows)
    for tokens, experts, top_k in ((1, 8, 3), (5, 8, 8), (17, 4, 2), (100, 16, 4), (130, 3, 1)):
        bound = max_tiles(tokens, experts, top_k, has_shared, rows)
        shared = -(-tokens // rows) if has_shared else 0
        for _ in range(200):
            favoured = draw.sample(range(experts), draw.randint(top_k, experts))
            counts = [0] * experts
            for _ in range(tokens):
                for expert in draw.sample(favoured, top_k):
                    counts[expert] += 1
            assert sum(-(-count // rows) for count in counts) + shared <= bound
    # One row more than whole tiles in each of 3 experts.
    assert max_tiles(3 * (rows + 1), 3, 1, False, rows) == 6


@pytest.mark.parametrize(
    ("tokens", "kind"), [(0, ByRow), (1, ByRow), (8, ByRow), (9, ByTile), (4096, ByTile)]
)
def test_rows_go_by_themselves_while_few_experts_have_two(tokens: int, kind: type) -> None:
    assert isinstance(rule(tokens, SHAPE), kind)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_one_token_goes_by_row_whatever_the_experts(dtype: str) -> None:
    few = evolve(SHAPE, experts=4, top_k=4, dtype=dtype)
    assert isinstance(rule(1, few), ByRow)
    assert isinstance(rule(2, few), ByTile)


def test_tiles_grow_with_the_rows_of_an_expert() -> None:
    plans = [rule(tokens, SHAPE) for tokens in (16, 65, 257, 513, 2049)]
    rows = [found.first.rows for found in plans if isinstance(found, ByTile)]
    assert rows == sorted(rows)
    assert len(rows) == 5
    assert len({found.first for found in plans}) == 5


def test_a_tuned_entry_serves_its_tokens_and_those_before(tuned: list[dict[str, Any]]) -> None:
    tuned += [BY_TILE, BY_ROW]
    by_row, by_tile = ByRow(ROW, evolve(ROW, columns=8)), ByTile(TILE, TILE)
    found = {tokens: choose_plan("Some GPU", tokens, SHAPE) for tokens in (1, 8, 9, 64, 65, 8192)}
    assert found == {1: by_row, 8: by_row, 9: by_tile, 64: by_tile, 65: by_tile, 8192: by_tile}
    assert choose_plan("Some GPU", 9, evolve(SHAPE, has_shared=False)) == rule(9, SHAPE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": "library"}, "kernel is 'library', not one of rows, tiles"),
        ({"dtype": "float64"}, "dtype is 'float64', not one of bfloat16, float32"),
        ({"has_shared": 1}, "has_shared is 1, not true or false"),
        ({"experts": 0}, "experts is 0, not a whole number from 1"),
        ({"tokens": 3}, f"tokens is 3, not one of {', '.join(map(str, TOKENS))}"),
        ({"us": 0}, "us is 0, not a time above 0"),
        ({"first": 3}, "first is 3, not an object"),
        ({"first": asdict(ROW)}, "first holds"),
        ({"first": asdict(TILE) | {"depth": 96}}, "first.depth is 96, not a power of two"),
        ({"first": asdict(TILE) | {"columns": 16}}, "first.columns is 16, not a whole number from 32 to 256"),
        ({"first": asdict(TILE) | {"swap": 1}}, "first.swap is 1, not true or false"),
        ({"second": asdict(evolve(TILE, rows=32))}, "first.rows is 16 and second.rows 32, not the same"),
        ({"more": 1}, "the entry holds"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_unusable_entry_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, tuned: list[dict[str, Any]]
) -> None:
    parse_entry(BY_TILE)
    with pytest.raises(ValueError, match=reason):
        parse_entry(BY_TILE | change)
    tuned += [BY_ROW, BY_TILE | change]
    with pytest.raises(ConfigError, match="entry 1 of sparse_moe tuned for Some GPU is unusable"):
        choose_plan("Some GPU", 1, SHAPE)


def test_a_repeated_entry_is_refused(tuned: list[dict[str, Any]]) -> None:
    tuned += [BY_TILE, BY_TILE]
    with pytest.raises(ConfigError, match="it repeats the shape of an entry before"):
        choose_plan("Some GPU", 1, SHAPE)
