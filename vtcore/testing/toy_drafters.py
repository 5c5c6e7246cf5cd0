"""Drafters that keep the drafter seam honest: one always right, one junk, one with KV of its own.

Does not: draft for any use. None may change a single output token; `ShiftedDrafter` also has a twin without
any cache that its drafts must equal.

Shape letters: B rows of a step, N sampled rows, k drafts asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vtcore.execution.tables import DeviceTables
from vtcore.interfaces.batch import RowInit
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import CacheContext
from vtcore.interfaces.step import LayerCache, PagedPool, SlotPool
from vtcore.speculation.drafter import DraftView
from vtcore.testing.toy_arch import ToyBlocks, ToyState, read_ids
from vtcore.testing.toy_hash import fold, mix


class _RowsDrafter:
    """Common part: the tables, and what each row was admitted with."""

    lookahead = 0
    needs_history = True
    aux_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.inits: dict[int, RowInit] = {}
        self.vocab_size = 0
        self.tables: DeviceTables | None = None

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """None."""
        return ()

    def bind(self, tables: DeviceTables, caches: Mapping[str, LayerCache], vocab_size: int) -> None:
        """Keep the tables."""
        self.tables, self.vocab_size = tables, vocab_size

    def admit(self, inits: Sequence[RowInit]) -> None:
        """Remember the rows' requests."""
        self.inits.update((init.row, init) for init in inits)

    def ingest(self, view: DraftView) -> None:
        """Nothing to follow."""

    def propose(self, view: DraftView, k: int) -> Tensor:
        """One row at a time."""
        drafts = []
        for index in view.sampled_N.tolist():
            row = int(view.rows_B[index])
            last = int(view.step.computed[index]) + int(view.num_new_B[index])
            drafts.append(self.row_drafts(row, last, k))
        return torch.tensor(drafts, dtype=torch.int64).view(len(drafts), k)

    def row_drafts(self, row: int, last: int, k: int) -> list[int]:
        """k drafts after position `last`, the row's last known token."""
        raise AssertionError("subclasses draft")


class OracleDrafter(_RowsDrafter):
    """Proposes the true continuation, also past the end of the request.

    Args:
        sequence: RowInit -> the request's tokens from position 0 on, as far as they are known.
        is_wrong: (row's first token, position) -> whether to spoil that draft.
    """

    def __init__(
        self,
        sequence: Callable[[RowInit], Sequence[int]],
        is_wrong: Callable[[int, int], bool] = lambda token, position: False,
    ) -> None:
        super().__init__()
        self._sequence = sequence
        self._is_wrong = is_wrong

    def row_drafts(self, row: int, last: int, k: int) -> list[int]:
        """The sequence's next k tokens; -1 where it is not known."""
        sequence = self._sequence(self.inits[row])
        drafts = list(sequence[last + 1 : last + 1 + k])
        for index, token in enumerate(drafts):
            if self._is_wrong(sequence[0], last + 1 + index):
                drafts[index] = (token + 1) % self.vocab_size
        return drafts + [-1] * (k - len(drafts))


class JunkDrafter(_RowsDrafter):
    """Proposes noise: right by chance, illegal now and then, of any length."""

    def row_drafts(self, row: int, last: int, k: int) -> list[int]:
        """Ids from -3 to vocab_size + 2."""
        noise = [mix(mix(row, last), index) for index in range(k)]
        return [value % (self.vocab_size + 6) - 3 for value in noise]


class ShiftedDrafter(_RowsDrafter):
    """Keeps the pair (hidden before p, token at p) at position p, as an MTP head does.

    The carry, the hidden that the next pair needs, is one more tensor of the state slots where the target has
    any, so that a restored or forked state brings it along; else it is a number per row.

    Args:
        k_max: Drafts asked for at most.
        in_slots: Whether the target has state slots.
    """

    def __init__(self, k_max: int, in_slots: bool) -> None:
        super().__init__()
        self.lookahead = k_max
        self.in_slots = in_slots
        self._by_row: dict[int, int] = {}
        self._cache: LayerCache | None = None
        self._states: LayerCache | None = None

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """One layer beside the target's, and the carry."""
        blocks = ToyBlocks(layers=("draft",), block_size=ctx.block_size)
        carry = ToyState(layers=("carry",), block_size=ctx.block_size)
        return (blocks, carry) if self.in_slots else (blocks,)

    def bind(self, tables: DeviceTables, caches: Mapping[str, LayerCache], vocab_size: int) -> None:
        """Keep its layers."""
        super().bind(tables, caches, vocab_size)
        self._cache, self._states = caches["draft"], caches.get("carry")

    def admit(self, inits: Sequence[RowInit]) -> None:
        """Without slots the hidden before a row's first query is unknown."""
        super().admit(inits)
        self._by_row.update((init.row, 0) for init in inits)

    def ingest(self, view: DraftView) -> None:
        """Store the pairs of all committed query tokens, and carry the last hidden on."""
        offset = 0
        for index, row in enumerate(view.rows_B.tolist()):
            if index < view.step.num_uniform:
                offset = index * view.step.query_len
            else:
                offset = view.step.prefill[index - view.step.num_uniform].offset
            start, carry = int(view.step.computed[index]), self._read_carry(view, index)
            for step in range(int(view.num_new_B[index])):
                self._write(row, start + step, mix(carry, int(view.step.ids[offset + step])))
                carry = int(view.hidden_TH[offset + step, 0])
                self._write_carry(view, index, step, carry)

    def _read_carry(self, view: DraftView, index: int) -> int:
        if self._states is None:
            return self._by_row[int(view.rows_B[index])]
        pool = view.step.pools[self._states.pool]
        assert isinstance(pool, SlotPool)
        return int(self._states["hash"][pool.read_slots[index], 0])

    def _write_carry(self, view: DraftView, index: int, step: int, carry: int) -> None:
        if self._states is None:
            self._by_row[int(view.rows_B[index])] = carry
            return
        pool = view.step.pools[self._states.pool]
        assert isinstance(pool, SlotPool)
        column = step if index < view.step.num_uniform else 0
        self._states["hash"][pool.write_slots[index, column], 0] = carry

    def _carry_of(self, row: int) -> int:
        if self._states is None:
            return self._by_row[row]
        assert self.tables is not None
        slots = self.tables.state_slots[self._states.pool]
        assert slots is not None
        return int(self._states["hash"][slots[row, self.tables.cur_slot[row]], 0])

    def row_drafts(self, row: int, last: int, k: int) -> list[int]:
        """Draft one by one; pairs beyond the known tokens are scratch that the next ingest rewrites."""
        assert self.tables is not None
        limit = int(self.tables.limit[row])
        token, hidden = int(self.tables.last_token[row]), self._carry_of(row)
        drafts: list[int] = []
        for position in range(last, last + k):
            # A draft at `position + 1` is a query token only below the last computed position.
            if position + 1 > limit - 2:
                break
            self._write(row, position, mix(hidden, token))
            hidden = fold(self._entries(row, position + 1), 17)
            token = hidden % self.vocab_size
            drafts.append(token)
        return drafts + [-1] * (k - len(drafts))

    @staticmethod
    def from_scratch(
        tokens: Sequence[int], hidden_after: Callable[[int], int], limit: int, vocab_size: int, k: int
    ) -> list[int]:
        """The drafts after `tokens`, without any cache.

        Args:
            hidden_after: Number of tokens -> the target's hidden after that many.
        """
        entries = [mix(hidden_after(p) if p else 0, token) for p, token in enumerate(tokens[:-1])]
        last, token, hidden = len(tokens) - 1, tokens[-1], hidden_after(len(tokens) - 1)
        drafts: list[int] = []
        for position in range(last, last + k):
            if position + 1 > limit - 2:
                break
            entries.append(mix(hidden, token))
            hidden = fold(entries, 17)
            token = hidden % vocab_size
            drafts.append(token)
        return drafts + [-1] * (k - len(drafts))

    def _pool(self, row: int) -> PagedPool:
        assert self.tables is not None
        assert self._cache is not None
        table = self.tables.block_tables[self._cache.pool]
        assert table is not None
        empty = torch.zeros(0, dtype=torch.int64)
        return PagedPool(self._cache["ids"].shape[1], None, table[row : row + 1], empty, None)

    def _write(self, row: int, position: int, value: int) -> None:
        assert self._cache is not None
        pool = self._pool(row)
        block = int(pool.block_table[0, position // pool.block_size])
        assert block, f"row {row} drafts through the null block at {position}"
        self._cache["ids"][block, position % pool.block_size] = value

    def _entries(self, row: int, end: int) -> list[int]:
        assert self._cache is not None
        return read_ids(self._cache, self._pool(row), 0, 0, end)
