"""Ids of one pool's units (blocks or slots): who is free, who is held how often, who is cached.

Does not: hold tensors. Id 0 is null: it is never handed out, held or cached.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from vtcore.errors import EngineError


class UnitPool:
    """Partitions ids 1..num_units-1 into free, cached but unheld, and held.

    A held id has a reference count; a cached id keeps its hash until it is handed out again, least
    recently freed first.

    Args:
        num_units: Units of the pool, null included, >= 1.
    """

    def __init__(self, num_units: int) -> None:
        self.num_units = num_units
        self.ref = [0] * num_units
        self.hash_of: list[bytes | None] = [None] * num_units
        self.by_hash: dict[bytes, int] = {}
        self.generation = 0
        """Rises whenever the set of cached hashes changes."""
        self.recycled: list[int] | None = None
        """When a list: ids whose content died are appended, in order; for tests that poison them."""
        self.num_gaps = 0
        """Cached hashes whose predecessor in the chain is not cached, or was not told to `publish`.

        While 0, of any chain exactly the first so and so many hashes are cached.
        """
        self._parent_of: list[bytes | None] = [None] * num_units
        self._num_children: dict[bytes, int] = {}
        self._free: deque[int] = deque(range(1, num_units))
        self._unheld: OrderedDict[int, None] = OrderedDict()

    @property
    def num_unused(self) -> int:
        """Ids that nobody holds, cached ones too."""
        return len(self._free) + len(self._unheld)

    @property
    def num_free(self) -> int:
        """Ids that `allocate` can hand out now."""
        return self.num_unused

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` ids with one reference each; cached ones only when no other is left.

        Raises:
            EngineError: Fewer than `count` ids are free; nothing is handed out.
        """
        if count > self.num_free:
            raise EngineError(f"pool has {self.num_free} free units of {self.num_units - 1}, {count} asked")
        ids = []
        for _ in range(count):
            if self._free:
                unit = self._free.popleft()
            else:
                unit = self._evict()
            self.ref[unit] = 1
            ids.append(unit)
        return ids

    def hold(self, ids: Iterable[int]) -> None:
        """Add a reference to cached ids (a hit)."""
        for unit in ids:
            if self.ref[unit] == 0:
                del self._unheld[unit]
            self.ref[unit] += 1

    def free(self, ids: Iterable[int]) -> None:
        """Drop one reference of each id; the last one to go is the first to be evicted.

        Raises:
            EngineError: An id is null or not held.
        """
        for unit in ids:
            if unit == 0 or self.ref[unit] == 0:
                raise EngineError(f"unit {unit} is freed but not held")
            self.ref[unit] -= 1
            if self.ref[unit]:
                continue
            if self.hash_of[unit] is None:
                self._free.append(unit)
                if self.recycled is not None:
                    self.recycled.append(unit)
            else:
                self._unheld[unit] = None

    def publish(self, unit: int, block_hash: bytes, parent: bytes | None = None) -> None:
        """Make a held unit findable; a hash that another unit already has is left to that one.

        Args:
            parent: The hash before it in its chain, b"" for a first one; None is unknown.
        """
        if block_hash not in self.by_hash and self.hash_of[unit] is None:
            self.by_hash[block_hash] = unit
            self.hash_of[unit] = block_hash
            self.generation += 1
            self._parent_of[unit] = parent
            if parent:
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
            self.num_gaps += self._is_gap(parent) - self._num_children.get(block_hash, 0)

    def forget_all(self) -> None:
        """Drop every hash: what nobody holds becomes free, what is held goes on unnamed."""
        for unit in self._unheld:
            self._free.append(unit)
            if self.recycled is not None:
                self.recycled.append(unit)
        self._unheld.clear()
        self.hash_of = [None] * self.num_units
        self.by_hash.clear()
        self._parent_of = [None] * self.num_units
        self._num_children.clear()
        self.num_gaps = 0
        self.generation += 1

    def find(self, block_hash: bytes) -> int | None:
        """The unit cached under a hash; has no effect on the order of eviction."""
        return self.by_hash.get(block_hash)

    def num_unheld(self, ids: Iterable[int]) -> int:
        """How many of `ids` nobody holds."""
        return sum(self.ref[unit] == 0 for unit in ids)

    def check(self, held: dict[int, int]) -> None:
        """Assert the partition against a recount of references.

        Args:
            held: id -> references, counted from the holders.

        Raises:
            EngineError: The partition is broken.
        """
        free, unheld = set(self._free), set(self._unheld)
        counted = {unit for unit in range(self.num_units) if self.ref[unit]}
        ids = set(range(1, self.num_units))
        problems = []
        if len(free) != len(self._free) or free & unheld or free & counted or unheld & counted:
            problems.append("an id is in two places")
        if free | unheld | counted != ids:
            problems.append(f"ids {sorted(ids ^ (free | unheld | counted))} are lost or null is held")
        if {unit: self.ref[unit] for unit in counted} != held:
            problems.append("reference counts differ from a recount")
        if any(self.hash_of[unit] is not None for unit in free):
            problems.append("a free unit still has a hash")
        if {h: u for u, h in enumerate(self.hash_of) if h is not None} != self.by_hash:
            problems.append("hashes and their index differ")
        parents = [self._parent_of[unit] for unit in self.by_hash.values()]
        if sum(map(self._is_gap, parents)) != self.num_gaps or Counter(filter(None, parents)) != Counter(
            self._num_children
        ):
            problems.append("gaps or children differ from a recount")
        if problems:
            raise EngineError("pool: " + "; ".join(problems))

    def _evict(self) -> int:
        """Take the cached id that was let go of first."""
        unit, _ = self._unheld.popitem(last=False)
        block_hash = self.hash_of[unit]
        assert block_hash is not None
        del self.by_hash[block_hash]
        self.hash_of[unit] = None
        self.generation += 1
        parent = self._parent_of[unit]
        if parent:
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]
        self.num_gaps += self._num_children.get(block_hash, 0) - self._is_gap(parent)
        if self.recycled is not None:
            self.recycled.append(unit)
        return unit

    def _is_gap(self, parent: bytes | None) -> bool:
        return parent is None or (parent != b"" and parent not in self.by_hash)
