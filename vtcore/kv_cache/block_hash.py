"""The hash chain that names full blocks by everything before them.

Does not: know pools; one chain serves all of a request's pools, which key their caches by it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

ROOT_TAG = b"vtcore/block-hash/v1/"
SALT_TAG = b"vtcore/cache-salt/v1/"
"""Without it a salt that spells a block's token ids would continue the chain of that block."""


def root_hash(seed: str | None = None) -> bytes:
    """Parent of a sequence's first block.

    Args:
        seed: Text that separates caches which must not share blocks; None is the fixed built-in root, so
            that hashes survive a restart.

    Returns:
        32 bytes.
    """
    return hashlib.sha256(ROOT_TAG + (seed or "").encode()).digest()


def salted_root(root: bytes, salt: str) -> bytes:
    """Parent of the first block of requests that share only with requests of the same salt; "" has none."""
    return hashlib.sha256(SALT_TAG + root + salt.encode()).digest() if salt else root


def extend_hashes(hashes: list[bytes], tokens: Sequence[int], block_size: int, root: bytes) -> None:
    """Append the hashes of all full blocks of `tokens` that `hashes` does not have yet.

    A block's hash is sha256(parent, token ids as little-endian int32), so equal hashes mean equal
    tokens from the first position on.

    Args:
        hashes: Hashes of the leading blocks, mutated.
    """
    start, end = len(hashes), len(tokens) // block_size
    if start >= end:
        return
    data = struct.pack(f"<{(end - start) * block_size}i", *tokens[start * block_size : end * block_size])
    parent = hashes[-1] if hashes else root
    size = 4 * block_size
    sha256 = hashlib.sha256
    for index in range(end - start):
        parent = sha256(parent + data[index * size : (index + 1) * size]).digest()
        hashes.append(parent)
