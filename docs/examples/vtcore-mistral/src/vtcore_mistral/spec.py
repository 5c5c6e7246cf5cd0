"""The sliding-window kind of cache, as data.

Does not: allocate, hold tensors or know a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import frozen

from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Lifetime, TensorSpec, Window


@frozen(kw_only=True)
class SlidingWindowSpec(KVCacheSpec):
    """Keys and values of the last `window` positions; a query sees its own and the window - 1 before it.

    One unit of one layer holds `k` and `v`, each [block_size, num_kv_heads, head_dim].

    Args:
        window: Positions a query sees, its own included, >= 1.
        num_kv_heads: Key/value heads of one layer, >= 1.
        head_dim: Width of one head, >= 1.
        dtype: A key of `DTYPE_BYTES`.
    """

    kind: ClassVar[str] = "mistral_sliding_window"

    window: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def lifetime(self) -> Lifetime:
        """Only the last `window` positions are ever read."""
        return Window(self.window)

    @property
    def rollback(self) -> frozenset[str]:
        """Entries of rejected drafts are overwritten by the next query at their positions."""
        return frozenset({"overwrite"})

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """`k` and `v`; drafts need no extra space inside a block."""
        shape = (self.block_size, self.num_kv_heads, self.head_dim)
        return {"k": TensorSpec(shape, self.dtype), "v": TensorSpec(shape, self.dtype)}

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Blocks that the window, the queries in flight and the look-ahead can touch."""
        span = self.window - 1 + max_query + lookahead
        # One more, for the span need not start at a block's first position.
        touched = -(-span // self.block_size) + 1
        return min(touched, -(-(num_tokens + lookahead) // self.block_size))

    def needed(self, num_committed: int) -> range:
        """The blocks of the window - 1 positions before the next query, and all later ones."""
        first = max(0, num_committed - self.window + 1)
        return range(first // self.block_size, -(-num_committed // self.block_size))

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        """The longest prefix whose last window - 1 positions are all cached; what lies before may be gone.

        Each block is asked for at most once: a prefix that ends beyond a missing block, but within a window
        of it, needs that block too.
        """
        blocks = index = limit
        while index > self.needed(blocks * self.block_size).start:
            index -= 1
            if not present(index):
                blocks = index
        return blocks
