"""The gate of a SwiGLU block, in torch: the reference and the CPU path.

Does not: project.

Shape letters: T query tokens, I inner width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def silu_mul(gate_up_TX: Tensor) -> Tensor:
    """silu(gate) * up.

    Source: Shazeer 2020, GLU Variants Improve Transformer, equation 6.

    Args:
        gate_up_TX: [T, 2 * I], gate and up side by side.

    Returns:
        [T, I], the input's dtype, new.
    """
    gate, up = gate_up_TX.chunk(2, -1)
    return F.silu(gate).mul_(up)
