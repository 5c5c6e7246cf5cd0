"""State slots: those of running requests, and checkpoints of states, in one id space.

Does not: hold tensors, or decide where checkpoints are taken (state_checkpoints.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from vtcore.kv_cache.pool import UnitPool


class StatePool(UnitPool):
    """As `UnitPool`, with a budget of ids that checkpoints may take, so that no running request lacks a slot.

    Args:
        num_units: Slots of running requests, checkpoints and null.
        num_checkpoints: Ids that hold checkpoints at most, >= 0.
    """

    def __init__(self, num_units: int, num_checkpoints: int) -> None:
        super().__init__(num_units)
        self.num_checkpoints = num_checkpoints
        self._taken: set[int] = set()
        self._awaited: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Slots that `allocate` can hand out now, without those that checkpoints may still take."""
        return len(self._free) - (self.num_checkpoints - len(self._taken))

    def has_or_awaits(self, block_hash: bytes) -> bool:
        """Whether a state is kept under a hash, or a step in flight writes it."""
        return block_hash in self.by_hash or block_hash in self._awaited.values()

    @property
    def num_kept(self) -> int:
        """Checkpoints that a hit can find now."""
        return len(self.by_hash)

    def take_checkpoint(self, block_hash: bytes | None = None) -> int | None:
        """An id for a new checkpoint, with one reference; past the budget, the one used longest ago.

        Args:
            block_hash: What it will be published under, if that is known yet.

        Returns:
            None when every checkpoint is in use or about to be written.
        """
        if len(self._taken) < self.num_checkpoints:
            unit = self._free.popleft()
            self._taken.add(unit)
        elif self._unheld:
            unit = self._evict()
        else:
            return None
        self.ref[unit] = 1
        if block_hash is not None:
            self._awaited[unit] = block_hash
        return unit

    def free(self, ids: Iterable[int]) -> None:
        """Drop one reference of each id; a checkpoint that was never published leaves the budget."""
        ids = tuple(ids)
        super().free(ids)
        for unit in ids:
            self._awaited.pop(unit, None)
        self._taken.difference_update(
            unit for unit in ids if not self.ref[unit] and self.hash_of[unit] is None
        )

    def forget_all(self) -> None:
        """Drop every hash and every checkpoint that is not about to be written."""
        super().forget_all()
        self._awaited.clear()
        self._taken = {unit for unit in self._taken if self.ref[unit]}

    def demote(self, unit: int, block_hash: bytes) -> None:
        """Make an unused checkpoint the next to be evicted, if it still is the one of that hash."""
        if self.hash_of[unit] == block_hash and unit in self._unheld:
            self._unheld.move_to_end(unit, last=False)
