"""One attention layer's key and value cache with the views that ops read and write.

Does not: allocate.

Shape letters: N blocks, B tokens per block, H key/value heads, D head width.
"""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from vtcore.interfaces.step import LayerCache


@frozen(eq=False)
class PagedKV:
    """Views of one layer's cache; all share the core's memory.

    Args:
        pool: Index of the pool whose block ids address the cache.
        k_NBHD, v_NBHD: As allocated.
        k_tokens, v_tokens: [N * B, H, D], indexed by slot.
        k_rows, v_rows: [N * B * H, D], indexed by slot * H + head.
    """

    pool: int
    k_NBHD: Tensor
    v_NBHD: Tensor
    k_tokens: Tensor
    v_tokens: Tensor
    k_rows: Tensor
    v_rows: Tensor


def build_paged_kv(cache: LayerCache) -> PagedKV:
    """Make the views once, when the caches are bound."""
    k, v = cache["k"], cache["v"]
    heads, width = k.shape[-2:]
    return PagedKV(
        cache.pool,
        k,
        v,
        k.view(-1, heads, width),
        v.view(-1, heads, width),
        k.view(-1, width),
        v.view(-1, width),
    )
