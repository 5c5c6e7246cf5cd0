"""What a GPU needs before it serves: kernels compiled, a step measured, graphs captured.

Does not: order these; loader.py does.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence

import torch
from attrs import evolve

from vtcore.checkpoint.parameters import meta_parameters
from vtcore.config.engine_config import EngineConfig
from vtcore.errors import EngineError, MemoryPlanError
from vtcore.execution.gpu_memory import measure_step_memory
from vtcore.execution.model_runner import ModelRunner
from vtcore.execution.step_graphs import CaptureError, batch_buckets
from vtcore.execution.warm_up import all_batches, largest_batches, run_null
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.planner import PlanLimits
from vtcore.layers.dtypes import DTYPES
from vtcore.model_build import BuiltModel, build_model
from vtcore.ops.compile_count import serving_begins, start_counting
from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording
from vtcore.planning import PlannedCore, plan_limits

_log = logging.getLogger(__name__)


class RecordError(Exception):
    """A model cannot be run without data, so its kernels cannot be listed before it serves."""


def record_launches(planned: PlannedCore, internals: Internals | None = None) -> list[Launch]:
    """Every kernel launch that serving can need, found by running each kind of step on torch's meta device.

    Args:
        planned: Its config is for a GPU; no weights are read.

    Raises:
        RecordError: Some op reads a tensor's values on the host.
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
            try:
                run_null(runner, batch)
            except (EngineError, RuntimeError, NotImplementedError) as error:
                raise RecordError(
                    f"the kernels of {config.model.arch} cannot be listed, for some op reads values on the "
                    f"host: {error}; change that op, or let the engine compile as it goes"
                ) from error
    return found


def compile_for_device(planned: PlannedCore, internals: Internals) -> None:
    """Compile what is not in the kernel cache yet, before anything is measured or captured.

    Where kernels cannot be listed, a warning says so, and each is compiled when a step first launches it.
    """
    began = time.monotonic()
    start_counting()
    try:
        launches = record_launches(planned, internals)
    except RecordError as error:
        _log.warning("%s", error)
        return
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
    try:
        memory = measure_step_memory(
            built.runner,
            planned.plan,
            batches,
            internals.k_max,
            built.device,
            has_graphs=not config.model.enforce_eager,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(
            f"no step fits beside the weights on {built.device}: {_free(built.device)}; lower "
            f"max_num_batched_tokens, now {budget}, or max_num_seqs, now {config.scheduler.max_num_seqs}, or "
            f"end what else holds its memory"
        ) from error
    _log.info(
        "memory: %.1f of %.1f GiB are free beside the weights; a step takes %.2f, graphs up to %.2f; "
        "measured in %.1f s",
        memory.free_bytes / 2**30,
        memory.total_bytes / 2**30,
        memory.peak_bytes / 2**30,
        memory.graph_bytes / 2**30,
        time.monotonic() - began,
    )
    return plan_limits(config, internals, 0, None, planned.registry, step_memory=memory)


def warm_up(runner: ModelRunner, config: EngineConfig, internals: Internals, max_model_len: int) -> None:
    """Run each kind of step once and capture the graphs; afterwards nothing is compiled any more.

    A model that cannot be captured runs without graphs, and a warning says so.

    Raises:
        MemoryPlanError: Memory ran out.
    """
    try:
        _warm_up(runner, config, internals, max_model_len)
    except torch.OutOfMemoryError as error:
        device = config.model.device
        raise MemoryPlanError(
            f"memory ran out in the warm-up on {device}: {_free(device)}; lower gpu_memory_utilization, "
            f"num_blocks or max_num_seqs{'' if config.model.enforce_eager else ', or set enforce_eager'}"
        ) from error
    # Whatever exists now lives as long as the engine: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    serving_begins()


def _warm_up(runner: ModelRunner, config: EngineConfig, internals: Internals, max_model_len: int) -> None:
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


def _free(device: str) -> str:
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"


def _sizes(config: EngineConfig, internals: Internals) -> tuple[Sequence[int], Sequence[int], int, int]:
    max_num_seqs = config.scheduler.max_num_seqs
    budget = internals.step_budget or config.scheduler.max_num_batched_tokens
    return batch_buckets(max_num_seqs), internals.captured_k, max_num_seqs, budget
