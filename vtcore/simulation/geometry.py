"""What is simulated: an engine's settings and pools, of a model's arch or of a plain decoder.

Does not: read weights or use a device. Only an arch's plan imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from vtcore.config.engine_config import EngineConfig, Origin
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.errors import ConfigError
from vtcore.interfaces.kv_cache_spec import KVCacheSpec
from vtcore.kv_cache.planner import MemoryPlan, PlanLimits, plan_memory
from vtcore.kv_cache.specs import FullAttentionSpec
from vtcore.planning import check_prefix_caching
from vtcore.plugins import registry_for
from vtcore.registry import PluginRegistry
from vtcore.scheduling.chunk_end import INVARIANT_CHUNK

PLAIN_VOCAB_SIZE = 2**17
"""Ids of a plain decoder; any number so large that chance never makes prefixes equal."""
PLAIN_TOKEN_BUDGET = 2048
"""Default token budget of a plain decoder. Source: the Qwen3.5 archs' own default."""
_ANY_LENGTH = 2**31 - 1
"""A plain decoder has no longest sequence; the cache says what fits."""


@frozen(kw_only=True)
class DecoderShape:
    """A plain decoder: every layer keeps keys and values of every token. The numbers only turn bytes of cache
    into blocks.

    Source of the defaults: Llama 3.1 8B's config.json.

    Args:
        num_layers, num_kv_heads, head_dim: Each >= 1.
    """

    num_layers: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128


@frozen(kw_only=True)
class Geometry:
    """All that the policies to be compared have in common.

    Args:
        about: One line on what is simulated.
        config: The engine's settings; its policy is not used.
        plan: Pools and their sizes.
        vocab_size: Token ids are below it.
    """

    about: str
    registry: PluginRegistry
    config: EngineConfig
    plan: MemoryPlan
    vocab_size: int


def plan_plain_decoder(
    options: UserOptions,
    sources: Mapping[str, Origin],
    environment: Environment,
    shape: DecoderShape,
    depth: int = 1,
) -> Geometry:
    """Resolve options and size the pools of a plain decoder.

    Args:
        options, sources, environment: As for `load_core`; options of the policy play no part.
        depth: Frames in flight at most.

    Raises:
        VtcoreError: An option is wrong, the cache's size is unknown, or a length does not fit it.
    """
    facts = ArchFacts(
        name="a plain decoder",
        vocab_size=PLAIN_VOCAB_SIZE,
        max_position_embeddings=_ANY_LENGTH,
        is_recurrent=False,
        default_token_budget=lambda max_num_seqs: PLAIN_TOKEN_BUDGET,
    )
    config = resolve_config(_without_policy(options), facts, environment, sources=sources)
    _check_sized(config)
    spec = FullAttentionSpec(
        layers=tuple(map(str, range(shape.num_layers))),
        block_size=config.cache.block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=config.model.dtype,
    )
    limits = PlanLimits(
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        kv_cache_memory_bytes=config.cache.kv_cache_memory_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_model_len_pinned=config.model.max_model_len_pinned,
        max_query=config.scheduler.max_num_batched_tokens * depth,
        chunk=INVARIANT_CHUNK if config.model.batch_invariant else 1,
    )
    about = f"a plain decoder of {shape.num_layers} layers, {shape.num_kv_heads} KV heads of {shape.head_dim}"
    registry = registry_for(options, environment)
    return _geometry(about, registry, config, (spec,), limits, PLAIN_VOCAB_SIZE)


def plan_model(
    options: UserOptions, sources: Mapping[str, Origin], environment: Environment, depth: int = 1
) -> Geometry:
    """As `plan_plain_decoder`, for the model that `options` name; its config.json is enough.

    Raises:
        VtcoreError: As `plan_core`.
    """
    from vtcore.loader import plan_core

    planned = plan_core(_without_policy(options), sources=sources, environment=environment)
    if planned.limits.available_bytes is None:
        _check_sized(planned.config)
    max_query = planned.config.scheduler.max_num_batched_tokens * depth
    limits = evolve(planned.limits, max_query=max_query, available_bytes=None)
    about = f"{planned.config.model.model}, arch {planned.registered}"
    return _geometry(
        about, planned.registry, planned.config, planned.specs, limits, planned.arch.dims.vocab_size
    )


def _check_sized(config: EngineConfig) -> None:
    """Whether the cache's size is known without the memory of a GPU.

    Raises:
        ConfigError: It is not.
    """
    if config.cache.num_blocks is None and config.cache.kv_cache_memory_bytes is None:
        raise ConfigError(
            f"$.device: {config.model.device!r} sizes the cache by its memory, which is unknown here; give "
            f"num_blocks or kv_cache_memory_bytes"
        )


def _without_policy(options: UserOptions) -> UserOptions:
    return evolve(options, scheduling_policy=None, policy_config=None)


def _geometry(
    about: str,
    registry: PluginRegistry,
    config: EngineConfig,
    specs: tuple[KVCacheSpec, ...],
    limits: PlanLimits,
    vocab_size: int,
) -> Geometry:
    plan = plan_memory(specs, limits)
    check_prefix_caching(config, plan)
    return Geometry(
        about=about,
        registry=registry,
        config=config.fitted(plan.max_model_len),
        plan=plan,
        vocab_size=vocab_size,
    )
