"""From options to a running core: the lifetime order, written once.

Does not: see text (engine/engine.py does) or run a step. Numbers are those of docs/architecture.md, Lifetime;
missing ones belong to parts that do not exist yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from vtcore.checkpoint.format import CheckpointFormat, InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, estimate_parameter_bytes, load_parameters
from vtcore.checkpoint.safetensors import SafetensorsFormat
from vtcore.checkpoint.source import CheckpointDir, open_checkpoint
from vtcore.config.engine_config import EngineConfig
from vtcore.config.env import Environment, read_environment
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.engine.core import EngineCore
from vtcore.errors import ConfigError, PluginError, PluginLoadError
from vtcore.execution.executor import Executor, InlineExecutor
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot
from vtcore.interfaces.model_arch import BuildContext, CacheContext, Model, ModelArch
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.available_memory import available_host_bytes
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import MemoryPlan, PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.layers.dtypes import DTYPES, acc_dtype
from vtcore.layers.linear import SingleRank, build_linear
from vtcore.lifetime import Lifetime, LifetimeEvent
from vtcore.ops.dispatch import resolve_ops
from vtcore.plugins import registry_for
from vtcore.registry import PluginRegistry
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.scheduler import Scheduler, SchedulerLimits

if TYPE_CHECKING:
    import torch

    from vtcore.speculation.drafter import Drafter


@frozen(kw_only=True)
class Internals:
    """Switches that have no public option yet; tests turn them.

    Args:
        depth: Frames in flight at most, 1 or 2.
        drafter: Proposes drafts; `captured_k` says how many a step may verify.
        choose_k: Sampled rows -> drafts to propose, one of `captured_k`.
        make_executor: Wraps the runner.
        step_budget: Replaces max_num_batched_tokens, below its floor too.
        policy_time_limit_s: See `PolicyGuard`; None is no limit.
        check: Called after every step of the core.
    """

    depth: int = 1
    drafter: Drafter | None = None
    captured_k: tuple[int, ...] = (0,)
    choose_k: Callable[[int], int] | None = None
    make_executor: Callable[[ModelRunner], Executor] = InlineExecutor
    step_budget: int | None = None
    policy_time_limit_s: float | None = 0.005
    starvation_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    check: Callable[[EngineCore], None] | None = None

    @property
    def k_max(self) -> int:
        """Drafts verified per step at most."""
        return max(self.captured_k)


@define(eq=False, slots=False)
class LoadedCore:
    """A core and everything below it; `close` takes it down in reverse.

    Args:
        checkpoint: None for tensors in memory.
        caches: Layer name -> its tensors, in the plan's pools.
    """

    registry: PluginRegistry
    checkpoint: CheckpointDir | None
    hf_config: Mapping[str, Any]
    arch: ModelArch
    config: EngineConfig
    plan: MemoryPlan
    parameters: LoadedParameters
    caches: Mapping[str, LayerCache]
    model: Model
    runner: ModelRunner
    core: EngineCore
    lifetime: Lifetime

    def close(self) -> None:
        """Quiesce, undo the build in reverse and let go of all memory; idempotent.

        Nothing but `close` may be called afterwards.
        """
        try:
            self.lifetime.close()
        finally:
            for name in ("core", "runner", "model", "caches", "parameters"):
                self.__dict__.pop(name, None)


def load_core(
    options: UserOptions,
    *,
    hf_config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    internals: Internals | None = None,
    on_event: Callable[[LifetimeEvent], None] | None = None,
) -> LoadedCore:
    """Build a core from a checkpoint directory, or from a config and tensors in memory.

    Args:
        options: The user's. `model` is the directory; with `hf_config` it is not read.
        hf_config, tensors: config.json as parsed and tensors by their checkpoint names; both or none.
        registry: Plugins; None discovers them.
        environment: None reads the process's own.
        on_event: Told of every step that begins, is built or closed.

    Raises:
        VtcoreError: Any step refuses; what was built before it has been closed.
    """
    lifetime = Lifetime(on_event)
    try:
        return _build(lifetime, options, hf_config, tensors, registry, environment, internals or Internals())
    except BaseException:
        lifetime.close()
        raise


def _build(
    lifetime: Lifetime,
    options: UserOptions,
    hf_config: Mapping[str, Any] | None,
    tensors: Mapping[str, torch.Tensor] | None,
    registry: PluginRegistry | None,
    environment: Environment | None,
    internals: Internals,
) -> LoadedCore:
    with lifetime.step(1, "plugins"):
        environment = read_environment() if environment is None else environment
        registry = registry_for(options, environment) if registry is None else registry

    with lifetime.step(2, "checkpoint", close=lambda: stored.close()):
        if hf_config is None:
            checkpoint: CheckpointDir | None = open_checkpoint(_model_path(options))
            assert checkpoint is not None
            hf_config = checkpoint.hf_config
            stored: CheckpointFormat = SafetensorsFormat(checkpoint.directory)
        else:
            checkpoint, stored = None, InMemoryFormat(tensors or {})

    with lifetime.step(3, "arch"):
        registered = registry.arch_for(hf_config)
        arch: ModelArch = registry.load(registered)(hf_config)

    with lifetime.step(4, "options"):
        config = _resolve(options, environment, registered.entry.name, arch, hf_config)
        policy = _make_policy(registry, config.scheduler.scheduling_policy)

    with lifetime.step(6, "pools"):
        specs = _cache_specs(registry, arch, config, internals)

    with lifetime.step(7, "estimate"):
        dtype = DTYPES[config.model.dtype]
        estimate = estimate_parameter_bytes(arch, stored.names().keys(), dtype)
        plan = plan_memory(specs, _limits(config, internals, estimate, available_host_bytes()))

    with lifetime.step(8, "weights"):
        parameters = load_parameters(arch, stored, dtype, config.model.device)
        stored.close()

    with lifetime.step(11, "caches"):
        # Weights are in memory now, so only the caches still have to fit.
        plan_memory(specs, _limits(config, internals, 0, available_host_bytes()))
        caches = allocate_caches(plan, internals.k_max, config.model.device)

    with lifetime.step(13, "model"):
        model = _build_model(arch, parameters, config, plan, internals)
        model.bind(caches)
        runner = ModelRunner(
            model,
            plan,
            caches,
            vocab_size=arch.dims.vocab_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            k_max=internals.k_max,
            drafter=internals.drafter,
            device=config.model.device,
        )

    with lifetime.step(15, "core", close=lambda: _quiesce(core)):
        core = _build_core(config, plan, policy, internals.make_executor(runner), internals)
    return LoadedCore(
        registry,
        checkpoint,
        hf_config,
        arch,
        config,
        plan,
        parameters,
        caches,
        model,
        runner,
        core,
        lifetime,
    )


def _model_path(options: UserOptions) -> str:
    if options.model is None:
        raise ConfigError("$.model: no checkpoint directory is given")
    return options.model


def _resolve(
    options: UserOptions,
    environment: Environment,
    name: str,
    arch: ModelArch,
    hf_config: Mapping[str, Any],
) -> EngineConfig:
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
    return resolve_config(options, facts, environment)


def _make_policy(registry: PluginRegistry, name: str) -> SchedulerPolicy:
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


def _cache_specs(
    registry: PluginRegistry, arch: ModelArch, config: EngineConfig, internals: Internals
) -> tuple[KVCacheSpec, ...]:
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


def _limits(
    config: EngineConfig, internals: Internals, weight_bytes: int, available_bytes: int | None
) -> PlanLimits:
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    return PlanLimits(
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_model_len_pinned=config.model.max_model_len_pinned,
        max_query=budget * internals.depth,
        lookahead=0 if internals.drafter is None else internals.drafter.lookahead,
        k_max=internals.k_max,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
    )


def _build_model(
    arch: ModelArch,
    parameters: LoadedParameters,
    config: EngineConfig,
    plan: MemoryPlan,
    internals: Internals,
) -> Model:
    aux_layers = () if internals.drafter is None else internals.drafter.aux_layers
    try:
        arch.validate_layers(aux_layers)
    except ValueError as error:
        raise ConfigError(f"the drafter's {error}") from error
    dtype = DTYPES[config.model.dtype]
    model = arch.build(
        BuildContext(
            dtype=dtype,
            acc_dtype=acc_dtype(dtype),
            device=config.model.device,
            ops=resolve_ops(config.model.device, arch_ops=arch.ops()),
            linear=lambda name: build_linear(*parameters.hand_over(name)),
            param=parameters.param,
            parallel=SingleRank(),
            aux_layers=aux_layers,
            max_position=plan.max_model_len,
        )
    )
    parameters.check_all_used()
    return model


def _build_core(
    config: EngineConfig,
    plan: MemoryPlan,
    policy: SchedulerPolicy,
    executor: Executor,
    internals: Internals,
) -> EngineCore:
    drafter = internals.drafter
    memory = RequestMemory(
        plan,
        config.cache.enable_prefix_caching,
        root_hash(config.cache.prefix_caching_hash_seed),
        0 if drafter is None else drafter.lookahead,
    )
    guard = PolicyGuard(
        policy, internals.clock, memory, internals.policy_time_limit_s, internals.starvation_s
    )
    limits = SchedulerLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=internals.step_budget or config.scheduler.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        captured_k=internals.captured_k,
        history_always=drafter is not None and drafter.needs_history,
    )
    k_max = internals.k_max
    choose_k = internals.choose_k or (lambda num_rows: k_max)
    scheduler = Scheduler(limits, memory, guard, internals.clock, choose_k)
    return EngineCore(scheduler, executor, internals.depth, internals.check)


def _quiesce(core: EngineCore) -> None:
    """Admit nothing more and commit what is in flight, so that nothing runs while memory goes."""
    core.inbox.clear()
    try:
        core.drain()
    finally:
        core.executor.close()
