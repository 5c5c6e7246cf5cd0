"""The gated DeltaNet mixer: projection, convolution, delta rule, gated norm, projection.

Does not: choose slots or hold states; the core owns them.

Shape letters: T query tokens, H hidden size, C conv channels, W kernel width, G value heads.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import BuildContext
from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore_qwen3_5_dense.config import Qwen35Config
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
        self._conv_WC = ctx.param(f"{name}conv").t().contiguous()
        self._decay_rate_G = ctx.param(f"{name}A_log").exp().neg()
        self._dt_bias_G = ctx.param(f"{name}dt_bias")
        self._norm = build_rms_weight(ctx.param(f"{name}norm"), config.rms_norm_eps)
        self._shape = build_delta_rule_shape(
            key_heads=config.linear_num_key_heads,
            value_heads=heads,
            key_width=config.linear_key_head_dim,
            value_width=config.linear_value_head_dim,
            dtype=ctx.acc_dtype,
            device=ctx.device,
        )
        self._split = (config.conv_channels, config.value_rows, heads, heads)
        self._activation = config.output_gate
        self._acc = ctx.acc_dtype
        self._rounds = ctx.dtype != ctx.acc_dtype
        self._conv = ctx.ops["causal_conv1d"]
        self._delta_rule = ctx.ops["gated_delta_rule"]
        self._gated_norm = ctx.ops["gated_norm"]
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
        pool = self._cache.pool
        mixed_TC, z, b_TG, a_TG = self._in_proj(x_TH).split_with_sizes(self._split, -1)
        beta_TG = (b_TG.to(self._acc) if self._rounds else b_TG).sigmoid()
        g_TG = F.softplus(a_TG + self._dt_bias_G).mul_(self._decay_rate_G)
        qkv_TC = self._conv(mixed_TC, self._conv_WC, self._cache["conv"], step, pool)
        out = self._delta_rule(qkv_TC, g_TG, beta_TG, self._cache["state"], self._shape, step, pool)
        gated: Tensor = self._gated_norm(out, z, self._norm, self._activation)
        return self._out_proj(gated)
