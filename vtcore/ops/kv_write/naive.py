"""Storing a step's keys and values, in torch.

Does not: choose slots.

Shape letters: T query tokens, H key/value heads, D head width.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.step import PagedPool
from vtcore.layers.paged_kv import PagedKV
from vtcore.ops.once import once


def kv_write(kv: PagedKV, k_THD: Tensor, v_THD: Tensor, pool: PagedPool) -> None:
    """Write the keys and values of the tokens that `pool` says write.

    On a GPU the host waits until it knows which these are, so a step with this op is not captured.

    Args:
        kv: Written at `pool.slot_mapping`.
        k_THD, v_THD: The cache's dtype.

    Raises:
        EngineError: On a CPU: a writing token is mapped to the null block.
    """
    tokens, slots = once(pool, "write_slots", lambda: _write_slots(pool))
    if tokens is not None:
        k_THD = k_THD.index_select(0, tokens)
        v_THD = v_THD.index_select(0, tokens)
    kv.k_tokens.index_copy_(0, slots, k_THD)
    kv.v_tokens.index_copy_(0, slots, v_THD)


def _write_slots(pool: PagedPool) -> tuple[Tensor | None, Tensor]:
    """Tokens that write, None for all, and their slots."""
    slots, tokens = pool.slot_mapping, pool.write_tokens
    if tokens is None and slots.device.type != "cpu":
        tokens = (slots >= pool.block_size).nonzero().squeeze(1)
    if tokens is not None:
        slots = slots.index_select(0, tokens)
    if slots.numel() and int(slots.min()) < pool.block_size:
        raise EngineError("a query token's keys would be written to the null block 0")
    return tokens, slots
