"""RMS norm per head followed by a gate, in torch.

Does not: project.

Shape letters: T query tokens, G heads, V head width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vtcore.layers.norm import RmsWeight
from vtcore.ops.rms_norm.naive import rms_norm_acc


def gated_norm(o: Tensor, z: Tensor, weight: RmsWeight, activation: str) -> Tensor:
    """rms_norm(o) * activation(z), norm before gate.

    Source: transformers, modeling_qwen3_5, Qwen3_5RMSNormGated.

    Args:
        o: [T * G, 1, V] accumulation dtype.
        z: [T, G * V], the activations' dtype.
        weight: Over V, shared by all heads.
        activation: "silu" or "sigmoid".

    Returns:
        [T, G * V] in z's dtype.
    """
    rounds = z.dtype != o.dtype
    gate = z.to(o.dtype) if rounds else z
    gate = F.silu(gate) if activation == "silu" else gate.sigmoid()
    gated = rms_norm_acc(o, weight).view(gate.shape).mul_(gate)
    return gated.to(z.dtype) if rounds else gated
