"""The gated DeltaNet mixer: projection, convolution, delta rule, gated norm, projection.

Does not: choose slots or hold states; the core owns them.

Shape letters: T query tokens, H hidden size, C conv channels, W kernel width, G value heads, K key width, V
value width.
"""

from __future__ import annotations

from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import BuildContext
from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore_qwen3_5_dense.config import Qwen35Config
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import build_delta_rule_shape


class GatedDeltaNet:
    """One linear attention layer's mixer.

    Args:
        config: Geometry.
        ctx: Weights and ops.
        name: Parameter prefix, "layers.0.".
    """

    def __init__(self, config: Qwen35Config, ctx: BuildContext, name: str) -> None:
        name += "gdn."
        heads = config.linear_num_value_heads
        self._in_proj = ctx.linear(f"{name}in_proj")
        self._out_proj = ctx.linear(f"{name}out_proj")
        self._layer = DeltaNetLayer(
            conv_WC=ctx.param(f"{name}conv").t().contiguous(),
            decay_rate_G=ctx.param(f"{name}A_log").exp().neg(),
            dt_bias_G=ctx.param(f"{name}dt_bias"),
            norm=build_rms_weight(ctx.param(f"{name}norm"), config.rms_norm_eps),
            shape=build_delta_rule_shape(
                key_heads=config.linear_num_key_heads,
                value_heads=heads,
                key_width=config.linear_key_head_dim,
                value_width=config.linear_value_head_dim,
                dtype=ctx.acc_dtype,
                device=ctx.device,
            ),
            split=(config.conv_channels, config.value_rows, heads, heads),
            activation=config.output_gate,
            acc_dtype=ctx.acc_dtype,
        )
        self._mix = ctx.ops["gated_delta_net"]
        self._cache: LayerCache | None = None

    def bind(self, cache: LayerCache) -> None:
        """Take the layer's states: `conv` [slots, W - 1, C] and `state` [slots, G, K, V]."""
        self._cache = cache

    def __call__(self, x_TH: Tensor, step: StepInputs) -> Tensor:
        """[T, H] -> [T, H]; advances the rows' states.

        Raises:
            EngineError: No caches were bound.
        """
        if self._cache is None:
            raise EngineError("a gated DeltaNet layer ran before its caches were bound")
        gated: Tensor = self._mix(self._in_proj(x_TH), self._layer, self._cache, step)
        return self._out_proj(gated)
