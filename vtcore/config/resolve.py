"""The one pure function from options, the arch's facts and the environment to an engine's settings.

Does not: touch a device, read a file or the environment, or measure memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from vtcore.config.engine_config import CacheConfig, EngineConfig, ModelConfig, Origin, SchedulerConfig
from vtcore.config.env import Environment
from vtcore.config.options import DTYPES, UserOptions, option_problems
from vtcore.errors import CheckpointError, ConfigError
from vtcore.scheduling.token_budget import resolve_token_budget

DEFAULT_BLOCK_SIZE = 32
"""Tokens per block. Source: vllm.cpp model_loader.h, EngineParams."""
DEFAULT_NUM_BLOCKS = 256
"""Blocks on a CPU. Source: vllm.cpp model_loader.h, EngineParams."""
DEFAULT_MAX_NUM_SEQS = 8
"""Requests at once on a CPU. Source: vllm.cpp model_loader.h, EngineParams."""
DEFAULT_SEED = 0
"""A fixed seed: runs repeat unless asked otherwise. Source: vLLM config/model.py, ModelConfig.seed."""
DEFAULT_POLICY = "fcfs"
"""First come, first served. Source: vllm.cpp model_loader.h, EngineParams."""


@frozen(kw_only=True)
class ArchFacts:
    """What an arch and its checkpoint say before any weight is read.

    Args:
        name: Registry name of the arch.
        vocab_size: Token ids are below it.
        max_position_embeddings: Longest sequence in tokens.
        is_recurrent: Whether any cache group has the lifetime `Slot`.
        default_token_budget: max_num_seqs -> the arch's own token budget per step.
        checkpoint_dtype: As config.json has it, unchecked: "bfloat16", or torch's "torch.bfloat16"; None when
            the checkpoint does not say.
    """

    name: str
    vocab_size: int
    max_position_embeddings: int
    is_recurrent: bool
    default_token_budget: Callable[[int], int]
    checkpoint_dtype: Any = None


_USER = Origin("user")


class _Decisions:
    """Collects values with their origins, and what is wrong with them."""

    def __init__(self) -> None:
        self.origins: dict[str, Origin] = {}
        self.problems: list[str] = []

    def take(self, path: str, given: Any, default: Any, origin: Origin) -> Any:
        """The given value if there is one, else the default."""
        self.origins[path] = origin if given is None else _USER
        return default if given is None else given


def resolve_config(options: UserOptions, facts: ArchFacts, env: Environment) -> EngineConfig:
    """Decide every setting.

    Args:
        options: The user's; None means "decide for me".
        facts: The arch's.
        env: As read once by `read_environment`.

    Returns:
        The settings; `max_model_len` is final only if pinned.

    Raises:
        ConfigError: Every illegal value and every pair that does not go together, at once.
        CheckpointError: The checkpoint's dtype is no name.
    """
    decisions = _Decisions()
    decisions.problems += option_problems(options)
    if decisions.problems:
        raise ConfigError(*decisions.problems)
    scheduler_seqs = decisions.take(
        "scheduler.max_num_seqs", options.max_num_seqs, DEFAULT_MAX_NUM_SEQS, Origin("default")
    )
    model = _resolve_model(options, facts, decisions)
    cache = _resolve_cache(options, facts, env, decisions)
    scheduler = SchedulerConfig(
        max_num_seqs=scheduler_seqs,
        max_num_batched_tokens=_resolve_budget(
            options, facts, scheduler_seqs, model.max_model_len, decisions
        ),
        scheduling_policy=decisions.take(
            "scheduler.scheduling_policy", options.scheduling_policy, DEFAULT_POLICY, Origin("default")
        ),
    )
    files = decisions.take("plugin_files", options.plugin_files, (), Origin("default"))
    owners: Mapping[str, str] = decisions.take("plugin_owners", options.plugin_owners, {}, Origin("default"))
    if decisions.problems:
        raise ConfigError(*decisions.problems)
    return EngineConfig(
        model=model,
        cache=cache,
        scheduler=scheduler,
        plugin_files=files,
        plugin_owners=owners,
        origins=decisions.origins,
    )


def _resolve_model(options: UserOptions, facts: ArchFacts, decisions: _Decisions) -> ModelConfig:
    limit = facts.max_position_embeddings
    if options.max_model_len is not None and options.max_model_len > limit:
        decisions.problems.append(
            f"$.max_model_len: {options.max_model_len} is above max_position_embeddings {limit} of the "
            f"checkpoint; lower it, or leave it out"
        )
    decisions.origins["model.model"] = (
        Origin("default", "tensors in memory") if options.model is None else _USER
    )
    decisions.origins["model.arch"] = Origin("checkpoint")
    max_model_len = decisions.take(
        "model.max_model_len", options.max_model_len, limit, Origin("checkpoint", "max_position_embeddings")
    )
    decisions.origins["model.max_model_len_pinned"] = decisions.origins["model.max_model_len"]
    device = None if options.device == "auto" else options.device
    return ModelConfig(
        model=options.model,
        arch=facts.name,
        dtype=_resolve_dtype(options, facts, decisions),
        device=decisions.take("model.device", device, "cpu", Origin("default")),
        max_model_len=max_model_len,
        max_model_len_pinned=options.max_model_len is not None,
        seed=decisions.take("model.seed", options.seed, DEFAULT_SEED, Origin("default")),
        skip_tokenizer_init=decisions.take(
            "model.skip_tokenizer_init", options.skip_tokenizer_init, False, Origin("default")
        ),
    )


def _resolve_dtype(options: UserOptions, facts: ArchFacts, decisions: _Decisions) -> str:
    """The checkpoint's own dtype if it is served: weights are then used as they are stored."""
    found = facts.checkpoint_dtype
    if found is not None and not isinstance(found, str):
        raise CheckpointError(
            f"config.json: `dtype` is {found!r}, not the name of a dtype; use the config.json that the model "
            f"was published with"
        )
    stored = (found or "").removeprefix("torch.")
    if stored in DTYPES and stored != "auto":
        default, origin = stored, Origin("checkpoint")
    else:
        note = f"the checkpoint says {stored}, which is not served" if stored else "the checkpoint says none"
        default, origin = "float32", Origin("default", note)
    given = None if options.dtype == "auto" else options.dtype
    dtype: str = decisions.take("model.dtype", given, default, origin)
    return dtype


def _resolve_cache(
    options: UserOptions, facts: ArchFacts, env: Environment, decisions: _Decisions
) -> CacheConfig:
    if options.enable_prefix_caching and facts.is_recurrent:
        decisions.problems.append(
            f"$.enable_prefix_caching: true is not served for arch {facts.name!r}, whose recurrent state has "
            f"no checkpoints to restore a prefix from in this version; set it to false or leave it out"
        )
    seed = env.prefix_caching_hash_seed
    decisions.origins["cache.prefix_caching_hash_seed"] = (
        Origin("default") if seed is None else Origin("environment", "VTCORE_PREFIX_CACHING_HASH_SEED")
    )
    kind = "recurrent" if facts.is_recurrent else "a plain decoder"
    return CacheConfig(
        block_size=decisions.take(
            "cache.block_size", options.block_size, DEFAULT_BLOCK_SIZE, Origin("default")
        ),
        num_blocks=decisions.take(
            "cache.num_blocks", options.num_blocks, DEFAULT_NUM_BLOCKS, Origin("default")
        ),
        enable_prefix_caching=decisions.take(
            "cache.enable_prefix_caching",
            options.enable_prefix_caching,
            not facts.is_recurrent,
            Origin("arch", f"{facts.name} is {kind}"),
        ),
        prefix_caching_hash_seed=seed,
    )


def _resolve_budget(
    options: UserOptions,
    facts: ArchFacts,
    max_num_seqs: int,
    max_model_len: int,
    decisions: _Decisions,
) -> int:
    explicit = options.max_num_batched_tokens
    arch_default = facts.default_token_budget(max_num_seqs)
    path = "scheduler.max_num_batched_tokens"
    try:
        budget = resolve_token_budget(explicit, max_num_seqs, max_model_len, arch_default)
    except ConfigError as error:
        decisions.problems += error.problems
        return max_num_seqs
    note = f"of {facts.name}"
    if budget != arch_default:
        note += f" ({arch_default}), fitted to max_num_seqs and max_model_len"
    decisions.take(path, explicit, budget, Origin("arch", note))
    return budget
