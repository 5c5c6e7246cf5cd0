"""Rotary position embedding on the leading part of each head, in torch.

Does not: compute angles; see `vtcore.layers.rope`.

Shape letters: T query tokens, H heads, D head width, R rotated width.
"""

from __future__ import annotations

from torch import Tensor


def rope(x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
    """Rotate the pairs (j, j + R/2) of the first R elements of each head, in place.

    Source: Su et al. 2021, RoFormer, section 3.2.2, with the pairing of GPT-NeoX.

    Args:
        x_THD: Accumulation dtype; overwritten.
        cos_T1R: cos of each angle, once for each half.
        sin_T1R: sin of each angle, the first half negated.

    Returns:
        x_THD.
    """
    width = cos_T1R.shape[-1]
    head_THR = x_THD[..., :width]
    swapped_THR = head_THR.roll(width // 2, -1)
    head_THR.mul_(cos_T1R).addcmul_(swapped_THR, sin_T1R)
    return x_THD
