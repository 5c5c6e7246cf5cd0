"""Device tensors of one step, as the runner offers them to a model.

Does not: import torch, or hold anything that outlives the step but the caches.

Token layout: U uniform rows of Q = 1 + num_drafts_in query tokens each, then the prefill rows one after
another. So token t < U * Q belongs to uniform row t // Q, query index t % Q.

Shape letters: T query tokens, B rows of the step (uniform first), U uniform rows, Q their query length,
M block table width, S state columns, C tokens of context.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from attrs import define, frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class LayerCache:
    """The cache tensors of one layer, unit dimension first, and the pool their units belong to."""

    pool: int
    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


@frozen
class PrefillSpan:
    """Where a prefill row lies: batch index in [U, B), token range [offset, offset + length).

    Args:
        start: Its tokens in the cache before this step.
        is_null: Whether it stands for no request, in a step that only measures or warms up: it names id 0 in
            every pool, so nothing may be read or written for it; its results are never looked at.
    """

    index: int
    offset: int
    length: int
    start: int
    is_null: bool = False


@define(slots=False)
class PagedPool:
    """One paged pool's view of the step. `slot_mapping` 0..block_size-1 is the null block.

    Args:
        block_size: Tokens per block.
        window: Only the last `window` positions are read (own position included); None reads all.
        block_table: [B, M] int64, block ids; entries beyond a row's blocks are 0.
        slot_mapping: [T] int64, block id * block_size + offset; 0 for query tokens that write nothing.
        write_tokens: [<=T] int64, the tokens that write. None on a CPU when all T do; on a GPU always, where
            only `slot_mapping` tells.
    """

    block_size: int
    window: int | None
    block_table: Tensor
    slot_mapping: Tensor
    write_tokens: Tensor | None


@define
class SlotPool:
    """One slot pool's view of the step.

    Args:
        read_slots: [B] int64, the slot that holds each row's state before this step.
        write_slots: [B, S] int64, the row's slots by column; query row r of a uniform row writes column r,
            a prefill row writes column 0.
    """

    read_slots: Tensor
    write_slots: Tensor


@define(slots=False)
class StepInputs:
    """Everything a forward reads beside weights and caches.

    Args:
        ids: [T] int64. Padding of a query cut short by a -1 draft is token 0.
        positions: [T] int64.
        num_uniform: U. query_len: Q.
        prefill: Host spans of the prefill rows.
        computed: [B] int64, tokens in the cache before this step.
        query_lens: [B] int64, valid query tokens, 0..Q for uniform rows; 0 for padding rows, which name the
            null row.
        query_start: [B + 1] int64, the first token of each row in the flat layout, and T.
        query_len_min: Smallest valid query length of the uniform rows (Q when there are none); host. On a GPU
            always 0, since the host does not know.
        context_max: Largest computed + query over the uniform rows, in tokens; host.
        pools: By pool index.
    """

    ids: Tensor
    positions: Tensor
    num_uniform: int
    query_len: int
    prefill: tuple[PrefillSpan, ...]
    computed: Tensor
    query_lens: Tensor
    query_start: Tensor
    query_len_min: int
    context_max: int
    pools: tuple[PagedPool | SlotPool, ...]

    @cached_property
    def num_uniform_tokens(self) -> int:
        """U * Q."""
        return self.num_uniform * self.query_len

    @cached_property
    def max_prefill_len(self) -> int:
        """Tokens of the longest prefill row, 0 without any; host."""
        return max((span.length for span in self.prefill), default=0)
