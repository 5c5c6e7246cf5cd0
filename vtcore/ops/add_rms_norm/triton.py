"""Addition and RMS norm as one Triton kernel.

Does not: write its inputs.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.layers.norm import RmsWeight
from vtcore.ops.rms_norm.triton import launch_rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: RmsWeight) -> tuple[Tensor, Tensor]:
    """See `naive.add_rms_norm`."""
    return launch_rms_norm(x, residual, weight)
