"""Token ids made by hashing: equal (name, index) give equal ids in every run, so equal prefixes match.

Does not: resemble text; only which ids are equal matters to a scheduler.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

# Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators (2014), SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def key_of(name: str) -> int:
    """The key of a named sequence of ids, 0 <= key < 2**63, so that it may be a request's seed."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "little") >> 1


def hashed_ids(keys: NDArray[np.int64], indices: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """Ids of the sequences `keys` at `indices`, elementwise, each below `vocab_size`."""
    # Products wrap, as they must; numpy says so of scalars only.
    z = keys.astype(np.uint64) + indices.astype(np.uint64) * _GOLDEN
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    z = z ^ (z >> _31)
    ids: NDArray[np.int64] = (z % np.uint64(vocab_size)).astype(np.int64)
    return ids


def sequence_ids(name: str, count: int, vocab_size: int, start: int = 0) -> list[int]:
    """Ids `start` to `start + count` of the sequence called `name`."""
    indices = np.arange(start, start + count, dtype=np.int64)
    ids: list[int] = hashed_ids(np.full(count, key_of(name), np.int64), indices, vocab_size).tolist()
    return ids
