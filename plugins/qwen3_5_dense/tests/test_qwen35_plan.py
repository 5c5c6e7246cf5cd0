"""Plans of the recurrent kernels: the rules, what a start covers, and entries of a tuned file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import asdict, evolve
from vtcore_qwen3_5_dense.ops.gated_delta_net import plan
from vtcore_qwen3_5_dense.ops.gated_delta_net.plan import (
    SCAN_ROWS,
    STEP_ROWS,
    Shape,
    Tile,
    choose_scan,
    choose_step,
    invariant_step,
    parse_entry,
)

from vtcore.errors import ConfigError
from vtcore.execution.step_graphs import batch_buckets

GPU = "Some GPU"
SHAPE = Shape(dtype="bfloat16", key_heads=16, value_heads=32, key_width=128, value_width=128)
ENTRY: dict[str, Any] = {
    **asdict(SHAPE),
    **asdict(Tile(32, num_warps=2)),
    "kernel": "step",
    "rows": 8,
    "us": 10.5,
    "rule_us": 11,
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Entries of the GPU's file."""
    entries: list[dict[str, Any]] = []
    monkeypatch.setattr(plan, "tuned_entries", lambda package, device, op: entries if device == GPU else ())
    plan._tuned.cache_clear()
    yield entries
    plan._tuned.cache_clear()


@pytest.mark.parametrize(
    ("rows", "heads", "columns"), [(1, 16, 128), (8, 48, 64), (16, 32, 128), (256, 32, 64)]
)
def test_the_rule_of_the_step_is_as_measured(rows: int, heads: int, columns: int) -> None:
    assert plan.step_rule(rows, evolve(SHAPE, value_heads=heads)).columns == columns


def test_narrow_heads_are_not_halved() -> None:
    """Their halves would be narrower than a matrix instruction."""
    assert plan.step_rule(256, evolve(SHAPE, value_width=16)).columns == 16


@pytest.mark.parametrize("heads", [16, 24, 32, 48])
def test_what_a_start_captures_covers_every_number_of_rows(heads: int) -> None:
    """A mixed step has any number of uniform rows, and none may need a kernel that no captured step has."""
    shape = evolve(SHAPE, value_heads=heads)
    for max_num_seqs in range(1, 300):
        captured = {choose_step("none", rows, 1, shape) for rows in batch_buckets(max_num_seqs)}
        for rows in range(1, max_num_seqs + 1):
            assert choose_step("none", rows, 1, shape) in captured, f"{rows} of {max_num_seqs} rows"


def test_a_scan_has_few_columns_or_many(written: list[dict[str, Any]]) -> None:
    assert [choose_scan(GPU, rows, SHAPE).columns for rows in (1, 3, 4, 100)] == [32, 32, 64, 64]
    written.append(ENTRY | {"kernel": "scan", "rows": SCAN_ROWS[1], "columns": 128, "num_stages": 2})
    plan._tuned.cache_clear()
    assert [choose_scan(GPU, rows, SHAPE).columns for rows in (1, 3, 4, 100)] == [32, 32, 128, 128]


def test_entries_serve_their_shape_on_their_gpu(written: list[dict[str, Any]]) -> None:
    written += [ENTRY, ENTRY | {"rows": 256, "columns": 16}]
    tile = Tile(32, num_warps=2)
    assert parse_entry(ENTRY) == (SHAPE, "step", 8, tile)
    assert [choose_step(GPU, rows, 1, SHAPE) for rows in (5, 8)] == [tile, tile]
    assert choose_step(GPU, 9, 1, SHAPE) == plan.step_rule(16, SHAPE)
    assert choose_step(GPU, 1000, 1, SHAPE).columns == 16
    assert choose_step("Other GPU", 8, 1, SHAPE) == plan.step_rule(8, SHAPE)
    assert choose_step(GPU, 8, 1, evolve(SHAPE, value_heads=16)).columns == 128
    # Verification takes all columns at once, whatever decoding takes.
    assert choose_step(GPU, 8, 4, SHAPE) == invariant_step(SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 3}, "rows is 3, not one of 1, 2, 4"),
        ({"kernel": "scan", "rows": 2}, "rows is 2, not one of 1, 8"),
        ({"kernel": "walk"}, "kernel is 'walk', not one of step, scan"),
        ({"columns": 8}, "columns is 8, not a whole number from 16 to 128"),
        ({"columns": 256}, "columns is 256, not a whole number from 16 to 128"),
        ({"columns": 48}, "columns is 48, not a power of two"),
        ({"num_warps": 32}, "num_warps is 32, not a whole number from 1 to 16"),
        ({"num_stages": True}, "num_stages is True"),
        ({"us": 0}, "us is 0, not a time above 0"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"more": 1}, "the entry holds"),
    ],
)
def test_an_unusable_entry_says_what_is_wrong(
    written: list[dict[str, Any]], change: dict[str, Any], message: str
) -> None:
    written += [ENTRY | {"rows": 1}, ENTRY | change]
    with pytest.raises(ConfigError, match=rf"entry 1 of gated_delta_net tuned for Some GPU .*{message}"):
        choose_step(GPU, 1, 1, SHAPE)


def test_an_entry_comes_once(written: list[dict[str, Any]]) -> None:
    written += [ENTRY, ENTRY | {"columns": 64}]
    with pytest.raises(ConfigError, match=r"entry 1 .* repeats an entry before"):
        choose_step(GPU, 1, 1, SHAPE)


def test_every_number_of_rows_that_has_a_plan_is_captured() -> None:
    assert set(STEP_ROWS) <= set(batch_buckets(STEP_ROWS[-1]))
