"""In which tiles the kernels of a gated DeltaNet layer go through states: measured entries of this GPU, else
a rule.

Does not: launch, or look at a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import fields_dict, frozen

from vtcore.errors import ConfigError
from vtcore.ops.tuned import REMEDY, tuned_entries

OP = "gated_delta_net"
"""Key of the entries in a tuned file."""
PACKAGE = "vtcore_qwen3_5_dense.ops"
"""Has the folder of tuned files."""
STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of uniform rows that have a plan; others follow the next larger one, more than all the last. A
start captures a step of each, so no other variant is ever needed."""
SCAN_ROWS = (1, 8)
"""Prefill rows that stand for few and for many."""
_MULTIPROCESSORS = 132
"""Of an H200."""
_LEAST_COLUMNS = 16
"""Matrix instructions take no fewer. Source: triton 3.6, tl.dot."""
_MANY = 128
"""Programs at one for each row and value head that fill a GPU, about."""


@frozen
class Shape:
    """What a plan follows beside the number of rows.

    Args:
        dtype: Of activations, as torch names it without "torch.".
        key_heads, value_heads: Value heads are a multiple of key heads.
        key_width, value_width: Of a head; powers of two.
    """

    dtype: str
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int


@frozen
class Tile:
    """How one program goes through a state.

    Args:
        columns: Value columns that it holds at once; at most the value width.
        num_warps: A power of two, up to 16.
        num_stages: Loads that are under way, 1 to 8.
    """

    columns: int
    num_warps: int = 4
    num_stages: int = 1


_KEYS = frozenset({*fields_dict(Shape), *fields_dict(Tile), "kernel", "rows", "us", "rule_us"})
_ROWS: Mapping[str, tuple[int, ...]] = {"step": STEP_ROWS, "scan": SCAN_ROWS}


def choose_step(device: str, num_rows: int, query_len: int, shape: Shape) -> Tile:
    """Tile of the recurrent step.

    Several query tokens compute for longer than their state takes to load: they take all columns at once.

    Args:
        device: The GPU's name.
        num_rows: Uniform rows, padding included.

    Raises:
        ConfigError: A tuned entry of that GPU is unusable, whatever its shape.
    """
    rows = next((own for own in STEP_ROWS if own >= num_rows), STEP_ROWS[-1])
    if query_len > 1:
        return invariant_step(shape)
    return _tuned(device).get((shape, "step", rows)) or step_rule(rows, shape)


def choose_scan(device: str, num_rows: int, shape: Shape) -> Tile:
    """Tile of the pass over a prefill row's chunks.

    Args:
        num_rows: Prefill rows.

    Raises:
        ConfigError: As for `choose_step`.
    """
    rows = SCAN_ROWS[num_rows * shape.value_heads >= _MANY]
    return _tuned(device).get((shape, "scan", rows)) or scan_rule(rows, shape)


def step_rule(rows: int, shape: Shape) -> Tile:
    """All columns at once, or half of them where programs come in several rounds.

    With half of them a program takes 4/3 of the time and half the registers, so that three instead of two are
    on a multiprocessor. Measured on an H200 (bench/notes.md), us whole and in halves: 384 programs 22.3 and
    18.9, 512 25.7 and 27.7, 1,536 65.8 and 62.5, 8,192 317 and 293.

    Args:
        rows: One of `STEP_ROWS`.
    """
    programs = rows * shape.value_heads
    rounds, rounds_of_halves = (-(-programs // (each * _MULTIPROCESSORS)) for each in (2, 3))
    halves = 4 * rounds_of_halves <= 3 * rounds and shape.value_width >= 2 * _LEAST_COLUMNS
    return Tile(shape.value_width // 2 if halves else shape.value_width)


def scan_rule(rows: int, shape: Shape) -> Tile:
    """Fewer columns where rows alone do not fill the GPU.

    Measured on an H200 (bench/notes.md): 16 programs a column 178 us at 32 columns and 264 at 64, 128 of them
    101 and 70.

    Args:
        rows: One of `SCAN_ROWS`.
    """
    return Tile(min(shape.value_width, 32 if rows == SCAN_ROWS[0] else 64), num_stages=3)


def invariant_step(shape: Shape) -> Tile:
    """The same tile for any number of rows, so that a row's sums never change their order."""
    return Tile(shape.value_width)


def invariant_scan(shape: Shape) -> Tile:
    """The same tile for any number of rows."""
    return scan_rule(SCAN_ROWS[0], shape)


@cache
def _tuned(device: str) -> Mapping[tuple[Shape, str, int], Tile]:
    table: dict[tuple[Shape, str, int], Tile] = {}
    for index, entry in enumerate(tuned_entries(PACKAGE, device, OP)):
        try:
            shape, kernel, rows, tile = parse_entry(entry)
            if (shape, kernel, rows) in table:
                raise ValueError("it repeats an entry before")
        except ValueError as error:
            where = f"entry {index} of {OP} tuned for {device}"
            raise ConfigError(f"{where} is unusable: {error}; {REMEDY}") from error
        table[shape, kernel, rows] = tile
    return table


def parse_entry(entry: Mapping[str, Any]) -> tuple[Shape, str, int, Tile]:
    """Shape, kernel, rows and tile of a tuned entry.

    Args:
        entry: The fields of `Shape` and of `Tile`; kernel ("step" or "scan"), rows, us and rule_us.

    Raises:
        ValueError: A key is missing or unknown, or a value is out of its range.
    """
    if set(entry) != _KEYS:
        raise ValueError(f"the entry holds {sorted(entry)}, not exactly {sorted(_KEYS)}")
    if entry["dtype"] not in ("bfloat16", "float32"):
        raise ValueError(f"dtype is {entry['dtype']!r}, not one of bfloat16, float32")
    kernel = entry["kernel"]
    if kernel not in _ROWS:
        raise ValueError(f"kernel is {kernel!r}, not one of {', '.join(_ROWS)}")
    if entry["rows"] not in _ROWS[kernel]:
        raise ValueError(f"rows is {entry['rows']!r}, not one of {', '.join(map(str, _ROWS[kernel]))}")
    for name, most in (("key_heads", 2**16), ("value_heads", 2**16), ("num_stages", 8)):
        _check_int(name, entry[name], 1, most)
    for name, least, most in (
        ("key_width", _LEAST_COLUMNS, 2**16),
        ("value_width", _LEAST_COLUMNS, 2**16),
        ("columns", _LEAST_COLUMNS, entry["value_width"]),
        ("num_warps", 1, 16),
    ):
        _check_int(name, entry[name], least, most)
        if entry[name].bit_count() != 1:
            raise ValueError(f"{name} is {entry[name]}, not a power of two")
    for name in ("us", "rule_us"):
        if not isinstance(entry[name], int | float) or not entry[name] > 0:
            raise ValueError(f"{name} is {entry[name]!r}, not a time above 0")
    shape = Shape(**{name: entry[name] for name in fields_dict(Shape)})
    return shape, kernel, entry["rows"], Tile(**{name: entry[name] for name in fields_dict(Tile)})


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} to {most}")
