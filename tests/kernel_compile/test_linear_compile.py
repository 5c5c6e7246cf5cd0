"""Products of few rows compile for sm_90 without spills, with wide loads, and the same for any number of
rows."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import torch
import tune_linear
from torch import Tensor

from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch, recording
from vtcore.ops.linear.plan import OP, ByTile, Plan, plans
from vtcore.ops.linear.triton import INVARIANT, linear, linear_batch_invariant, multiply
from vtcore.ops.tuned import DEFAULT_DEVICE, file_name
from vtcore.testing.kernel_compile import check_compiled

WIDTH, DEPTH = 1024, 4096


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def is_warpgroup(launch: Launch) -> bool:
    """Whether tiles are tall enough for a warpgroup's instructions, which compute no ieee float32."""
    return launch.constants.get("ROWS", 0) >= 64 and launch.constants["PRECISION"] is None


def record(plan: Plan, rows: int, dtype: torch.dtype = torch.bfloat16, depth: int = DEPTH) -> list[Launch]:
    found: list[Launch] = []
    with recording(found.append):
        multiply(meta(rows, depth, dtype=dtype), meta(WIDTH, depth, dtype=dtype), plan)
    return found


def test_what_the_tuner_tries_neither_spills_nor_overflows() -> None:
    launches = [
        launch
        for rows in (4, 64)
        for plan in tune_linear.candidates(rows, WIDTH, DEPTH)
        for launch in record(plan, rows)
    ]
    reports = check_compiled(launches, wgmma=is_warpgroup)
    assert {report.kernel for report in reports} == {"rows_kernel", "tiles_kernel", "sum_parts_kernel"}


def test_tuned_plans_and_the_rule_neither_spill_nor_overflow() -> None:
    path = files("vtcore.ops").joinpath("tuned", file_name(DEFAULT_DEVICE))
    entries = json.loads(path.read_text("utf-8"))["entries"][OP]
    chosen = {
        (plan, entry["m"])
        for entry in entries
        if (plan := plans(DEFAULT_DEVICE, entry["dtype"], entry["n"], entry["k"])[entry["m"]])
    }
    ruled = {(plan, rows) for rows, plan in plans("another GPU", "bfloat16", WIDTH, DEPTH).items() if plan}
    assert chosen
    assert ruled
    launches = [launch for plan, rows in sorted(chosen | ruled, key=str) for launch in record(plan, rows)]
    check_compiled(launches, wgmma=is_warpgroup)


def test_batch_invariant_tiles_neither_spill_nor_overflow() -> None:
    launches = [
        launch
        for dtype, plan in INVARIANT.items()
        for depth in (DEPTH, DEPTH + 16)
        for rows in (1, 8192)
        for launch in record(plan, rows, dtype, depth)
    ]
    check_compiled(launches, wgmma=is_warpgroup)


def test_tiles_are_loaded_16_bytes_at_a_time_and_ahead() -> None:
    """Both are lost where the compiler cannot see that an offset is a multiple of 16 bytes."""
    plan = ByTile(rows=16, columns=16, depth=256, parts=4, num_warps=4, num_stages=4)
    launches = [launch for launch in record(plan, 16) if launch.kernel.__name__ == "tiles_kernel"]
    for dtype, invariant in INVARIANT.items():
        for depth in (DEPTH, DEPTH + 16):
            launches += record(invariant, 8192, dtype, depth)
    compiled = compile_launches(launches, target="sm_90")
    assert len(compiled.kernels) == 5
    for _, kernel in compiled.kernels:
        widths = set(re.findall(r"cp\.async\.\w+\.shared\.global\S* .*?\], (0x\w+)", kernel.asm["ptx"]))
        assert widths == {"0x10"}


def test_batch_invariant_launches_differ_in_rows_alone() -> None:
    for dtype in INVARIANT:
        seen = []
        for rows in (1, 7, 64, 65, 8192):
            found: list[Launch] = []
            with recording(found.append):
                linear_batch_invariant(meta(rows, DEPTH, dtype=dtype), meta(WIDTH, DEPTH, dtype=dtype))
            (launch,) = found
            order = {name: value for name, value in launch.constants.items() if name != "EVICTION"}
            seen.append((launch.kernel, launch.grid[0], launch.grid[2], launch.args[4:], order))
        assert all(one == seen[0] for one in seen)


def test_the_choice_on_meta_tensors_is_the_tuned_one() -> None:
    for rows, plan in plans(DEFAULT_DEVICE, "bfloat16", 1024, 2048).items():
        found: list[Launch] = []
        with recording(found.append):
            linear(meta(rows, 2048), meta(1024, 2048))
        kernels = {launch.kernel.__name__ for launch in found} - {"sum_parts_kernel"}
        kind = {"ByRow": {"rows_kernel"}, "ByTile": {"tiles_kernel"}}
        assert kernels == kind.get(type(plan).__name__, set())
