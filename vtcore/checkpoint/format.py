"""What a checkpoint format offers the loader, and the format that is a mapping in memory.

Does not: know parameter rules or file layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from attrs import frozen

from vtcore.errors import MissingTensorError


@frozen
class StoredInfo:
    """A stored tensor without its data.

    Args:
        shape: As stored.
        dtype: The safetensors code: "F64", "F32", "F16", "BF16", "I64", "F8_E4M3", ...
        file: File name inside the checkpoint; empty in memory.
    """

    shape: tuple[int, ...]
    dtype: str
    file: str


class CheckpointFormat(Protocol):
    """Opens files; slicing, fusing and conversion are the core's."""

    def names(self) -> Mapping[str, StoredInfo]:
        """Every stored tensor, known without reading data."""

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """One tensor, or a range of its dimension 0, on the CPU in its stored dtype; do not write to it."""

    def close(self) -> None:
        """Let go of files; the names stay known and a later `read` opens them again."""


# Source: safetensors format description, field "dtype".
CODE_OF_DTYPE: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""safetensors dtype codes of torch dtypes."""


class InMemoryFormat:
    """A mapping of tensors as a checkpoint.

    Args:
        tensors: Name -> tensor; held, not copied.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self._names = {
            name: StoredInfo(tuple(t.shape), CODE_OF_DTYPE.get(t.dtype, str(t.dtype)), "")
            for name, t in self._tensors.items()
        }

    def names(self) -> Mapping[str, StoredInfo]:
        """Every tensor of the mapping."""
        return self._names

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """The tensor itself, or a view of a row range.

        Raises:
            MissingTensorError: No such tensor.
        """
        if name not in self._tensors:
            raise MissingTensorError(f"the checkpoint in memory has no tensor {name}")
        tensor = self._tensors[name]
        return tensor if rows is None else tensor[rows]

    def close(self) -> None:
        """Does nothing: the tensors are the caller's."""
