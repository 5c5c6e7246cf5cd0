"""How much of a GPU's memory a step needs beside weights and caches: measured, not estimated.

Does not: allocate caches; the measurement runs over throw-away ones that hold null units only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import evolve, frozen

from vtcore.execution.model_runner import ModelRunner
from vtcore.execution.warm_up import run_null
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.kv_cache.allocator import Caches, allocate_caches
from vtcore.kv_cache.planner import MemoryPlan

_GRAPH_SLACK_BYTES = 256 << 20
"""Of graphs beside their tensors: the driver's own records of some thousand nodes, and library workspaces."""


@frozen
class StepMemory:
    """Bytes of a GPU that are in use, or will be while steps run.

    Args:
        total_bytes, free_bytes: Of the device, with weights and nothing else of this engine on it.
        peak_bytes: Of the largest step's temporaries and the runner's buffers.
        graph_bytes: Kept for captured graphs.
    """

    total_bytes: int
    free_bytes: int
    peak_bytes: int
    graph_bytes: int

    def cache_bytes(self, utilization: float) -> int:
        """What is left for caches and tables when the engine uses this share of the device.

        Memory that other processes hold counts as used. May be negative.
        """
        used = self.total_bytes - self.free_bytes
        return int(self.total_bytes * utilization) - used - self.peak_bytes - self.graph_bytes


def measure_step_memory(
    build_runner: Callable[[MemoryPlan, Caches], ModelRunner],
    plan: MemoryPlan,
    batches: Sequence[ScheduledBatch],
    k_max: int,
    device: str,
    has_graphs: bool,
) -> StepMemory:
    """Run the largest steps once.

    Args:
        build_runner: Binds the model to caches and makes a runner over them.
        plan: Its model length and rows hold; its pools are replaced.
        batches: `largest_batches`; the first is the largest that a graph holds.

    Raises:
        torch.OutOfMemoryError: Not even one step fits beside the weights.
    """
    null_pools = tuple(evolve(pool, num_units=1) for pool in plan.pools)
    null_plan = evolve(plan, pools=null_pools, num_blocks=0)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    before = torch.cuda.memory_allocated(device)
    runner = build_runner(null_plan, allocate_caches(null_plan, k_max, device))
    peaks = []
    for batch in batches:
        torch.cuda.reset_peak_memory_stats(device)
        run_null(runner, batch)
        torch.cuda.synchronize(device)
        peaks.append(torch.cuda.max_memory_allocated(device) - before)
    # Blocks of the allocator that are larger than what was asked for, and kernels loaded by the first calls.
    outside = max(0, free - torch.cuda.mem_get_info(device)[0] - max(peaks))
    del runner
    torch.cuda.empty_cache()
    graphs = peaks[0] + _GRAPH_SLACK_BYTES if has_graphs else 0
    return StepMemory(total, free, max(peaks) + outside, graphs)
