"""Which kernel multiplies a weight by so many rows: measured entries of this GPU, else a rule.

Does not: launch, or look at a tensor.

Shape letters: M rows, N output width, K input width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from attrs import fields_dict, frozen

from vtcore.errors import ConfigError
from vtcore.ops.tuned import REMEDY, tuned_entries

OP = "linear"
"""Key of the entries in a tuned file."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Row counts that are measured; others follow the next larger one, more than the last go to the library."""
_RULE_NUMBERS = 4096
"""M * N up to which an untuned bfloat16 product goes by row: of the shapes in tuned/NVIDIA_H200.json nearly
all such were faster than the library's, and hardly any beyond."""
_DTYPES = ("bfloat16", "float32")
_KEYS = {"dtype", "n", "k", "m", "kernel", "us", "library_us"}


@frozen(kw_only=True)
class ByRow:
    """Tiles of `kernels.rows_kernel`, powers of two."""

    limits: ClassVar[Mapping[str, tuple[int, int]]] = {
        "columns": (1, 64),
        "depth": (16, 4096),
        "num_warps": (1, 16),
    }

    columns: int
    depth: int
    num_warps: int


@frozen(kw_only=True)
class ByTile:
    """Tiles of `kernels.tiles_kernel`, powers of two, and the parts of the inner dimension."""

    limits: ClassVar[Mapping[str, tuple[int, int]]] = {
        "rows": (16, 128),
        "columns": (8, 256),
        "depth": (16, 1024),
        "parts": (1, 32),
        "num_warps": (1, 16),
        "num_stages": (1, 8),
    }

    rows: int
    columns: int
    depth: int
    parts: int
    num_warps: int
    num_stages: int


Plan = ByRow | ByTile | None
"""None is the library's product."""

KINDS: Mapping[str, type[ByRow] | type[ByTile]] = {"rows": ByRow, "tiles": ByTile}
"""Names of kernels in a tuned file; "library" is the library's product."""
_ANY_NUMBER = ("parts", "num_stages")
"""Fields that need not be powers of two."""


def bucket(num_rows: int) -> int | None:
    """The measured row count that M rows follow; None if there are too many."""
    return next((rows for rows in ROWS if num_rows <= rows), None)


@cache
def plans(device: str, dtype: str, width: int, depth: int) -> Mapping[int, Plan]:
    """Row count of `ROWS` -> how that many rows are multiplied.

    Args:
        device: The GPU's name.
        dtype: "bfloat16" or "float32".
        width, depth: N and K.

    Raises:
        ConfigError: A tuned entry of that GPU is unusable, whatever its shape.
    """
    found = _tuned(device).get((dtype, width, depth))
    if found is not None:
        return {rows: found.get(rows) for rows in ROWS}
    own = ByRow(columns=4, depth=min(1024, max(16, 1 << (depth - 1).bit_length())), num_warps=4)
    is_own = dtype == "bfloat16"
    return {rows: own if is_own and rows <= 4 and rows * width <= _RULE_NUMBERS else None for rows in ROWS}


@cache
def _tuned(device: str) -> Mapping[tuple[str, int, int], Mapping[int, Plan]]:
    tables: dict[tuple[str, int, int], dict[int, Plan]] = {}
    for index, entry in enumerate(tuned_entries("vtcore.ops", device, OP)):
        where = f"entry {index} of {OP} tuned for {device}"
        try:
            plan = parse_entry(entry)
            table = tables.setdefault((entry["dtype"], entry["n"], entry["k"]), {})
            if entry["m"] in table:
                raise ValueError("it repeats the shape of an entry before")
        except ValueError as error:
            raise ConfigError(f"{where} is unusable: {error}; {REMEDY}") from error
        table[entry["m"]] = plan
    return tables


def parse_entry(entry: Mapping[str, Any]) -> Plan:
    """The plan of a tuned entry.

    Args:
        entry: dtype, n, k, m, kernel, us and library_us; config too unless the kernel is the library's.

    Raises:
        ValueError: A key is missing or unknown, or a value is out of its range.
    """
    kernel, known = entry.get("kernel"), ["library", *KINDS]
    if kernel not in known:
        raise ValueError(f"kernel is {kernel!r}, not one of {', '.join(known)}")
    kind = KINDS.get(str(kernel))
    _check_keys("the entry", set(entry), _KEYS if kind is None else _KEYS | {"config"})
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"dtype is {entry['dtype']!r}, not one of {', '.join(_DTYPES)}")
    if entry["m"] not in ROWS:
        raise ValueError(f"m is {entry['m']!r}, not one of {', '.join(map(str, ROWS))}")
    for name in ("n", "k"):
        _check_int(name, entry[name], 1, 2**31 - 1)
    for name in ("us", "library_us"):
        if not isinstance(entry[name], int | float) or not entry[name] > 0:
            raise ValueError(f"{name} is {entry[name]!r}, not a time above 0")
    if kind is None:
        return None
    config = entry["config"]
    if not isinstance(config, dict):
        raise ValueError(f"config is {config!r}, not an object")
    _check_keys("config", set(config), set(fields_dict(kind)))
    for name, (least, most) in kind.limits.items():
        _check_int(f"config.{name}", config[name], least, most)
        if name not in _ANY_NUMBER and config[name].bit_count() != 1:
            raise ValueError(f"config.{name} is {config[name]}, not a power of two")
    return kind(**config)


def _check_keys(what: str, found: set[str], needed: set[str]) -> None:
    if found != needed:
        raise ValueError(f"{what} holds {sorted(found)}, not exactly {sorted(needed)}")


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} to {most}")
