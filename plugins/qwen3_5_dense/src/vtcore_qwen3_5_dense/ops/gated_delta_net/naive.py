"""From a gated DeltaNet layer's input projection to its output projection, in torch: the reference and the
CPU path.

Does not: project.

Shape letters: T query tokens, X width of the projection, G value heads, V value width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore_qwen3_5_dense.ops.causal_conv1d.naive import causal_conv1d
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_rule.naive import gated_delta_rule
from vtcore_qwen3_5_dense.ops.gated_norm.naive import gated_norm


def gated_delta_net(
    projected_TX: Tensor, layer: DeltaNetLayer, cache: LayerCache, step: StepInputs
) -> Tensor:
    """Gates, convolution, gated delta rule and gated norm; advances the rows' states.

    Source: Yang, Kautz and Hatamizadeh 2024, Gated Delta Networks, section 3; transformers, modeling_qwen3_5,
    Qwen3_5GatedDeltaNet.

    Args:
        projected_TX: [T, qkv | z | b | a].
        cache: `conv` [slots, W - 1, C] and `state` [slots, G, K, V], read and written.

    Returns:
        [T, G * V] in the input's dtype.

    Raises:
        EngineError: A row with a query names slot 0.
    """
    rounds = projected_TX.dtype != layer.acc_dtype
    mixed_TC, z, b_TG, a_TG = projected_TX.split_with_sizes(layer.split, -1)
    beta_TG = (b_TG.to(layer.acc_dtype) if rounds else b_TG).sigmoid()
    g_TG = F.softplus(a_TG + layer.dt_bias_G).mul_(layer.decay_rate_G)
    qkv_TC = causal_conv1d(mixed_TC, layer.conv_WC, cache["conv"], step, cache.pool)
    out = gated_delta_rule(qkv_TC, g_TG, beta_TG, cache["state"], layer.shape, step, cache.pool)
    return gated_norm(out, z, layer.norm, layer.activation)
