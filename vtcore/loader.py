"""From options to a running core: the lifetime order, written once.

Does not: see text (engine/engine.py does) or run a step. Numbers are those of docs/architecture.md, Lifetime;
missing ones belong to parts that do not exist yet.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define, evolve, frozen

from vtcore.checked_arch import CheckedArch, naming_arch
from vtcore.checkpoint.format import CheckpointFormat, InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, estimate_parameter_bytes, load_parameters
from vtcore.checkpoint.source import CheckpointDir, naming_config
from vtcore.config.engine_config import EngineConfig, Origin
from vtcore.config.env import Environment, read_environment
from vtcore.config.options import UserOptions
from vtcore.engine.build import build_core
from vtcore.engine.core import EngineCore
from vtcore.execution.executor import Executor
from vtcore.execution.model_runner import ModelRunner
from vtcore.host.preflight import prepare_gpu_start
from vtcore.interfaces.model_arch import Model, ModelArch
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.interfaces.step import LayerCache
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.available_memory import available_host_bytes
from vtcore.kv_cache.planner import MemoryPlan, plan_memory
from vtcore.layers.dtypes import DTYPES
from vtcore.lifetime import Lifetime, LifetimeEvent
from vtcore.model_build import build_model
from vtcore.ops.dispatch import check_overrides
from vtcore.planning import (
    PlannedCore,
    available_bytes,
    check_prefix_caching,
    collect_cache_specs,
    find_checkpoint,
    make_policy,
    open_weights,
    plan_for_show,
    plan_limits,
    resolve_for_arch,
)
from vtcore.plugins import registry_for
from vtcore.registry import PluginRegistry


@define(eq=False, slots=False)
class LoadedCore:
    """A core and everything below it; `close` takes it down in reverse.

    Args:
        checkpoint: None for tensors in memory.
        policy: The scheduler's; its guard calls it, the front end only asks what its requests may bring.
        caches: Layer name -> its tensors, in the plan's pools.
    """

    registry: PluginRegistry
    checkpoint: CheckpointDir | None
    hf_config: Mapping[str, Any]
    arch: ModelArch
    config: EngineConfig
    policy: SchedulerPolicy
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
            if self.config.model.is_gpu:
                # torch keeps what is freed for itself, and the next engine in this process needs it.
                gc.collect()
                torch.cuda.empty_cache()


def load_core(
    options: UserOptions,
    *,
    sources: Mapping[str, Origin] | None = None,
    hf_config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    internals: Internals | None = None,
    on_config: Callable[[EngineConfig, CheckpointDir | None], object] | None = None,
    on_event: Callable[[LifetimeEvent], None] | None = None,
) -> LoadedCore:
    """Build a core from a checkpoint, or from a config and tensors in memory.

    Args:
        options: The user's. `model` says which checkpoint; with `hf_config` it is not read.
        sources: Option -> where it was given (`GivenOptions.sources`); None says "user" of all.
        hf_config, tensors: config.json as parsed and tensors by their checkpoint names; both or none.
        registry: Plugins; None discovers them.
        environment: None reads the process's own.
        on_config: Told of the settings and the checkpoint (None for tensors in memory) as soon as they are
            known, before a weight is read; an exception it raises stops the build.
        on_event: Told of every step that begins, is built or closed.

    Raises:
        VtcoreError: Any step refuses; what was built before it has been closed.
    """
    lifetime = Lifetime(on_event)
    inputs = _Inputs(options, sources or {}, hf_config, tensors, registry, environment, on_config)
    internals = internals or Internals()
    try:
        planned = _plan(lifetime, inputs, internals, only_plan=False)
        return _build(lifetime, planned, internals)
    except BaseException:
        lifetime.close()
        raise


def plan_core(
    options: UserOptions,
    *,
    sources: Mapping[str, Origin] | None = None,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    on_config: Callable[[EngineConfig, CheckpointDir | None], object] | None = None,
) -> PlannedCore:
    """Run steps 1 to 7 only: no weights are needed, no memory has to suffice.

    Args:
        options, sources, registry, environment, on_config: As for `load_core`.

    Raises:
        VtcoreError: A step refuses.
    """
    lifetime = Lifetime()
    inputs = _Inputs(options, sources or {}, None, None, registry, environment, on_config)
    try:
        return _plan(lifetime, inputs, Internals(), only_plan=True)
    finally:
        lifetime.close()


@frozen
class _Inputs:
    """The arguments of `load_core` that steps 1 to 7 use."""

    options: UserOptions
    sources: Mapping[str, Origin]
    hf_config: Mapping[str, Any] | None
    tensors: Mapping[str, torch.Tensor] | None
    registry: PluginRegistry | None
    environment: Environment | None
    on_config: Callable[[EngineConfig, CheckpointDir | None], object] | None


def _plan(lifetime: Lifetime, given: _Inputs, internals: Internals, only_plan: bool) -> PlannedCore:
    with lifetime.step(1, "plugins"):
        environment = read_environment() if given.environment is None else given.environment
        registry = given.registry or registry_for(given.options, environment)

    with lifetime.step(2, "checkpoint"):
        hf_config, checkpoint = given.hf_config, None
        if hf_config is None:
            checkpoint = find_checkpoint(given.options, registry, only_plan)
            hf_config = checkpoint.hf_config
        directory = None if checkpoint is None else checkpoint.directory

    with lifetime.step(3, "arch"), naming_config(directory):
        registered, own_arch = registry.build_arch(hf_config)
        arch = CheckedArch(own_arch, str(registered))

    with lifetime.step(4, "options"):
        with naming_config(directory):
            config = resolve_for_arch(
                given.options,
                given.sources,
                environment,
                registered.entry.name,
                arch,
                hf_config,
                registry,
                internals,
                only_plan,
            )
            check_overrides(
                config.model.device.partition(":")[0],
                config.model.op_overrides,
                arch.ops(),
                batch_invariant=config.model.batch_invariant,
                imports=not only_plan,
            )
        policy = make_policy(registry, config.scheduler.scheduling_policy, config.scheduler.policy_config)
        if given.on_config is not None:
            given.on_config(config, checkpoint)
        if config.model.is_gpu and not only_plan:
            prepare_gpu_start(config.model.device, environment.cache_dir)

    with lifetime.step(6, "pools"):
        specs = collect_cache_specs(registry, arch, config, internals)

    with lifetime.step(7, "estimate", close=lambda: stored.close()):
        with naming_arch(str(registered)):
            if checkpoint is None:
                stored: CheckpointFormat = InMemoryFormat(given.tensors or {})
            else:
                stored = open_weights(checkpoint, arch, config, only_plan)
            dtype = DTYPES[config.model.dtype]
            weight_bytes = estimate_parameter_bytes(arch, stored.names().keys(), dtype)
        limits = plan_limits(config, internals, weight_bytes, available_bytes(config), registry)
        plan = plan_for_show(specs, limits) if only_plan else plan_memory(specs, limits)
        if not internals.may_never_hit:
            check_prefix_caching(config, plan)
        config = config.fitted(plan.max_model_len)

    return PlannedCore(
        registry=registry,
        checkpoint=checkpoint,
        hf_config=hf_config,
        registered=registered,
        arch=arch,
        config=config,
        policy=policy,
        specs=specs,
        stored=stored,
        limits=limits,
        plan=plan,
    )


def _build(lifetime: Lifetime, planned: PlannedCore, internals: Internals) -> LoadedCore:
    arch, config, device = planned.arch, planned.config, planned.config.model.device
    owner, on_gpu = str(planned.registered), planned.config.model.is_gpu

    with lifetime.step(8, "weights"), naming_arch(owner):
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)
        parameters = load_parameters(arch, planned.stored, DTYPES[config.model.dtype], device)
        planned.stored.close()

    with lifetime.step(10, "model"):
        if on_gpu:
            # Here, because a CPU needs nothing of it.
            from vtcore.gpu_start import compile_for_device, measured_limits, warm_up

            compile_for_device(planned, internals)
        built = build_model(planned, parameters, device, internals)
        if on_gpu:
            limits = measured_limits(planned, internals, built)
        else:
            limits = plan_limits(config, internals, 0, available_host_bytes(), planned.registry)

    with lifetime.step(11, "caches"):
        # Weights are in memory now, so only the caches still have to fit.
        plan = evolve(plan_memory(planned.specs, limits), weight_bytes=parameters.num_bytes)
        config = config.fitted(plan.max_model_len)
        caches = allocate_caches(plan, internals.k_max, device)

    with lifetime.step(13, "runner"), naming_arch(owner):
        runner = built.runner(plan, caches)

    if on_gpu:
        with lifetime.step(14, "warmup", close=gc.unfreeze), naming_arch(owner):
            warm_up(runner, config, internals, plan.max_model_len)

    with lifetime.step(15, "core", close=lambda: _quiesce(core)):
        core = _build_core(config, plan, planned.policy, internals.make_executor(runner), internals)
    return LoadedCore(
        planned.registry,
        planned.checkpoint,
        planned.hf_config,
        arch,
        config,
        planned.policy,
        plan,
        parameters,
        caches.layers,
        built.model,
        runner,
        core,
        lifetime,
    )


def _build_core(
    config: EngineConfig,
    plan: MemoryPlan,
    policy: SchedulerPolicy,
    executor: Executor,
    internals: Internals,
) -> EngineCore:
    drafter = internals.drafter
    return build_core(
        config,
        plan,
        policy,
        executor,
        depth=internals.frames(config.scheduler.async_scheduling),
        step_budget=internals.step_budget,
        captured_k=internals.captured_k,
        choose_k=internals.choose_k,
        lookahead=0 if drafter is None else drafter.lookahead,
        history_always=drafter is not None and drafter.needs_history,
        is_policy_timed=internals.is_policy_timed,
        clock=internals.clock,
        check=internals.check,
    )


def _quiesce(core: EngineCore) -> None:
    """Admit nothing more and commit what is in flight, so that nothing runs while memory goes."""
    core.inbox.clear()
    try:
        core.drain()
    finally:
        core.executor.close()
