"""What steps 1 to 7 of the loader decide, and the functions that decide it: data only, no device.

Does not: order the steps; loader.py does, once, for the engine and for `vtcore check`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from vtcore.checkpoint.dummy import DummyFormat
from vtcore.checkpoint.format import CheckpointFormat
from vtcore.checkpoint.locate import locate_checkpoint
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.source import CheckpointDir, open_checkpoint
from vtcore.config.engine_config import EngineConfig, Origin
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.errors import ConfigError, PluginError, PluginLoadError
from vtcore.host.gpu import probe_gpus
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot
from vtcore.interfaces.model_arch import CacheContext, ModelArch
from vtcore.interfaces.registry_entries import ArchEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.kv_cache.planner import MemoryPlan, PlanLimits
from vtcore.registry import PluginRegistry, Registered

if TYPE_CHECKING:
    from vtcore.loader import Internals

_log = logging.getLogger(__name__)


@frozen(kw_only=True)
class PlannedCore:
    """A core before any weight is read.

    Args:
        checkpoint: None for tensors in memory.
        hf_config: config.json, outer form.
        registered: Who serves the arch.
        specs: Cache groups of the arch, and of the drafter if there is one.
        stored: Where weights will come from.
        limits: What the plan was made from.
        plan: Pools and bytes, weights estimated.
    """

    registry: PluginRegistry
    checkpoint: CheckpointDir | None
    hf_config: Mapping[str, Any]
    registered: Registered[ArchEntry]
    arch: ModelArch
    config: EngineConfig
    policy: SchedulerPolicy
    specs: tuple[KVCacheSpec, ...]
    stored: CheckpointFormat
    limits: PlanLimits
    plan: MemoryPlan


def find_checkpoint(options: UserOptions, registry: PluginRegistry, only_configs: bool) -> CheckpointDir:
    """Find and open the checkpoint that `model` names.

    Args:
        only_configs: Weights need not be there; dummy ones never do.

    Raises:
        ConfigError: No model is given.
        CheckpointError, HostError: As `locate_checkpoint` and `open_checkpoint`.
    """
    if options.model is None:
        raise ConfigError("$.model: no model is given; name a directory, a checkpoint source or a Hub id")
    only_configs = only_configs or options.load_format == "dummy"
    directory = locate_checkpoint(
        options.model,
        registry,
        revision=options.revision,
        download_dir=options.download_dir,
        only_configs=only_configs,
    )
    return open_checkpoint(directory, needs_weights=not only_configs)


def open_weights(
    checkpoint: CheckpointDir, arch: ModelArch, config: EngineConfig, only_configs: bool
) -> CheckpointFormat:
    """The format that weights are read from; without weights, the one that knows their shapes."""
    if only_configs or config.model.load_format == "dummy":
        return DummyFormat(arch, config.model.seed)
    return SafetensorsFormat(checkpoint.directory)


def resolve_for_arch(
    options: UserOptions,
    sources: Mapping[str, Origin],
    environment: Environment,
    name: str,
    arch: ModelArch,
    hf_config: Mapping[str, Any],
) -> EngineConfig:
    """Decide every setting for one arch; raises as `resolve_config`."""
    # Lifetimes do not depend on the block size or dtype, which are not known yet.
    probe = arch.cache_specs(CacheContext(block_size=1, dtype="float32"))
    inner = hf_config.get("text_config")
    text_config = inner if isinstance(inner, Mapping) else hf_config
    places = ((config, key) for config in (text_config, hf_config) for key in ("dtype", "torch_dtype"))
    stored_dtype = next((config[key] for config, key in places if config.get(key) is not None), None)
    facts = ArchFacts(
        name=name,
        vocab_size=arch.dims.vocab_size,
        max_position_embeddings=arch.dims.max_position_embeddings,
        is_recurrent=any(isinstance(spec.lifetime, Slot) for spec in probe),
        default_token_budget=arch.default_token_budget,
        checkpoint_dtype=stored_dtype,
    )
    is_cpu = options.device == "cpu"
    gpu = None if is_cpu else probe_gpus(hidden=environment.gpus_hidden)
    config = resolve_config(options, facts, environment, sources=sources, gpu=gpu)
    if gpu is not None and gpu.names and options.device in (None, "auto") and config.model.device == "cpu":
        # A slow start must not look like the best this machine can do.
        _log.warning("device cpu: %s", config.origins["model.device"].note)
    return config


def make_policy(registry: PluginRegistry, name: str) -> SchedulerPolicy:
    """Import and make the scheduler policy.

    Raises:
        PluginError: It cannot be imported, or making it fails.
        ConfigError: No plugin offers it.
    """
    registered = registry.policy(name)
    try:
        policy: SchedulerPolicy = registry.load(registered)()
        if type(policy.window) is not int or type(policy.static) is not bool:
            raise TypeError(f"window is {policy.window!r} and static {policy.static!r}, not int and bool")
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"scheduler policy {registered}, plugin {registered.plugin!r}, cannot be made: "
            f"{type(error).__name__}: {error}"
        ) from error
    return policy


def collect_cache_specs(
    registry: PluginRegistry, arch: ModelArch, config: EngineConfig, internals: Internals
) -> tuple[KVCacheSpec, ...]:
    """Cache groups of the arch and the drafter, each checked against the owner of its kind.

    Raises:
        PluginError: A spec's class is not the one registered for its kind.
        ConfigError: Speculation is on and a spec declares no rollback.
    """
    ctx = CacheContext(block_size=config.cache.block_size, dtype=config.model.dtype)
    specs = tuple(arch.cache_specs(ctx))
    if internals.drafter is not None:
        specs += tuple(internals.drafter.cache_specs(ctx))
    for spec in specs:
        owner = registry.kv_cache_spec(spec.kind)
        if registry.load(owner) is not type(spec):
            raise PluginError(
                f"{type(spec).__qualname__} calls itself kind {spec.kind!r}, which {owner} owns"
            )
        if internals.k_max and not spec.rollback:
            raise ConfigError(
                f"speculation is not served with KV-cache spec {spec.kind!r} of arch {config.model.arch!r}: "
                f"it declares no rollback; switch the drafter off"
            )
    return specs


def plan_limits(
    config: EngineConfig, internals: Internals, weight_bytes: int, available_bytes: int | None
) -> PlanLimits:
    """What sizes the pools."""
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    return PlanLimits(
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        kv_cache_memory_bytes=config.cache.kv_cache_memory_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_model_len_pinned=config.model.max_model_len_pinned,
        max_query=budget * internals.depth,
        lookahead=0 if internals.drafter is None else internals.drafter.lookahead,
        k_max=internals.k_max,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
    )
