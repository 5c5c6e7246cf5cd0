"""The Qwen3.5 text model over loaded parameters.

Does not: load weights, allocate caches or sample.

Shape letters: T query tokens, H hidden size, N logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.model_arch import BuildContext, ForwardOutput
from vtcore.interfaces.step import LayerCache, StepInputs
from vtcore.layers.norm import RmsWeight, build_rms_weight
from vtcore.layers.rope import RotaryTable
from vtcore_qwen3_5_dense.attention import GatedAttention
from vtcore_qwen3_5_dense.config import LINEAR, Qwen35Config
from vtcore_qwen3_5_dense.gdn import GatedDeltaNet


class FeedForward(Protocol):
    """What follows the mixer in each layer."""

    def __call__(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""


class SwiGLU:
    """down(silu(gate(x)) * up(x)).

    Source: Shazeer 2020, GLU Variants Improve Transformer, equation 6.

    Args:
        ctx: Weights and ops.
        name: Parameter prefix, "layers.0.mlp.".
    """

    def __init__(self, ctx: BuildContext, name: str) -> None:
        self._in_proj = ctx.linear(f"{name}in_proj")
        self._out_proj = ctx.linear(f"{name}out_proj")
        self._activate = ctx.ops["silu_mul"]

    def __call__(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        return self._out_proj(self._activate(self._in_proj(x_TH)))


class Qwen35Layer:
    """One decoder layer: the mixer with the norm before it, the feed-forward with the norm before it."""

    def __init__(
        self,
        mixer: GatedDeltaNet | GatedAttention,
        feed_forward: FeedForward,
        input_norm: RmsWeight,
        post_norm: RmsWeight,
    ) -> None:
        self.mixer = mixer
        self.feed_forward = feed_forward
        self.input_norm = input_norm
        self.post_norm = post_norm


class Qwen35Model:
    """The built model.

    Args:
        config: Geometry.
        ctx: Weights, ops, aux layers.
        build_feed_forward: (layer prefix) -> the layer's feed-forward.
        head: Name of the rule that holds the head: the embedding's when tied.
    """

    def __init__(
        self,
        config: Qwen35Config,
        ctx: BuildContext,
        build_feed_forward: Callable[[str], FeedForward],
        head: str,
    ) -> None:
        rotary = RotaryTable(
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            max_position=ctx.max_position,
            dtype=ctx.acc_dtype,
            device=ctx.device,
        )

        def norm(name: str) -> RmsWeight:
            return build_rms_weight(ctx.param(name), config.rms_norm_eps, zero_centred=True)

        self._embed_VH = ctx.param("embed_tokens")
        self._head = ctx.linear(head)
        self._layers = []
        for index, kind in enumerate(config.layer_types):
            name = f"layers.{index}."
            mixer = (
                GatedDeltaNet(config, ctx, name)
                if kind == LINEAR
                else GatedAttention(config, ctx, name, rotary)
            )
            layer = Qwen35Layer(
                mixer, build_feed_forward(name), norm(f"{name}input_norm"), norm(f"{name}post_norm")
            )
            self._layers.append(layer)
        self._final_norm = norm("norm")
        # The norm that follows a layer's output: the next layer's first, at the end the model's own.
        self._next_norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        self._aux_layers = ctx.aux_layers
        self._norm = ctx.ops["rms_norm"]
        self._add_norm = ctx.ops["add_rms_norm"]

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Take the cache tensors of every layer, by name ("layers.0")."""
        for index, layer in enumerate(self._layers):
            layer.mixer.bind(caches[f"layers.{index}"])

    def embed(self, ids: Tensor) -> Tensor:
        """[T] int64 -> [T, H]."""
        return F.embedding(ids, self._embed_VH)

    def forward(self, step: StepInputs) -> ForwardOutput:
        """Run the step's query tokens; writes keys, values and states as the step says."""
        residual = self.embed(step.ids)
        captured = {-1: residual} if self._aux_layers else {}
        x = self._norm(residual, self._layers[0].input_norm)
        for index, layer in enumerate(self._layers):
            x = layer.mixer(x, step)
            x, residual = self._add_norm(x, residual, layer.post_norm)
            x = layer.feed_forward(x)
            x, residual = self._add_norm(x, residual, self._next_norms[index])
            if index in self._aux_layers:
                captured[index] = residual
        if not self._aux_layers:
            return ForwardOutput(x)
        return ForwardOutput(x, torch.cat([captured[index] for index in self._aux_layers], -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, V]."""
        return self._head(hidden)
