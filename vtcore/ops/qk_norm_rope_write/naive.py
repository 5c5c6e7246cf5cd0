"""From projected queries, keys and values to what attention reads, in torch: the reference and the CPU path.

Does not: project or attend.

Shape letters: T query tokens, N query heads, G key/value heads, D head width, P positions, R rotated width.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.interfaces.step import PagedPool, StepInputs
from vtcore.layers.norm import RmsWeight
from vtcore.layers.paged_kv import PagedKV
from vtcore.layers.rope import RotaryTable
from vtcore.ops.kv_write.naive import kv_write
from vtcore.ops.rms_norm.naive import rms_norm_acc
from vtcore.ops.rope.naive import rope


def qk_norm_rope_write(
    qk_TX: Tensor,
    v_TX: Tensor,
    weight: RmsWeight,
    rotary: RotaryTable,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
) -> Tensor:
    """Normalise each query and key head, rotate its leading part, write keys and values to the cache.

    Args:
        qk_TX: [T, (N + G) * D], query heads then key heads.
        v_TX: [T, G * D].
        weight: Over [N + G, D].
        rotary: Angles by position.
        kv: Written where `pool` says.

    Returns:
        Queries [T, N, D] in the input's dtype.

    Raises:
        EngineError: A writing token is mapped to the null block.
    """
    groups = kv.k_tokens.shape[1]
    heads, width = weight.scale.shape
    qk_TXD = rms_norm_acc(qk_TX.view(-1, heads, width), weight)
    qk_TXD = rope(qk_TXD, *rotary.at(step))
    if qk_TXD.dtype != qk_TX.dtype:
        qk_TXD = qk_TXD.to(qk_TX.dtype)
    q_TND, k_TGD = qk_TXD.split_with_sizes((heads - groups, groups), 1)
    kv_write(kv, k_TGD, v_TX.view(-1, groups, width), pool)
    return q_TND
