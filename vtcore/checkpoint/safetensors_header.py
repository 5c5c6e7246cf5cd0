"""Reads and checks the header of one safetensors file, so that a broken file is named with its numbers.

Does not: read tensor data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from vtcore.checkpoint.format import StoredInfo
from vtcore.errors import CheckpointError, IncompleteCheckpointError

# Source: safetensors format description; bytes per element of its dtype codes.
_CODE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
}
# Source: safetensors format description; longer headers are refused by its readers.
_MAX_HEADER_BYTES = 100_000_000
# Source: git-lfs specification, pointer files; they begin with "version ".
_LFS_POINTER = b"version "


def read_header(path: Path) -> dict[str, StoredInfo]:
    """Names, shapes and dtypes of a file, in its own order.

    Raises:
        IncompleteCheckpointError: The file is a pointer of git-lfs.
        CheckpointError: The file is shorter than its header or its tensors need (with both byte counts), or
            its header is malformed.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise _truncated(path, size, 8)
            if prefix == _LFS_POINTER:
                raise IncompleteCheckpointError(
                    f"{path} is a pointer of git-lfs, not the file itself; run `git lfs pull` in its folder"
                )
            length = int.from_bytes(prefix, "little")
            if length > _MAX_HEADER_BYTES:
                raise _unreadable(path, f"it claims a {length}-byte header")
            if 8 + length > size:
                raise _truncated(path, size, 8 + length)
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _unreadable(path, "its header is not an object")
    return _parse(path, header, size, 8 + length)


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a safetensors file: {why}; download the file again")


def _truncated(path: Path, size: int, needed: int) -> CheckpointError:
    return CheckpointError(
        f"{path} is truncated: it has {size} bytes and needs {needed}; download the file again"
    )


def _parse(path: Path, header: dict[str, Any], size: int, data_start: int) -> dict[str, StoredInfo]:
    infos: dict[str, StoredInfo] = {}
    data_end = data_start
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, code, begin, end = _fields(path, name, entry)
        width = _CODE_BYTES.get(code)
        num_bytes = 1
        for extent in shape:
            num_bytes *= extent
        if width is not None and num_bytes * width != end - begin:
            raise CheckpointError(
                f"{path}: tensor {name} of shape {list(shape)} and dtype {code} needs {num_bytes * width} "
                f"bytes, its header gives it {end - begin}; download the file again"
            )
        data_end = max(data_end, data_start + end)
        infos[name] = StoredInfo(shape, code, path.name)
    if data_end > size:
        raise _truncated(path, size, data_end)
    return infos


def _fields(path: Path, name: str, entry: object) -> tuple[tuple[int, ...], str, int, int]:
    if isinstance(entry, dict):
        shape, code, offsets = entry.get("shape"), entry.get("dtype"), entry.get("data_offsets")
        if _is_naturals(shape) and isinstance(code, str) and _is_naturals(offsets):
            match offsets:
                case [begin, end] if begin <= end:
                    return tuple(shape), code, begin, end
    raise _unreadable(path, f"the header entry of {name!r} is malformed")


def _is_naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
