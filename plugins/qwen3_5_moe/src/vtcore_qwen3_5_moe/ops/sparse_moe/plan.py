"""Which kernels a mixture of experts runs for so many tokens, and in which tiles: measured entries of this
GPU, else a rule.

Does not: launch, or look at a tensor.

Shape letters: T query tokens, H hidden size, I an expert's inner width, E routed experts, K of them per
token.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from attrs import fields_dict, frozen

from vtcore.errors import ConfigError
from vtcore.ops.tuned import REMEDY, tuned_entries

OP = "sparse_moe"
"""Key of the entries in a tuned file."""
PACKAGE = "vtcore_qwen3_5_moe.ops"
"""Has the folder of tuned files."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Numbers of tokens that are measured; others follow the next larger one that was, more than all the last."""
CHUNK = 512
"""Pairs of token and choice that one program puts in order; fewer than that need no count of their own."""
SPARSE_TOKENS_PER_EXPERT = 4
"""Each row goes by itself while T * K * 4 <= E: then few experts have two rows. Source: vLLM 0.26, fused_moe
(its naive block assignment)."""

Limits = Mapping[str, tuple[int, int]]


@frozen(kw_only=True)
class Tile:
    """Tiles of one product over ordered rows.

    Args:
        rows: Rows of a tile, a power of two.
        columns: Weight rows of a tile, a power of two; of the first product half are gate, half up.
        depth: Step along the inner dimension, a power of two.
        swap: Weights take the side of the matrix unit that needs 64 rows, activations the one that 8 fill.
        num_warps, num_stages: Triton's.
    """

    limits: ClassVar[Limits] = {
        "rows": (16, 128),
        "columns": (32, 256),
        "depth": (16, 256),
        "num_warps": (1, 16),
        "num_stages": (1, 8),
    }

    rows: int
    columns: int
    depth: int
    swap: bool = False
    num_warps: int = 4
    num_stages: int = 3


@frozen(kw_only=True)
class RowTile:
    """Columns and step along the inner dimension of a row's product without the matrix unit, powers of
    two."""

    limits: ClassVar[Limits] = {"columns": (1, 64), "depth": (16, 4096), "num_warps": (1, 16)}

    columns: int
    depth: int
    num_warps: int = 4


@frozen
class ByRow:
    """Each row by itself: tiles of the two products."""

    first: RowTile
    second: RowTile


@frozen
class ByTile:
    """Rows ordered by expert: tiles of the two products, of the same number of rows."""

    first: Tile
    second: Tile


Plan = ByRow | ByTile


@frozen(kw_only=True)
class Shape:
    """What a plan follows beside the number of tokens.

    Args:
        dtype: Of activations and weights, as torch names it without "torch.".
        hidden, inner: H and I.
        experts, top_k: E and K.
        has_shared: The shared expert is one group more.
    """

    dtype: str
    hidden: int
    inner: int
    experts: int
    top_k: int
    has_shared: bool


_KINDS: Mapping[str, tuple[type[ByRow], type[RowTile]] | tuple[type[ByTile], type[Tile]]] = {
    "rows": (ByRow, RowTile),
    "tiles": (ByTile, Tile),
}
_SHAPE_KEYS = frozenset(fields_dict(Shape))
_KEYS = _SHAPE_KEYS | {"tokens", "kernel", "first", "second", "us", "rule_us"}

_ROW = RowTile(columns=8, depth=512)
# From so many tokens on. Source of the first draft: vLLM 0.26, its configs for E=256, N=512 on an H100.
_TILES: tuple[tuple[int, Tile], ...] = (
    (0, Tile(rows=16, columns=64, depth=128, swap=True, num_stages=4)),
    (65, Tile(rows=16, columns=128, depth=128, swap=True)),
    (257, Tile(rows=32, columns=128, depth=64, swap=True, num_stages=4)),
    (513, Tile(rows=64, columns=128, depth=64, num_stages=4)),
    (2049, Tile(rows=128, columns=256, depth=64, num_warps=8)),
)
_FLOAT32_TILES: tuple[tuple[int, Tile], ...] = (
    (0, Tile(rows=16, columns=64, depth=32, num_stages=2)),
    (257, Tile(rows=32, columns=64, depth=32, num_stages=2)),
)
_INVARIANT = Tile(rows=64, columns=64, depth=128)


def max_tiles(num_tokens: int, num_experts: int, top_k: int, has_shared: bool, rows: int) -> int:
    """The most tiles of `rows` rows that any routing of T tokens can need."""
    pairs = num_tokens * top_k
    # Most when every expert that can have a row has one more than whole tiles hold.
    used = min(num_experts, pairs)
    return (pairs - used) // rows + used + (-(-num_tokens // rows) if has_shared else 0)


def invariant_plan(dtype: str) -> ByTile:
    """The same tiles for any number of tokens, so that a row's sums never change their order.

    Args:
        dtype: As in `Shape`.
    """
    tile = _FLOAT32_TILES[0][1] if dtype == "float32" else _INVARIANT
    return ByTile(tile, tile)


def choose_plan(device: str, num_tokens: int, shape: Shape) -> Plan:
    """The plan for T tokens.

    Args:
        device: The GPU's name.
        num_tokens: T.

    Raises:
        ConfigError: A tuned entry of that GPU is unusable, whatever its shape.
    """
    found = _tuned(device).get(shape)
    if found is None:
        return rule(num_tokens, shape)
    return found[next((tokens for tokens in sorted(found) if tokens >= num_tokens), max(found))]


def rule(num_tokens: int, shape: Shape) -> Plan:
    """The plan for T tokens where nothing was measured."""
    if num_tokens <= 1 or num_tokens * shape.top_k * SPARSE_TOKENS_PER_EXPERT <= shape.experts:
        return ByRow(_ROW, _ROW)
    table = _FLOAT32_TILES if shape.dtype == "float32" else _TILES
    tile = next(tile for first, tile in reversed(table) if first <= num_tokens)
    return ByTile(tile, tile)


@cache
def _tuned(device: str) -> Mapping[Shape, Mapping[int, Plan]]:
    tables: dict[Shape, dict[int, Plan]] = {}
    for index, entry in enumerate(tuned_entries(PACKAGE, device, OP)):
        where = f"entry {index} of {OP} tuned for {device}"
        try:
            shape, tokens, plan = parse_entry(entry)
            table = tables.setdefault(shape, {})
            if tokens in table:
                raise ValueError("it repeats the shape of an entry before")
        except ValueError as error:
            raise ConfigError(f"{where} is unusable: {error}; {REMEDY}") from error
        table[tokens] = plan
    return tables


def parse_entry(entry: Mapping[str, Any]) -> tuple[Shape, int, Plan]:
    """Shape, T and plan of a tuned entry.

    Args:
        entry: The fields of `Shape`; tokens, kernel ("rows" or "tiles"), the tiles first and second, us and
            rule_us.

    Raises:
        ValueError: A key is missing or unknown, or a value is out of its range.
    """
    _check_keys("the entry", set(entry), _KEYS)
    kernel = entry["kernel"]
    if kernel not in _KINDS:
        raise ValueError(f"kernel is {kernel!r}, not one of {', '.join(_KINDS)}")
    if entry["dtype"] not in ("bfloat16", "float32"):
        raise ValueError(f"dtype is {entry['dtype']!r}, not one of bfloat16, float32")
    if type(entry["has_shared"]) is not bool:
        raise ValueError(f"has_shared is {entry['has_shared']!r}, not true or false")
    for name in ("hidden", "inner", "experts", "top_k"):
        _check_int(name, entry[name], 1, 2**31 - 1)
    if entry["tokens"] not in TOKENS:
        raise ValueError(f"tokens is {entry['tokens']!r}, not one of {', '.join(map(str, TOKENS))}")
    for name in ("us", "rule_us"):
        if not isinstance(entry[name], int | float) or not entry[name] > 0:
            raise ValueError(f"{name} is {entry[name]!r}, not a time above 0")
    kind, tile = _KINDS[kernel]
    first, second = (_parse_tile(name, entry[name], tile) for name in ("first", "second"))
    if isinstance(first, Tile) and first.rows != second.rows:
        raise ValueError(f"first.rows is {first.rows} and second.rows {second.rows}, not the same")
    shape = Shape(**{name: entry[name] for name in _SHAPE_KEYS})
    return shape, entry["tokens"], kind(first, second)


def _parse_tile(where: str, found: Any, kind: type[RowTile] | type[Tile]) -> Any:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {found!r}, not an object")
    _check_keys(where, set(found), set(fields_dict(kind)))
    for name, (least, most) in kind.limits.items():
        _check_int(f"{where}.{name}", found[name], least, most)
        if name != "num_stages" and found[name].bit_count() != 1:
            raise ValueError(f"{where}.{name} is {found[name]}, not a power of two")
    if type(found.get("swap", False)) is not bool:
        raise ValueError(f"{where}.swap is {found['swap']!r}, not true or false")
    return kind(**found)


def _check_keys(what: str, found: set[str], needed: set[str] | frozenset[str]) -> None:
    if found != needed:
        raise ValueError(f"{what} holds {sorted(found)}, not exactly {sorted(needed)}")


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} to {most}")
