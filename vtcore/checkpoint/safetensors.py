"""The safetensors format: one file, shards, or shards with an index; memory-mapped, one tensor at a time.

Does not: decide which tensors a model needs, convert or fuse them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vtcore.checkpoint.format import StoredInfo
from vtcore.checkpoint.json_file import read_json_object
from vtcore.checkpoint.safetensors_header import read_header
from vtcore.checkpoint.shards import INDEX_FILE, find_missing_shards, index_files
from vtcore.errors import CheckpointError, IncompleteCheckpointError, MissingTensorError

_STALE_INDEX = "fetch the index and the weight files again, from one revision"


class SafetensorsFormat:
    """The tensors of a directory. Headers are read and checked when constructed, data when asked for.

    Args:
        directory: Holds *.safetensors and perhaps model.safetensors.index.json, which then decides.

    Raises:
        IncompleteCheckpointError: A shard is missing.
        CheckpointError: A shard is truncated or malformed; the index names a tensor that its shard lacks; two
            files hold one tensor and no index chooses.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, Any] = {}
        index_path = directory / INDEX_FILE
        if missing := find_missing_shards(directory):
            raise IncompleteCheckpointError(f"{directory} lacks {missing}; download them again")
        if index_path.is_file():
            self._names = _names_by_index(directory, index_path)
        else:
            self._names = _names_by_listing(directory)

    def names(self) -> Mapping[str, StoredInfo]:
        """Every stored tensor."""
        return self._names

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """One tensor or a row range of it, on the CPU in its stored dtype, backed by the mapped file.

        Args:
            name: A key of `names()`.
            rows: Range of dimension 0, step 1; None reads all.

        Raises:
            MissingTensorError: No such tensor.
            CheckpointError: The file changed or cannot be mapped.
        """
        info = self._names.get(name)
        if info is None:
            raise MissingTensorError(f"{self._directory} has no tensor {name}")
        try:
            if info.file not in self._open:
                self._open[info.file] = safe_open(self._directory / info.file, framework="pt", device="cpu")
            handle = self._open[info.file]
            tensor: torch.Tensor = handle.get_tensor(name) if rows is None else handle.get_slice(name)[rows]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._directory / info.file}: cannot read {name}: {error}") from error
        return tensor

    def close(self) -> None:
        """Unmap the files; a later `read` maps them again."""
        self._open.clear()


def _names_by_listing(directory: Path) -> dict[str, StoredInfo]:
    files = sorted(f.name for f in directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory} has no *.safetensors")
    names: dict[str, StoredInfo] = {}
    for file in files:
        for name, info in read_header(directory / file).items():
            if name in names:
                raise CheckpointError(
                    f"tensor {name} is in both {names[name].file} and {file} of {directory}; remove one file "
                    f"or add {INDEX_FILE}"
                )
            names[name] = info
    return names


def _names_by_index(directory: Path, index_path: Path) -> dict[str, StoredInfo]:
    files = index_files(index_path)
    weight_map = read_json_object(index_path)["weight_map"]
    headers = {file: read_header(directory / file) for file in files}
    names: dict[str, StoredInfo] = {}
    for name, file in weight_map.items():
        if name not in headers[file]:
            raise CheckpointError(
                f"{index_path} places tensor {name} in {file}, which does not have it; {_STALE_INDEX}"
            )
        names[name] = headers[file][name]
    # A tensor the index forgot is offered too, so that the skip rules judge it instead of nobody.
    for file in files:
        for name, info in headers[file].items():
            if name not in weight_map and name in names:
                raise CheckpointError(
                    f"tensor {name} is in both {names[name].file} and {file} of {directory}, and "
                    f"{INDEX_FILE} places it in neither; {_STALE_INDEX}"
                )
            names.setdefault(name, info)
    return names
