"""The Qwen3.5 dense architecture as the core sees it.

Does not: read files or allocate.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from vtcore.errors import EngineError
from vtcore.interfaces.chat import MessageRules
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import (
    BuildContext,
    CacheContext,
    Model,
    ModelArch,
    ModelCosts,
    ModelDims,
    ParamRule,
)
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore_qwen3_5_dense.config import FULL, LINEAR, Qwen35Config, parse_config
from vtcore_qwen3_5_dense.costs import hybrid_costs
from vtcore_qwen3_5_dense.ops.gated_delta_rule.chunk import CHUNK
from vtcore_qwen3_5_dense.sizes import checkpoint_config, published_config
from vtcore_qwen3_5_dense.weights import HEAD, build_rules, is_skipped, swiglu_rules

if TYPE_CHECKING:
    from vtcore_qwen3_5_dense.model import FeedForward

OPS: Mapping[str, Mapping[str, str]] = {
    "gated_delta_net": {
        "naive": "vtcore_qwen3_5_dense.ops.gated_delta_net.naive:gated_delta_net",
        "cuda": "vtcore_qwen3_5_dense.ops.gated_delta_net.triton:gated_delta_net",
        "cuda_batch_invariant": (
            "vtcore_qwen3_5_dense.ops.gated_delta_net.triton:gated_delta_net_batch_invariant"
        ),
    },
}
"""The ops of gated DeltaNet layers."""

LOGIT_STD = 6.0
"""Standard deviation of the logits of random-weight checkpoints."""

MESSAGE_RULES = MessageRules(
    role_aliases={"developer": "system"},
    key_aliases={"reasoning": "reasoning_content", "thinking": "reasoning_content"},
    merge_system_messages=True,
    arguments_as_mappings=True,
    join_text_parts=True,
    empty_content=True,
)
"""The template knows one system message, first, reads `reasoning_content`, and walks through arguments.

Source: chat_template.jinja of the Qwen3.5 releases.
"""


def hybrid_cache_specs(config: Qwen35Config, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
    """Paged keys and values of the attention layers, state slots of the linear layers."""
    names = {
        kind: tuple(f"layers.{i}" for i, layer in enumerate(config.layer_types) if layer == kind)
        for kind in (FULL, LINEAR)
    }
    state_shape = (config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim)
    state_dtype = "float64" if ctx.dtype == "float64" else "float32"
    specs: list[KVCacheSpec] = []
    if names[FULL]:
        specs.append(
            FullAttentionSpec(
                layers=names[FULL],
                block_size=ctx.block_size,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=ctx.dtype,
            )
        )
    if names[LINEAR]:
        specs.append(
            RecurrentStateSpec(
                layers=names[LINEAR],
                block_size=ctx.block_size,
                state=(
                    ("conv", (config.conv_kernel - 1, config.conv_channels), ctx.dtype),
                    ("state", state_shape, state_dtype),
                ),
                chunk=CHUNK,
            )
        )
    return tuple(specs)


class Qwen35Arch(ModelArch):
    """What Qwen3.5 text models have in common; vision and MTP tensors of a checkpoint are skipped.

    Args:
        config: Parsed config.
    """

    message_rules: ClassVar[MessageRules] = MESSAGE_RULES

    def __init__(self, config: Qwen35Config) -> None:
        self.config = config
        self._tied = config.tied is True

    @property
    def dims(self) -> ModelDims:
        """The numbers the core needs."""
        return ModelDims(
            vocab_size=self.config.vocab_size,
            hidden_size=self.config.hidden_size,
            num_layers=self.config.num_layers,
            max_position_embeddings=self.config.max_position_embeddings,
        )

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """One group per kind of layer the config has."""
        return hybrid_cache_specs(self.config, ctx)

    @abstractmethod
    def feed_forward_rules(self, names: Collection[str], name: str, source: str) -> Iterable[ParamRule]:
        """Rules of what follows a layer's mixer.

        Args:
            names: Tensors of the checkpoint; empty stands for the released form.
            name: Parameter prefix, "layers.0.".
            source: Checkpoint prefix, "model.language_model.layers.0.".
        """

    @abstractmethod
    def build_feed_forward(self, ctx: BuildContext, name: str) -> FeedForward:
        """What follows a layer's mixer, over the rules of the same prefix."""

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """Rules of the hf scheme; without names those of the released form."""
        rules = build_rules(self.config, names, partial(self.feed_forward_rules, names))
        self._tied = all(rule.name != "lm_head" for rule in rules)
        return rules

    def is_skipped(self, name: str) -> bool:
        """Vision, MTP and stored rotary frequencies; also a stored copy of a tied head."""
        return is_skipped(name) or (name == HEAD and self.config.tied is True)

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """The ops of gated DeltaNet layers."""
        return OPS

    def costs(self) -> ModelCosts:
        """FLOPs of attention and of the gated delta rule."""
        return hybrid_costs(self.config)

    def build(self, ctx: BuildContext) -> Model:
        """Construct the model over parameters that the core has loaded.

        Raises:
            EngineError: The context spans several ranks.
        """
        # Here, because make-checkpoint and `vtcore check` use an arch without building a model.
        from vtcore_qwen3_5_dense.model import Qwen35Model

        if ctx.parallel.world != 1:
            raise EngineError(f"Qwen3.5 models run on one rank, but the context has {ctx.parallel.world}")
        head = "embed_tokens" if self._tied else "lm_head"
        return Qwen35Model(self.config, ctx, partial(self.build_feed_forward, ctx), head)

    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        """Unit-gain projections, norms at identity, decays as the released models start them.

        Source: transformers, Qwen3_5PreTrainedModel._init_weights, for A_log, dt_bias and the norms.
        """
        kind = rule.name.rsplit(".", 1)[-1]
        if rule.name == "lm_head" or (rule.name == "embed_tokens" and self._tied):
            return {"kind": "normal", "std": LOGIT_STD * self.config.hidden_size**-0.5}
        if rule.name == "embed_tokens":
            return {"kind": "normal", "std": 1.0}
        if kind == "A_log":
            return {"kind": "log_uniform", "low": 0.01, "high": 16.0}
        if kind == "dt_bias" or rule.name.endswith("gdn.norm"):
            return {"kind": "ones"}
        if len(rule.shape) == 1:
            return {"kind": "zeros"}
        return {"kind": "normal", "std": rule.shape[1] ** -0.5}


class Qwen35DenseArch(Qwen35Arch):
    """Qwen3.5 and Qwen3.6 dense text models: a SwiGLU block in each layer."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        super().__init__(parse_config(hf_config))

    def default_token_budget(self, max_num_seqs: int) -> int:
        """2048 tokens per step, whatever the number of sequences."""
        return 2048

    def feed_forward_rules(self, names: Collection[str], name: str, source: str) -> Iterable[ParamRule]:
        """One SwiGLU block."""
        config = self.config
        return swiglu_rules(config.hidden_size, config.intermediate_size, f"{name}mlp.", f"{source}mlp.")

    def build_feed_forward(self, ctx: BuildContext, name: str) -> FeedForward:
        """One SwiGLU block."""
        from vtcore_qwen3_5_dense.model import SwiGLU

        return SwiGLU(ctx, f"{name}mlp.")

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """config.json of a random-weight checkpoint: "tiny", "small" or "bench"."""
        return checkpoint_config(size, vocab_size)

    @classmethod
    def published_config(cls, size: str) -> Mapping[str, Any]:
        """config.json of a released size."""
        return published_config(size)
