"""What steps 1 to 7 of the loader decide, and the functions that decide it: data only, no device.

Does not: order the steps; loader.py does, once, for the engine and for `vtcore check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from vtcore.checkpoint.locate import locate_checkpoint
from vtcore.checkpoint.source import CheckpointDir, open_checkpoint
from vtcore.config.engine_config import EngineConfig, Origin
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.config.plugin_settings import check_settings_class, read_settings
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.config.shown import shown
from vtcore.errors import ConfigError, MemoryPlanError, PluginError, PluginLoadError, VtcoreError
from vtcore.host.gpu import probe_gpus
from vtcore.host.gpu_memory import read_gpu_memory
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot, Whole
from vtcore.interfaces.model_arch import CacheContext, ModelArch
from vtcore.interfaces.registry_entries import ArchEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.kv_cache.available_memory import available_host_bytes
from vtcore.kv_cache.planner import MemoryPlan, PlanLimits, plan_memory
from vtcore.kv_cache.spec_answers import SpecAnswers
from vtcore.registry import PluginRegistry, Registered
from vtcore.scheduling.chunk_end import INVARIANT_CHUNK
from vtcore.scheduling.policy_version import newer_members

if TYPE_CHECKING:
    from vtcore.checkpoint.format import CheckpointFormat
    from vtcore.execution.gpu_memory import StepMemory
    from vtcore.internals import Internals


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
    # Here, so that policies and options can be planned where torch is not.
    from vtcore.checkpoint.dummy import DummyFormat
    from vtcore.checkpoint.safetensors import SafetensorsFormat

    if only_configs or config.model.load_format == "dummy":
        device = "cpu" if only_configs else config.model.device
        return DummyFormat(arch, config.model.seed, device)
    return SafetensorsFormat(checkpoint.directory)


def resolve_for_arch(
    options: UserOptions,
    sources: Mapping[str, Origin],
    environment: Environment,
    name: str,
    arch: ModelArch,
    hf_config: Mapping[str, Any],
    registry: PluginRegistry,
    internals: Internals,
    only_plan: bool = False,
) -> EngineConfig:
    """Decide every setting for one arch.

    Args:
        only_plan: Whether nothing will run; a GPU that the user names need not be here then.

    Raises:
        PluginError: A cache spec of the arch has no owner, or no lifetime.
        VtcoreError: As `resolve_config`.
    """
    # Lifetimes do not depend on the block size or dtype, which are not known yet.
    ctx = CacheContext(block_size=1, dtype="float32")
    probe = arch.cache_specs(ctx)
    lifetimes = [type(SpecAnswers(spec, _owner_of(registry, spec)).lifetime) for spec in probe]
    drafters = () if internals.drafter is None else internals.drafter.cache_specs(ctx)
    inner = hf_config.get("text_config")
    text_config = inner if isinstance(inner, Mapping) else hf_config
    places = ((config, key) for config in (text_config, hf_config) for key in ("dtype", "torch_dtype"))
    stored_dtype = next((config[key] for config, key in places if config.get(key) is not None), None)
    facts = ArchFacts(
        name=name,
        vocab_size=arch.dims.vocab_size,
        max_position_embeddings=arch.dims.max_position_embeddings,
        is_recurrent=Slot in lifetimes,
        is_bounded=Whole not in {*lifetimes, *(type(spec.lifetime) for spec in drafters)},
        default_token_budget=arch.default_token_budget,
        checkpoint_dtype=stored_dtype,
    )
    is_cpu = options.device == "cpu"
    gpu = None if is_cpu else probe_gpus(hidden=environment.gpus_hidden)
    return resolve_config(options, facts, environment, sources=sources, gpu=gpu, only_plan=only_plan)


def make_policy(registry: PluginRegistry, name: str, policy_config: Mapping[str, Any]) -> SchedulerPolicy:
    """Import and make the scheduler policy.

    Args:
        policy_config: The policy's own settings, as the user wrote them.

    Raises:
        PluginError: It cannot be imported, or making it fails, or what it declares breaks its contract, or is
            newer than the version that its plugin declares.
        ConfigError: No plugin offers it, or it refuses its settings; all that is wrong with them at once.
    """
    registered = registry.policy(name)
    policy_class: type[SchedulerPolicy] = registry.load(registered)
    owner = f"scheduler policy {registered}, plugin {registered.plugin!r}"
    for info in registry.plugins:
        is_owner = (info.distribution, info.plugin) == (registered.distribution, registered.plugin)
        if is_owner and (wrong := newer_members(policy_class, info.api["scheduler_policies"])):
            raise PluginLoadError(f"{owner}, {wrong}")
    for attribute in ("options_class", "args_class"):
        if getattr(policy_class, attribute) is not None:
            check_settings_class(getattr(policy_class, attribute), f"{owner}: {attribute}")
    options_class = policy_class.options_class
    if options_class is None and policy_config:
        raise ConfigError(
            f"$.policy_config: scheduler policy {registered} has no settings of its own, "
            f"{shown(dict(policy_config))} is given; leave it out, or choose another scheduling_policy"
        )
    options = options_class and read_settings(policy_config, options_class, "$.policy_config")
    try:
        # Without options it is made as in version 0.1: such a policy's own __init__ takes nothing.
        policy = policy_class() if options_class is None else policy_class(options)
        if type(policy.window) is not int or type(policy.static) is not bool:
            raise TypeError(f"window is {policy.window!r} and static {policy.static!r}, not int and bool")
        if type(policy.needs_prefix_caching) is not bool:
            raise TypeError(f"needs_prefix_caching is {policy.needs_prefix_caching!r}, not a bool")
    except VtcoreError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginLoadError(f"{owner}, cannot be made: {type(error).__name__}: {error}") from error
    return policy


def collect_cache_specs(
    registry: PluginRegistry, arch: ModelArch, config: EngineConfig, internals: Internals
) -> tuple[KVCacheSpec, ...]:
    """Cache groups of the arch and the drafter, each checked against the owner of its kind.

    Raises:
        PluginError: A spec's class is not the one registered for its kind, or it answers wrong data.
        ConfigError: Speculation is on and a spec declares no rollback.
    """
    ctx = CacheContext(block_size=config.cache.block_size, dtype=config.model.dtype)
    specs = tuple(arch.cache_specs(ctx))
    if internals.drafter is not None:
        specs += tuple(internals.drafter.cache_specs(ctx))
    for spec in specs:
        owner = _owner_of(registry, spec)
        if internals.k_max and not SpecAnswers(spec, owner).rollback:
            raise ConfigError(
                f"speculation is not served with KV-cache spec {owner} of arch {config.model.arch!r}: "
                f"it declares no rollback; switch the drafter off"
            )
    return specs


def _owner_of(registry: PluginRegistry, spec: KVCacheSpec) -> str:
    """A spec's kind and distribution.

    Raises:
        PluginError: Nobody registered the kind, or registered another class for it.
    """
    if not isinstance(kind := getattr(spec, "kind", None), str):
        raise PluginError(f"KV-cache spec {type(spec).__qualname__} has kind {kind!r}, not a text")
    owner = registry.kv_cache_spec(kind)
    if registry.load(owner) is not type(spec):
        raise PluginError(f"{type(spec).__qualname__} calls itself kind {spec.kind!r}, which {owner} owns")
    return str(owner)


def check_prefix_caching(config: EngineConfig, plan: MemoryPlan) -> None:
    """Whether a prefix can ever be found, where the user asked for that.

    Args:
        config: By default caching is on where it may be, which asks for nothing.

    Raises:
        ConfigError: Not even the longest prompt is longer than one interval of the grid.
    """
    origin = config.origins["cache.enable_prefix_caching"]
    longest = plan.max_model_len - 1
    if not config.cache.enable_prefix_caching or origin.source == "arch" or plan.grid < longest:
        return
    # States alone may be too far apart, whatever the size of a block.
    smaller = "lower block_size, " if evolve(plan, block_size=1).grid < longest else ""
    raise ConfigError(
        f"$.enable_prefix_caching: true could never hit: prefixes are kept every {plan.grid} tokens "
        f"(block_size {plan.block_size}), and a prompt has at most {longest} (max_model_len "
        f"{plan.max_model_len}); {smaller}raise max_model_len to {plan.grid + 2}, or go without "
        f"enable_prefix_caching"
    )


def available_bytes(config: EngineConfig) -> int | None:
    """Memory that this engine may use, weights included, before any of it is loaded.

    Returns:
        Of the host, or of the GPU: its share by gpu_memory_utilization, less what is in use now. None where
        nobody says, as without the GPU.
    """
    if not config.model.is_gpu:
        return available_host_bytes()
    memory = read_gpu_memory(config.model.device)
    if memory is None:
        return None
    share = config.cache.gpu_memory_utilization or 1.0
    return max(0, int(memory.total_bytes * share) - (memory.total_bytes - memory.free_bytes))


def plan_for_show(specs: Sequence[KVCacheSpec], limits: PlanLimits) -> MemoryPlan:
    """The plan that was asked for, whatever memory there is.

    Where the memory sizes the pools, and leaves too little, it is that of one request of the longest length.

    Raises:
        VtcoreError: As `plan_memory`, but for memory that does not suffice.
    """
    limits = evolve(limits, available_bytes=None)
    try:
        return plan_memory(specs, limits)
    except MemoryPlanError:
        if not limits.budget_from or limits.num_blocks is not None:
            raise
    one = -(-limits.max_model_len // limits.block_size)
    return plan_memory(specs, evolve(limits, num_blocks=one, kv_cache_memory_bytes=None))


def plan_limits(
    config: EngineConfig,
    internals: Internals,
    weight_bytes: int,
    available_bytes: int | None,
    registry: PluginRegistry,
    *,
    step_memory: StepMemory | None = None,
) -> PlanLimits:
    """What sizes the pools.

    Where neither num_blocks nor kv_cache_memory_bytes does, as on a GPU, it is what weights and steps leave
    of the available memory; where that is unknown, as without the GPU, one request of the longest length.

    Args:
        weight_bytes: That are not in memory yet.
        available_bytes: As `available_bytes` says, or None for no limit; without effect with `step_memory`.
        step_memory: Measured on the GPU, weights loaded.
    """
    cache = config.cache
    share = f"gpu_memory_utilization={cache.gpu_memory_utilization} of {config.model.device}"
    if step_memory is not None:
        available_bytes = max(0, step_memory.cache_bytes(cache.gpu_memory_utilization or 1.0))
    num_blocks, num_bytes, budget_from = cache.num_blocks, cache.kv_cache_memory_bytes, ""
    if num_blocks is None and num_bytes is None:
        budget_from = share
        if available_bytes is None:
            num_blocks = -(-config.model.max_model_len // cache.block_size)
        else:
            num_bytes = max(0, available_bytes - weight_bytes)
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    return PlanLimits(
        block_size=config.cache.block_size,
        num_blocks=num_blocks,
        kv_cache_memory_bytes=num_bytes,
        budget_from=budget_from,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_model_len_pinned=config.model.max_model_len_pinned,
        max_query=budget * internals.frames(config.scheduler.async_scheduling),
        lookahead=0 if internals.drafter is None else internals.drafter.lookahead,
        k_max=internals.k_max,
        num_checkpoints=config.cache.num_state_checkpoints,
        chunk=internals.chunk or (INVARIANT_CHUNK if config.model.batch_invariant else 1),
        available_bytes=available_bytes,
        available_from="" if step_memory is None else share,
        weight_bytes=weight_bytes,
        spec_owners={kind: str(owner) for kind, owner in registry.kv_cache_specs.items()},
    )
