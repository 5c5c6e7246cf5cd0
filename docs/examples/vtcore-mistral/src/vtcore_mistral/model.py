"""The Mistral model over loaded parameters.

Does not: load weights, allocate caches or sample.

Shape letters: T query tokens, H hidden size, N query heads, G key/value heads, X = N + G, D head width,
L logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import BuildContext, ForwardOutput
from vtcore.interfaces.step import LayerCache, PagedPool, StepInputs
from vtcore.layers.norm import RmsWeight, build_rms_weight
from vtcore.layers.paged_kv import PagedKV, build_paged_kv
from vtcore.layers.rope import RotaryTable
from vtcore_mistral.config import MistralConfig


class Attention:
    """Grouped-query attention of one layer; how far back a query sees is the pool's `window`.

    Args:
        config: Geometry.
        ctx: Weights and ops.
        name: Parameter prefix, "layers.0.attn.".
        rotary: Angles, shared by all layers.
    """

    def __init__(self, config: MistralConfig, ctx: BuildContext, name: str, rotary: RotaryTable) -> None:
        self._heads = (config.num_heads, config.num_kv_heads)
        self._head_dim = config.head_dim
        self._in_proj, self._out_proj = ctx.linear(f"{name}in_proj"), ctx.linear(f"{name}out_proj")
        self._rotary = rotary
        self._acc_dtype = ctx.acc_dtype
        self._rope, self._kv_write = ctx.ops["rope"], ctx.ops["kv_write"]
        self._attend = ctx.ops["paged_attention"]
        self._kv: PagedKV | None = None

    def bind(self, cache: LayerCache) -> None:
        """Take the layer's `k` and `v`, each [blocks, block_size, G, D]."""
        self._kv = build_paged_kv(cache)

    def __call__(self, x_TH: Tensor, step: StepInputs) -> Tensor:
        """[T, H] -> [T, H]; writes the tokens' keys and values.

        Raises:
            EngineError: No caches were bound, or the bound pool is not one of blocks.
        """
        if self._kv is None:
            raise EngineError("an attention layer ran before its caches were bound")
        pool = step.pools[self._kv.pool]
        if not isinstance(pool, PagedPool):
            raise EngineError(f"pool {self._kv.pool} holds slots, but an attention layer was bound to it")
        queries, keys = self._heads
        heads_TXD = self._in_proj(x_TH).unflatten(-1, (queries + 2 * keys, self._head_dim))
        qk_TXD, v_TGD = heads_TXD.split_with_sizes((queries + keys, keys), 1)
        # The op rotates in place and in the accumulation dtype.
        turned = self._rope(qk_TXD.to(self._acc_dtype, copy=True), *self._rotary.at(step))
        q_TND, k_TGD = turned.to(x_TH.dtype).split_with_sizes((queries, keys), 1)
        self._kv_write(self._kv, k_TGD, v_TGD, pool)
        mixed_TND: Tensor = self._attend(q_TND, self._kv, step, pool, self._head_dim**-0.5)
        return self._out_proj(mixed_TND.flatten(1))


class Layer:
    """One decoder layer: attention and a SwiGLU block, each behind a norm.

    Source: Shazeer 2020, GLU Variants Improve Transformer, equation 6.
    """

    def __init__(self, config: MistralConfig, ctx: BuildContext, name: str, rotary: RotaryTable) -> None:
        self.attention = Attention(config, ctx, f"{name}attn.", rotary)
        self.input_norm = build_rms_weight(ctx.param(f"{name}input_norm"), config.rms_norm_eps)
        self.post_norm = build_rms_weight(ctx.param(f"{name}post_norm"), config.rms_norm_eps)
        self._in_proj, self._out_proj = ctx.linear(f"{name}mlp.in_proj"), ctx.linear(f"{name}mlp.out_proj")

    def feed_forward(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        gate, up = self._in_proj(x_TH).chunk(2, -1)
        return self._out_proj(F.silu(gate).mul_(up))


class MistralModel:
    """The built model.

    Args:
        config: Geometry.
        ctx: Weights, ops, aux layers.
    """

    def __init__(self, config: MistralConfig, ctx: BuildContext) -> None:
        rotary = RotaryTable(
            theta=config.rope_theta,
            rotary_dim=config.head_dim,
            max_position=ctx.max_position,
            dtype=ctx.acc_dtype,
            device=ctx.device,
        )
        self._embed_VH = ctx.param("embed_tokens")
        self._head = ctx.linear("embed_tokens" if config.tied else "lm_head")
        self._layers = [Layer(config, ctx, f"layers.{i}.", rotary) for i in range(config.num_layers)]
        final_norm = build_rms_weight(ctx.param("norm"), config.rms_norm_eps)
        # The norm that follows a layer's output: the next layer's first, at the end the model's own.
        self._next_norms: list[RmsWeight] = [layer.input_norm for layer in self._layers[1:]] + [final_norm]
        self._aux_layers = ctx.aux_layers
        self._norm, self._add_norm = ctx.ops["rms_norm"], ctx.ops["add_rms_norm"]

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Take each layer's cache by the name that `cache_specs` gave it."""
        for index, layer in enumerate(self._layers):
            layer.attention.bind(caches[f"layers.{index}"])

    def embed(self, ids: Tensor) -> Tensor:
        """[T] int64 -> [T, H]."""
        return F.embedding(ids, self._embed_VH)

    def forward(self, step: StepInputs) -> ForwardOutput:
        """Run the step's query tokens; writes keys and values as the step says."""
        residual = self.embed(step.ids)
        captured = {-1: residual}
        x = self._norm(residual, self._layers[0].input_norm)
        for index, (layer, next_norm) in enumerate(zip(self._layers, self._next_norms, strict=True)):
            x = layer.attention(x, step)
            x, residual = self._add_norm(x, residual, layer.post_norm)
            x = layer.feed_forward(x)
            x, residual = self._add_norm(x, residual, next_norm)
            if index in self._aux_layers:
                captured[index] = residual
        if not self._aux_layers:
            return ForwardOutput(x)
        return ForwardOutput(x, torch.cat([captured[index] for index in self._aux_layers], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[L, H] -> [L, V]."""
        return self._head(hidden)
