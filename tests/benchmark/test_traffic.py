"""Bytes of a step's tensors: what a GPU would be given agrees with the roofline, operation by operation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch

from vtcore.benchmark.kernels import group_of, kernel_ops, kernel_times
from vtcore.benchmark.roofline import ModelWork, model_work
from vtcore.benchmark.traffic import ByteCounter, meta_traffic
from vtcore.cli.main import main
from vtcore.config.layers import gather_options
from vtcore.execution.warm_up import null_batch
from vtcore.interfaces.kv_cache_spec import Slot
from vtcore.loader import plan_core


@pytest.fixture(name="work")
def fixture_work() -> ModelWork:
    """Of a model with two of eight experts for each token."""
    arch = Qwen35MoeArch(Qwen35MoeArch.checkpoint_config("tiny", 64))
    return model_work(arch, (), (), "float32")


def found_by(work: ModelWork, run: Any) -> dict[str, float]:
    with torch.inference_mode(), ByteCounter(work, 1) as counter:
        run()
    return {name: one.num_bytes for name, one in counter.found.items()}


@pytest.mark.usefixtures("plain_empty")
def test_what_an_operation_reads_and_writes(work: ModelWork) -> None:
    table, ids = torch.zeros(100, 4), torch.arange(3)
    left, right = torch.zeros(2, 5), torch.zeros(5, 7)
    assert found_by(work, lambda: torch.mm(left, right)) == {"aten::mm": 4 * (10 + 35 + 14)}
    assert found_by(work, lambda: left.view(5, 2).t()[1:]) == {}
    assert found_by(work, lambda: left.add_(1)) == {"aten::add_": 40}
    assert found_by(work, lambda: torch.empty(9)) == {"aten::empty": 0}
    assert found_by(work, lambda: table.index_select(0, ids)) == {"aten::index_select": 2 * 48 + 24}
    rows = torch.zeros(3, 4)
    assert found_by(work, lambda: table.index_copy_(0, ids, rows)) == {"aten::index_copy_": 2 * (48 + 24)}


def test_of_groups_only_those_that_are_read(work: ModelWork) -> None:
    experts = torch.zeros(8, 5, 4)
    assert found_by(work, lambda: experts.mul_(2)) == {"aten::mul_": 4 * 160 * 2 / 8}


@pytest.mark.parametrize(("arch", "size"), [("qwen3_5_dense", "0.8b"), ("qwen3_5_moe", "35b-a3b")])
def test_a_step_on_a_gpu_is_given_what_the_roofline_counts(tmp_path: Path, arch: str, size: str) -> None:
    assert (
        main(["make-checkpoint", "--arch", arch, "--size", size, "--config-only", str(tmp_path / "m")]) == 0
    )
    given = gather_options(
        {
            "model": str(tmp_path / "m"),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_num_seqs": 32,
            "max_model_len": 2048,
            "num_blocks": 4096,
        }
    )
    options = evolve(given.options, device="cuda")
    planned = plan_core(options, sources=given.sources, environment=given.environment)
    specs = [spec for pool in planned.plan.pools for spec in pool.specs]
    work = model_work(planned.arch, (), specs, "bfloat16")
    for batch in (1, 32):
        traffic = meta_traffic(planned, work, null_batch(batch, 0), batch, 1024)
        # Weights, and activations beside them.
        own = sum(one.num_bytes for one in traffic.values())
        assert work.weight_bytes(batch) < own < 1.2 * work.weight_bytes(batch)
        attention = traffic["decode_kernel"]
        paged = [spec for spec in specs if not isinstance(spec.lifetime, Slot)]
        assert attention.cache_bytes == batch * sum(
            1024 // spec.block_size * spec.unit_bytes(0) for spec in paged
        )


def test_kernels_are_named_by_the_op_whose_folder_they_stand_in() -> None:
    import vtcore.ops.silu_mul.triton as module

    ops = kernel_ops({module.__name__: module, "json": __import__("json")})
    assert set(ops.values()) == {"silu_mul"}
    (name,) = ops
    assert group_of(name, ops) == "silu_mul"
    assert group_of("nvjet_tst_128x64_64x5", ops) == "products"
    assert group_of("void at::native::vectorized_elementwise_kernel<4>", ops) == "torch"
    assert group_of("Memcpy DtoD (Device -> Device)", ops) == "copies"
    assert group_of("strange", ops) == "other"


def test_times_of_a_profile_are_for_one_step() -> None:
    def event(key: str, device: str, micros: float) -> Any:
        return SimpleNamespace(
            key=key,
            count=6,
            device_type=SimpleNamespace(name=device),
            self_device_time_total=micros,
            self_cpu_time_total=micros,
        )

    events = [event("a", "CUDA", 30.0), event("b", "CUDA", 60.0), event("aten::mm", "CPU", 9.0)]
    on_gpu = kernel_times(events, 3, True, {"a": "argmax"})
    assert [(one.name, one.group, one.calls, one.micros) for one in on_gpu] == [
        ("b", "other", 2, 20),
        ("a", "argmax", 2, 10),
    ]
    assert [one.name for one in kernel_times(events, 3, False, {})] == ["aten::mm"]
