"""What a GPU's memory leaves for caches: the arithmetic on invented numbers, the whole on a GPU."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vtcore import gpu_start
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.config.options import UserOptions
from vtcore.errors import MemoryPlanError
from vtcore.execution.gpu_memory import StepMemory, measure_step_memory
from vtcore.execution.warm_up import largest_batches
from vtcore.interfaces.batch import ScheduledBatch
from vtcore.internals import Internals
from vtcore.kv_cache.allocator import Caches
from vtcore.kv_cache.planner import MemoryPlan, plan_memory
from vtcore.loader import LoadedCore, load_core, plan_core
from vtcore.planning import PlannedCore, plan_limits

MIB = 1 << 20
GIB = 1 << 30
SLACK = 256 * MIB
"""Kept for graphs beside their tensors."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


def options(checkpoint: Path, **changes: Any) -> UserOptions:
    own: dict[str, Any] = {
        "model": str(checkpoint),
        "device": "cuda",
        "dtype": "bfloat16",
        "max_model_len": 160,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 192,
    }
    return UserOptions(**own | changes)


Plan = Callable[..., PlannedCore]


@pytest.fixture
def plan(checkpoint: Path) -> Plan:
    """Plans a GPU's engine without one."""
    return lambda **changes: plan_core(options(checkpoint, **changes))


def planned_with(planned: PlannedCore, memory: StepMemory) -> MemoryPlan:
    limits = plan_limits(planned.config, Internals(), 0, None, planned.registry, step_memory=memory)
    return plan_memory(planned.specs, limits)


def num_bytes(plan: MemoryPlan) -> int:
    return plan.cache_bytes + plan.table_bytes


def unit_bytes(plan: MemoryPlan) -> int:
    """Of one more block."""
    return sum(pool.unit_bytes for pool in plan.pools if not pool.is_slot)


@pytest.mark.parametrize(
    ("utilization", "expected"), [(1.0, 830), (0.92, 750), (0.5, 330), (0.17, 0), (0.1, -70), (0.0001, -170)]
)
def test_caches_get_the_share_less_what_is_used_and_what_a_step_and_graphs_need(
    utilization: float, expected: int
) -> None:
    memory = StepMemory(total_bytes=1000, free_bytes=900, peak_bytes=50, graph_bytes=20)
    assert memory.cache_bytes(utilization) == expected


def test_memory_of_other_processes_counts_as_used() -> None:
    alone = StepMemory(140 * GIB, 138 * GIB, 3 * GIB, GIB)
    shared = StepMemory(140 * GIB, 98 * GIB, 3 * GIB, GIB)
    assert alone.cache_bytes(0.5) - shared.cache_bytes(0.5) == 40 * GIB
    assert alone.cache_bytes(0.5) == 64 * GIB


class Device:
    """A GPU's memory as torch tells of it; a runner takes a buffer, and each step its own and gives it back.

    Args:
        before: Bytes that torch holds already.
        outside: Bytes that steps take of the device beside those that torch counts.
    """

    total = 100_000
    buffers = 100

    def __init__(self, before: int, outside: int) -> None:
        self.before, self.outside = before, outside
        self.now = self.peak = before
        self.most = before
        self.has_run = False
        self.resets = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fakes: dict[str, Callable[..., Any]] = {
            "synchronize": lambda device: None,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device: (self.free, self.total),
            "memory_allocated": lambda device: self.now,
            "reset_peak_memory_stats": lambda device: self.reset(),
            "max_memory_allocated": lambda device: self.peak,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    @property
    def free(self) -> int:
        return self.total - self.most - (self.outside if self.has_run else 0)

    def reset(self) -> None:
        self.peak = self.now
        self.resets += 1

    def take(self, count: int) -> None:
        self.now += count
        self.peak = max(self.peak, self.now)
        self.most = max(self.most, self.now)

    def forward(self, batch: ScheduledBatch) -> None:
        """Ten bytes per token of a prefill row, seven per uniform row."""
        self.has_run = True
        count = 7 * len(batch.uniform) + 10 * sum(len(row.ids) for row in batch.prefill)
        self.take(count)
        self.take(-count)

    def sample(self, step: int, is_random: bool, stays: bool = False) -> None:
        """Needs nothing."""


@pytest.mark.parametrize("has_graphs", [True, False])
@pytest.mark.parametrize(("before", "outside"), [(0, 0), (40, 0), (40, 700)])
def test_the_largest_step_is_measured_over_null_units_and_graphs_get_the_largest_they_hold(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, before: int, outside: int, has_graphs: bool
) -> None:
    device = Device(before, outside)
    device.install(monkeypatch)
    seen: list[MemoryPlan] = []

    def build_runner(plan: MemoryPlan, caches: Caches) -> Any:
        seen.append(plan)
        assert all(cache.data.shape[1] == 1 for pool in caches.pools for cache in pool)
        device.take(device.buffers)
        return device

    batches = largest_batches(3, 192, 160, 0)
    memory = measure_step_memory(build_runner, plan().plan, batches, 0, "cpu", has_graphs)
    assert memory.total_bytes == device.total
    assert memory.free_bytes == device.total - before
    assert memory.peak_bytes == device.buffers + 10 * 192 + outside
    assert memory.graph_bytes == (device.buffers + 7 * 3 + SLACK if has_graphs else 0)
    assert device.resets == 3
    [null_plan] = seen
    assert [pool.num_units for pool in null_plan.pools] == [1, 1]
    assert null_plan.num_blocks == 0


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_limits_come_from_the_measured_step(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, enforce_eager: bool
) -> None:
    asked: list[tuple[Any, ...]] = []
    memory = StepMemory(GIB, GIB - 5 * MIB, 3 * MIB, 2 * MIB)

    def measure(*args: Any, has_graphs: bool) -> StepMemory:
        asked.append((*args, has_graphs))
        return memory

    monkeypatch.setattr(gpu_start, "measure_step_memory", measure)
    planned = plan(enforce_eager=enforce_eager)
    built: Any = SimpleNamespace(runner=object(), device="cuda:0")
    limits = gpu_start.measured_limits(planned, Internals(), built)
    batches = largest_batches(3, 192, 160, 0)
    assert asked == [(built.runner, planned.plan, batches, 0, "cuda:0", not enforce_eager)]
    assert limits.kv_cache_memory_bytes == limits.available_bytes == memory.cache_bytes(0.92)
    # Weights are in memory already, so they are counted once.
    assert (limits.weight_bytes, limits.num_blocks) == (0, None)


def test_a_step_that_does_not_fit_is_refused_with_numbers(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*args: Any, has_graphs: bool) -> StepMemory:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(gpu_start, "measure_step_memory", measure)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 29, 140 << 30))
    built: Any = SimpleNamespace(runner=object(), device="cuda:0")
    with pytest.raises(
        MemoryPlanError,
        match=r"on cuda:0: 1\.5 of 140\.0 GiB are free; lower max_num_batched_tokens, now 192, or "
        r"max_num_seqs, now 3,",
    ):
        gpu_start.measured_limits(plan(), Internals(), built)


def test_the_pools_fill_the_share_and_grow_with_it(plan: Plan) -> None:
    memory = StepMemory(GIB, GIB - 50 * MIB, 30 * MIB, 20 * MIB)
    blocks = []
    for utilization in (0.2, 0.5, 0.92, 1.0):
        found = planned_with(plan(gpu_memory_utilization=utilization), memory)
        left = memory.cache_bytes(utilization)
        assert left - unit_bytes(found) < num_bytes(found) <= left
        assert found.num_blocks > 0
        blocks.append(found.num_blocks)
    assert blocks == sorted(set(blocks))


@pytest.mark.parametrize("used", [0, 400, 600, 2000])
def test_a_share_that_leaves_nothing_is_refused_with_numbers_and_remedies(plan: Plan, used: int) -> None:
    planned = plan(gpu_memory_utilization=0.5)
    memory = StepMemory(1000, 1000 - min(used, 1000), used, 600)
    with pytest.raises(MemoryPlanError) as caught:
        planned_with(planned, memory)
    found = re.fullmatch(
        r"gpu_memory_utilization=0\.5 of cuda leaves 0 bytes \(0\.0 MiB\), less than the caches and tables "
        r"of max_num_seqs=3 and one request of 160 tokens need, (\d+) bytes \(\d+\.\d MiB\); raise it, free "
        r"memory of the device, or lower max_num_seqs(, num_state_checkpoints)? or max_model_len",
        str(caught.value),
    )
    assert found is not None, str(caught.value)
    # The number is true: so many bytes suffice, and one fewer does not.
    needed = int(found[1])
    enough = StepMemory(2 * needed, 2 * needed, 0, 0)
    assert num_bytes(planned_with(planned, enough)) == needed
    with pytest.raises(MemoryPlanError, match=f"leaves {needed - 1} bytes "):
        planned_with(planned, StepMemory(2 * needed, 2 * needed, 1, 0))


@pytest.mark.parametrize("option", ["num_blocks", "kv_cache_memory_bytes"])
def test_a_size_that_the_measured_memory_does_not_hold_is_refused_with_the_largest(
    plan: Plan, option: str
) -> None:
    memory = StepMemory(GIB, GIB - 50 * MIB, 30 * MIB, 20 * MIB)
    left = memory.cache_bytes(0.92)
    most = planned_with(plan(), memory).num_blocks
    largest = {"num_blocks": most, "kv_cache_memory_bytes": left}[option]
    message = f"the largest {option} that fits is {largest}$"
    with pytest.raises(MemoryPlanError, match=message):
        planned_with(plan(**{option: 2 * largest}), memory)
    assert planned_with(plan(**{option: largest}), memory).num_blocks == most
    fewer = planned_with(plan(**{option: largest // 2}), memory)
    assert 0 < fewer.num_blocks < most


Load = Callable[..., LoadedCore]


@pytest.fixture
def load(checkpoint: Path) -> Iterator[Load]:
    """Loads on the GPU; what is still open at the end is closed."""
    opened: list[LoadedCore] = []

    def run(**changes: Any) -> LoadedCore:
        opened.append(load_core(options(checkpoint, **changes)))
        return opened[-1]

    yield run
    for loaded in opened:
        loaded.close()


def share_of(more: int) -> float:
    """The share of the first GPU that is in use now, and `more` bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(0)
    return (total - free + more) / total


@pytest.mark.gpu
def test_on_a_gpu_the_share_sizes_the_pools(load: Load) -> None:
    blocks = []
    for more in (4 * GIB, 6 * GIB):
        share = share_of(more)
        loaded = load(gpu_memory_utilization=share)
        assert 0 < num_bytes(loaded.plan) < more
        blocks.append((loaded.plan.num_blocks, unit_bytes(loaded.plan)))
        free, total = torch.cuda.mem_get_info(0)
        assert total - free <= share * total, "the engine uses more than its share"
        loaded.close()
    (fewer, size), (more_blocks, _) = blocks
    assert fewer > 0
    # What is used beside the caches differs little between the two starts.
    assert abs((more_blocks - fewer) * size - 2 * GIB) < GIB // 2


@pytest.mark.gpu
def test_on_a_gpu_bytes_size_the_pools(load: Load) -> None:
    blocks = []
    for asked in (64 * MIB, 256 * MIB):
        plan = load(kv_cache_memory_bytes=asked).plan
        assert asked - unit_bytes(plan) < num_bytes(plan) <= asked
        blocks.append(plan.num_blocks)
    assert 0 < blocks[0] < blocks[1]


@pytest.mark.gpu
def test_on_a_gpu_what_does_not_fit_is_refused_and_the_device_is_free_again(load: Load) -> None:
    total = torch.cuda.mem_get_info(0)[1]
    held = torch.empty(total // 25, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated(0)
    with pytest.raises(
        MemoryPlanError,
        match=r"^gpu_memory_utilization=0\.02 of cuda\S* leaves 0 bytes .* and one request of 160 tokens "
        r"need, \d+ bytes .*; raise it, free memory of the device, or lower max_num_seqs",
    ):
        load(gpu_memory_utilization=0.02)
    with pytest.raises(MemoryPlanError, match=r"the largest kv_cache_memory_bytes that fits is \d+$"):
        load(kv_cache_memory_bytes=total)
    assert torch.cuda.memory_allocated(0) == before
    del held
    assert load(kv_cache_memory_bytes=64 * MIB).plan.num_blocks > 0
