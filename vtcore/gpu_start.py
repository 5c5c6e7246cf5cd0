"""What a GPU needs before it serves: kernels compiled, a step measured, graphs captured.

Does not: order these; loader.py does.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence

from attrs import evolve

from vtcore.checkpoint.parameters import meta_parameters
from vtcore.config.engine_config import EngineConfig
from vtcore.execution.gpu_memory import measure_step_memory
from vtcore.execution.model_runner import ModelRunner
from vtcore.execution.step_graphs import CaptureError, batch_buckets
from vtcore.execution.warm_up import all_batches, largest_batches, run_null
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.planner import PlanLimits
from vtcore.layers.dtypes import DTYPES
from vtcore.model_build import BuiltModel, build_model
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording
from vtcore.planning import PlannedCore, plan_limits

_log = logging.getLogger(__name__)


def record_launches(planned: PlannedCore, internals: Internals | None = None) -> list[Launch]:
    """Every kernel launch that serving can need, found by running each kind of step on torch's meta device.

    Args:
        planned: Its config is for a GPU; no weights are read.
    """
    internals = internals or Internals()
    config, plan = planned.config, planned.plan
    parameters = meta_parameters(planned.arch, planned.stored.names().keys(), DTYPES[config.model.dtype])
    pools = tuple(evolve(pool, num_units=1) for pool in plan.pools)
    plan = evolve(plan, pools=pools, num_blocks=0)
    runner = build_model(planned, parameters, "meta", internals).runner(
        plan, allocate_caches(plan, internals.k_max, "meta")
    )
    found: list[Launch] = []
    with recording(found.append):
        for batch in all_batches(*_sizes(config, internals), plan.max_model_len):
            run_null(runner, batch)
    return found


def compile_for_device(planned: PlannedCore, internals: Internals) -> None:
    """Compile what is not in the kernel cache yet, before anything is measured or captured."""
    began = time.monotonic()
    launches = record_launches(planned, internals)
    recorded_s = time.monotonic() - began
    report = compile_launches(launches)
    _log.info(
        "kernels: %d compiled and %d found in %s, in %.1f s after %.1f s of finding out which",
        report.num_built,
        report.num_cached,
        report.directory,
        report.elapsed_s,
        recorded_s,
    )


def measured_limits(planned: PlannedCore, internals: Internals, built: BuiltModel) -> PlanLimits:
    """What sizes the pools, now that weights are on the device and a step's memory is known.

    Raises:
        MemoryPlanError: Not even one step fits, or nothing is left for caches.
    """
    config = planned.config
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    batches = largest_batches(
        config.scheduler.max_num_seqs, budget, planned.plan.max_model_len, internals.k_max
    )
    began = time.monotonic()
    memory = measure_step_memory(
        built.runner,
        planned.plan,
        batches,
        internals.k_max,
        built.device,
        has_graphs=not config.model.enforce_eager,
    )
    _log.info("memory of a step: %s, in %.1f s", memory, time.monotonic() - began)
    return plan_limits(config, internals, 0, None, planned.registry, step_memory=memory)


def warm_up(runner: ModelRunner, config: EngineConfig, internals: Internals, max_model_len: int) -> None:
    """Run each kind of step once and capture the graphs; afterwards nothing is compiled any more."""
    sizes, captured_k, max_num_seqs, budget = _sizes(config, internals)
    for batch in largest_batches(max_num_seqs, budget, max_model_len, internals.k_max):
        run_null(runner, batch)
    if not config.model.enforce_eager:
        try:
            graphs = runner.capture(sizes, captured_k)
        except CaptureError as error:
            _log.warning("steps run without graphs: %s", error)
        else:
            shown = ", ".join(f"{size}" if not k else f"{size}x{1 + k}" for size, k in graphs.keys)
            _log.info(
                "captured graphs for %s rows in %.1f s, %d MiB", shown, graphs.seconds, graphs.num_bytes >> 20
            )
    # Whatever exists now lives as long as the engine: the collector need not look at it again.
    gc.collect()
    gc.freeze()


def _sizes(config: EngineConfig, internals: Internals) -> tuple[Sequence[int], Sequence[int], int, int]:
    max_num_seqs = config.scheduler.max_num_seqs
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    return batch_buckets(max_num_seqs), internals.captured_k, max_num_seqs, budget
