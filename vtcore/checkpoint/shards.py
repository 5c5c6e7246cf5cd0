"""Which weight files a checkpoint must have, by its index or by the numbers in their names.

Does not: open a weight file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from vtcore.checkpoint.json_file import read_json_object
from vtcore.errors import CheckpointError

# Source: transformers, SAFE_WEIGHTS_INDEX_NAME.
INDEX_FILE = "model.safetensors.index.json"
WEIGHT_SUFFIX = ".safetensors"
# No separator of any system and no control character: a name comes out of a download and becomes a path.
_WEIGHT_FILE = re.compile(rf"[^/\\\x00-\x1f\x7f]+{re.escape(WEIGHT_SUFFIX)}")
_SHARD_NUMBER = re.compile(r"^(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.safetensors$")


@frozen
class MissingShards:
    """Weight files that should be there.

    Args:
        files: Their names, sorted; not empty.
        total: How many there should be, with these.
        reason: Who says so.
    """

    files: tuple[str, ...]
    total: int
    reason: str

    def __str__(self) -> str:
        return f"{len(self.files)} weight file(s): {', '.join(self.files[:5])} ({self.reason})"


def index_files(index_path: Path) -> tuple[str, ...]:
    """Weight files that an index names, sorted, without repeats.

    Raises:
        CheckpointError: The index is malformed.
    """
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path} has no `weight_map` object; fetch the file again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _WEIGHT_FILE.fullmatch(file):
            raise CheckpointError(
                f"{index_path}: tensor {name} must name a *{WEIGHT_SUFFIX} file of the same folder, "
                f"found {file!r}; fetch the file again"
            )
    return tuple(sorted(set(weight_map.values())))


def find_missing_shards(directory: Path) -> MissingShards | None:
    """What a directory lacks by its index or, without one, by the numbers of the shards it has.

    Returns:
        None when nothing is missing, or when nothing says what should be there.

    Raises:
        CheckpointError: The index is malformed.
    """
    if (directory / INDEX_FILE).is_file():
        wanted: Sequence[str] = index_files(directory / INDEX_FILE)
        return _missing(directory, wanted, f"{INDEX_FILE} names them")
    present = sorted(file.name for file in directory.glob(f"*{WEIGHT_SUFFIX}"))
    for match in filter(None, map(_SHARD_NUMBER.match, present)):
        count = int(match["count"])
        wanted = [f"{match['stem']}-{i:05d}-of-{count:05d}{WEIGHT_SUFFIX}" for i in range(1, count + 1)]
        if missing := _missing(directory, wanted, f"the shards are numbered to {count}"):
            return missing
    return None


def _missing(directory: Path, wanted: Sequence[str], reason: str) -> MissingShards | None:
    files = tuple(file for file in wanted if not (directory / file).is_file())
    return MissingShards(files, len(wanted), reason) if files else None
