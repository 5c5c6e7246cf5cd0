"""The Mistral architecture as the core sees it.

Does not: read files or allocate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from vtcore.errors import EngineError
from vtcore.interfaces.chat import MessageRules
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.interfaces.model_arch import BuildContext, CacheContext, Model, ModelArch, ModelDims, ParamRule
from vtcore.kv_cache.specs import FullAttentionSpec
from vtcore_mistral.config import parse_config
from vtcore_mistral.sizes import checkpoint_config
from vtcore_mistral.spec import SlidingWindowSpec
from vtcore_mistral.weights import build_rules, is_skipped

LOGIT_STD = 6.0
"""Standard deviation of the logits of random-weight checkpoints."""


class MistralArch(ModelArch):
    """A plain decoder: RMS norms, rotary grouped-query attention, SwiGLU.

    Args:
        hf_config: The parsed config.json.
    """

    message_rules: ClassVar[MessageRules] = MessageRules(
        role_aliases={"developer": "system"},
        merge_system_messages=True,
        arguments_as_mappings=True,
        join_text_parts=True,
        empty_content=True,
    )

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        self.config = parse_config(hf_config)

    @property
    def dims(self) -> ModelDims:
        """The numbers the core needs."""
        return ModelDims(
            vocab_size=self.config.vocab_size,
            hidden_size=self.config.hidden_size,
            num_layers=self.config.num_layers,
            max_position_embeddings=self.config.max_position_embeddings,
        )

    def default_token_budget(self, max_num_seqs: int) -> int:
        """2048 tokens per step, whatever the number of sequences."""
        return 2048

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """One group of all layers: with a window the plugin's own kind, without one the core's."""
        config = self.config
        layers = tuple(f"layers.{index}" for index in range(config.num_layers))
        if config.sliding_window is None:
            return (
                FullAttentionSpec(
                    layers=layers,
                    block_size=ctx.block_size,
                    num_kv_heads=config.num_kv_heads,
                    head_dim=config.head_dim,
                    dtype=ctx.dtype,
                ),
            )
        return (
            SlidingWindowSpec(
                layers=layers,
                block_size=ctx.block_size,
                window=config.sliding_window,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=ctx.dtype,
            ),
        )

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """One naming is known, that of transformers, so the names tell nothing."""
        return tuple(build_rules(self.config))

    def is_skipped(self, name: str) -> bool:
        """Stored rotary frequencies and a stored copy of a tied head."""
        return is_skipped(self.config, name)

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """None: the core's are enough."""
        return {}

    def build(self, ctx: BuildContext) -> Model:
        """Construct the model over parameters that the core has loaded.

        Raises:
            EngineError: The context spans several ranks.
        """
        # Here, because make-checkpoint and `vtcore check` use an arch without building a model.
        from vtcore_mistral.model import MistralModel

        if ctx.parallel.world != 1:
            raise EngineError(f"Mistral models run on one rank, but the context has {ctx.parallel.world}")
        return MistralModel(self.config, ctx)

    def random_init(self, rule: ParamRule) -> Mapping[str, float | str]:
        """Unit-gain projections, norms at identity."""
        head = "embed_tokens" if self.config.tied else "lm_head"
        if len(rule.shape) == 1:
            return {"kind": "ones"}
        if rule.name == head:
            return {"kind": "normal", "std": LOGIT_STD * self.config.hidden_size**-0.5}
        return {"kind": "normal", "std": 1.0 if rule.name == "embed_tokens" else rule.shape[1] ** -0.5}

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """config.json of a random-weight checkpoint: "tiny" or "small"."""
        return checkpoint_config(size, vocab_size)
