"""From options to a running core: the lifetime order, written once.

Does not: see text (engine/engine.py does) or run a step. Numbers are those of docs/architecture.md, Lifetime;
missing ones belong to parts that do not exist yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, frozen

from vtcore.checkpoint.format import CheckpointFormat, InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, estimate_parameter_bytes, load_parameters
from vtcore.checkpoint.source import CheckpointDir, naming_config
from vtcore.config.engine_config import EngineConfig, Origin
from vtcore.config.env import Environment, read_environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import EngineCore
from vtcore.errors import ConfigError
from vtcore.execution.executor import Executor, InlineExecutor
from vtcore.execution.model_runner import ModelRunner
from vtcore.interfaces.model_arch import BuildContext, Model, ModelArch
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.available_memory import available_host_bytes
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import MemoryPlan, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.layers.dtypes import DTYPES, acc_dtype
from vtcore.layers.linear import SingleRank, build_grouped_linear, build_linear
from vtcore.lifetime import Lifetime, LifetimeEvent
from vtcore.ops.dispatch import resolve_ops
from vtcore.planning import (
    PlannedCore,
    collect_cache_specs,
    find_checkpoint,
    make_policy,
    open_weights,
    plan_limits,
    resolve_for_arch,
)
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
        registered, arch = registry.build_arch(hf_config)

    with lifetime.step(4, "options"):
        with naming_config(directory):
            config = resolve_for_arch(
                given.options, given.sources, environment, registered.entry.name, arch, hf_config
            )
        policy = make_policy(registry, config.scheduler.scheduling_policy)
        if given.on_config is not None:
            given.on_config(config, checkpoint)

    with lifetime.step(6, "pools"):
        specs = collect_cache_specs(registry, arch, config, internals)

    with lifetime.step(7, "estimate", close=lambda: stored.close()):
        if checkpoint is None:
            stored: CheckpointFormat = InMemoryFormat(given.tensors or {})
        else:
            stored = open_weights(checkpoint, arch, config, only_plan)
        dtype = DTYPES[config.model.dtype]
        weight_bytes = estimate_parameter_bytes(arch, stored.names().keys(), dtype)
        limits = plan_limits(config, internals, weight_bytes, available_host_bytes())
        plan = plan_memory(specs, evolve(limits, available_bytes=None) if only_plan else limits)
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
    arch, config, plan = planned.arch, planned.config, planned.plan

    with lifetime.step(8, "weights"):
        dtype = DTYPES[config.model.dtype]
        parameters = load_parameters(arch, planned.stored, dtype, config.model.device)
        planned.stored.close()

    with lifetime.step(11, "caches"):
        # Weights are in memory now, so only the caches still have to fit.
        plan_memory(planned.specs, plan_limits(config, internals, 0, available_host_bytes()))
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
        core = _build_core(config, plan, planned.policy, internals.make_executor(runner), internals)
    return LoadedCore(
        planned.registry,
        planned.checkpoint,
        planned.hf_config,
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
            grouped_linear=lambda name: build_grouped_linear(*parameters.hand_over_groups(name)),
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
