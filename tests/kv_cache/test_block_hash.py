"""The hash chain: equal prefixes and only they have equal hashes; checked against hashlib, written anew."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcore.kv_cache.block_hash import extend_hashes, root_hash, salted_root

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def chain(tokens: list[int], size: int, root: bytes | None = None) -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, size, root_hash() if root is None else root)
    return hashes


def oracle(tokens: list[int], size: int, root: bytes) -> list[bytes]:
    found, parent = [], root
    while len(tokens) >= size:
        digest = hashlib.sha256(parent)
        for token in tokens[:size]:
            digest.update(token.to_bytes(4, "little"))
        parent, tokens = digest.digest(), tokens[size:]
        found.append(parent)
    return found


@given(TOKENS, st.integers(1, 9))
def test_hashes_are_sha256_over_parent_and_ids(tokens: list[int], size: int) -> None:
    root = hashlib.sha256(b"vtcore/block-hash/v1/seed").digest()
    assert root == root_hash("seed")
    assert chain(tokens, size, root) == oracle(tokens, size, root)


@given(TOKENS, st.integers(1, 9), st.data())
def test_hashing_bit_by_bit_equals_hashing_at_once(tokens: list[int], size: int, data: st.DataObject) -> None:
    hashes: list[bytes] = []
    end = 0
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        extend_hashes(hashes, tokens[:end], size, root_hash())
        assert len(hashes) == end // size
    assert hashes == chain(tokens, size)


@given(TOKENS.filter(bool), TOKENS, st.integers(1, 9), st.data())
def test_hashes_agree_exactly_as_far_as_whole_blocks_do(
    tokens: list[int], tail: list[int], size: int, data: st.DataObject
) -> None:
    where = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:where], (tokens[where] + 1) % 2**31, *tokens[where + 1 :], *tail]
    left, right = chain(tokens, size), chain(other, size)
    same = where // size
    assert left[:same] == right[:same]
    assert not set(left[same:]) & set(right[same:]), "a differing token must change all later hashes"


def test_a_partial_block_has_no_hash() -> None:
    assert chain([1, 2, 3], 4) == []
    assert len(chain([1, 2, 3, 4, 5], 4)) == 1


def test_nothing_new_leaves_hashes_alone() -> None:
    hashes = chain([1, 2, 3, 4], 2)
    before = list(hashes)
    extend_hashes(hashes, [1, 2, 3, 4, 5], 2, root_hash())
    assert hashes == before


def test_the_seed_separates_caches_and_none_is_fixed() -> None:
    roots = [root_hash(), root_hash("a"), root_hash("b")]
    assert len(set(roots)) == 3
    # A restart must find what was stored before, so the built-in root may never change.
    assert root_hash().hex() == hashlib.sha256(b"vtcore/block-hash/v1/").hexdigest()
    assert not set(chain([1, 2], 1, roots[1])) & set(chain([1, 2], 1, roots[2]))


@pytest.mark.parametrize("bad", [-(2**31) - 1, 2**31])
def test_an_id_that_is_no_int32_is_refused(bad: int) -> None:
    with pytest.raises(struct.error, match="format requires"):
        chain([bad], 1)


def test_a_salt_separates_every_block_and_no_salt_changes_nothing() -> None:
    root = root_hash()
    assert salted_root(root, "") == root
    roots = [root, root_hash("seed"), *(salted_root(root, salt) for salt in ("a", "b", "ab"))]
    roots.append(salted_root(root_hash("seed"), "a"))
    found = [block for one in roots for block in chain(list(range(12)), 4, one)]
    assert len(set(found)) == len(roots) * 3


@given(st.lists(st.integers(0, 127), min_size=4, max_size=4), st.lists(st.integers(0, 127), max_size=12))
def test_a_salt_that_spells_a_block_does_not_continue_it(block: list[int], rest: list[int]) -> None:
    """Token ids of a block are bytes that a salt may have too."""
    salt = struct.pack("<4i", *block).decode()
    plain = chain(block + rest, 4)
    assert not set(plain) & {salted_root(root_hash(), salt), *chain(rest, 4, salted_root(root_hash(), salt))}
