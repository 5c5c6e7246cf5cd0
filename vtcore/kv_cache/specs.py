"""The two kinds of cache spec that hybrid models need, as data.

Does not: allocate, hold tensors or know a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import frozen

from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Lifetime, Slot, TensorSpec, Whole


@frozen(kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Keys and values of every token, in blocks that live as long as the request.

    One unit of one layer holds `k` and `v`, each [block_size, num_kv_heads, head_dim].

    Args:
        num_kv_heads: Key/value heads of one layer, >= 1.
        head_dim: Width of one head, >= 1.
        dtype: A key of `DTYPE_BYTES`.
    """

    kind: ClassVar[str] = "full_attention"

    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def lifetime(self) -> Lifetime:
        """Every position may be read until the request ends."""
        return Whole()

    @property
    def rollback(self) -> frozenset[str]:
        """Entries of rejected drafts are overwritten by the next query at their positions."""
        return frozenset({"overwrite"})

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """`k` and `v`; drafts need no extra space inside a block."""
        shape = (self.block_size, self.num_kv_heads, self.head_dim)
        return {"k": TensorSpec(shape, self.dtype), "v": TensorSpec(shape, self.dtype)}

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Blocks that cover all positions and the look-ahead."""
        return -(-(num_tokens + lookahead) // self.block_size)


@frozen(kw_only=True)
class RecurrentStateSpec(KVCacheSpec):
    """A state of fixed size per request; each slot holds one complete state of every layer.

    Args:
        state: (name, shape of one slot, dtype name) of each tensor of one layer.
        chunk: Tokens per chunk of the kernel that computes prompts; see `state_chunk`.
    """

    kind: ClassVar[str] = "recurrent_state"

    state: tuple[tuple[str, tuple[int, ...], str], ...]
    chunk: int = 1

    @property
    def lifetime(self) -> Lifetime:
        """A fixed number of slots, whatever the request's length."""
        return Slot()

    @property
    def rollback(self) -> frozenset[str]:
        """A verify step writes the state after each query token to a slot of its own."""
        return frozenset({"slots"})

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """The declared tensors, zeroed when a request is admitted."""
        return {name: TensorSpec(shape, dtype, zeroed=True) for name, shape, dtype in self.state}

    @property
    def state_chunk(self) -> int:
        """The kernel's chunk."""
        return self.chunk

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        """The longest prefix at whose very end a state is kept; those before it are not needed."""
        for blocks in range(limit, 0, -1):
            if present(blocks - 1):
                return blocks
        return 0

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """One; the core keeps one such unit per state column (1 + k_max of them)."""
        return 1
