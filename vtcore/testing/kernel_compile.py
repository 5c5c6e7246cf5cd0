"""Judges compiled kernels by their machine code, on machines without a GPU.

Does not: run a kernel, so it says nothing about results or speed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from vtcore.ops.compiled import compile_launches
from vtcore.ops.launch import Launch

MAX_SHARED_BYTES = 227 * 1024
"""Of one block. Source: CUDA C++ Programming Guide, compute capability 9.0."""
MAX_REGISTERS = 255
"""Of one thread. Source: as above."""


@frozen(kw_only=True)
class Report:
    """One compiled variant.

    Args:
        kernel: The function's name.
        launch: The first launch that asked for it.
        registers: Of one thread, as many as the block gets.
        spills: Instructions that move registers to local memory or back (STL, LDL).
        shared_bytes: Shared memory of one block, static and dynamic.
        wgmma: Warpgroup matrix instructions (HGMMA, IGMMA, QGMMA).
    """

    kernel: str
    launch: Launch
    registers: int
    spills: int
    shared_bytes: int
    wgmma: int


def check_compiled(
    launches: Iterable[Launch],
    *,
    wgmma: Callable[[Launch], bool] = lambda launch: False,
    may_spill: Callable[[Launch], bool] = lambda launch: False,
    target: str = "sm_90",
) -> list[Report]:
    """Compile every variant for `target` and hold it to the rules of kernels.

    Args:
        launches: As `vtcore.ops.launch.recording` hands them out; tensors may be meta.
        wgmma: Whether a launch's kernel promises warpgroup matrix instructions.
        may_spill: Whether it may use local memory; say why where it is asked for.
        target: As in `compile_launches`.

    Returns:
        One report for each variant, in the order of the launches.

    Raises:
        AssertionError: Nothing was recorded, or a variant spills, needs more shared memory or registers than
            there are, or lacks what it promises. All at once.
        EngineError: A kernel does not compile.
    """
    compiled = compile_launches(launches, target=target)
    assert compiled.kernels, "no launch was recorded"
    reports = [_report(launch, kernel) for launch, kernel in compiled.kernels]
    problems = [
        f"{report.kernel}{_shown(report.launch)}: {problem}"
        for report in reports
        for problem in _problems(report, wgmma(report.launch), may_spill(report.launch))
    ]
    assert not problems, "\n".join(problems)
    return reports


def _problems(report: Report, is_wgmma: bool, may_spill: bool) -> Iterator[str]:
    if report.spills and not may_spill:
        yield f"{report.spills} instructions spill, at {report.registers} registers"
    if report.shared_bytes > MAX_SHARED_BYTES:
        yield f"{report.shared_bytes} bytes of shared memory, at most {MAX_SHARED_BYTES}"
    if report.registers > MAX_REGISTERS:
        yield f"{report.registers} registers, at most {MAX_REGISTERS}"
    if is_wgmma and not report.wgmma:
        yield "no HGMMA, though promised"


def _shown(launch: Launch) -> str:
    dtypes = [str(value.dtype).removeprefix("torch.") for value in launch.args if _is_tensor(value)]
    constants = [f"{name}={value}" for name, value in launch.constants.items()]
    return f"({', '.join([*dtypes, *constants])})"


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _report(launch: Launch, kernel: Any) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage, code = _cuobjdump("-res-usage", cubin), _cuobjdump("-sass", cubin)
    registers = re.search(r"\bREG:(\d+)", usage)
    assert registers is not None, f"cuobjdump says nothing of registers: {usage}"
    return Report(
        kernel=launch.kernel.__name__,
        launch=launch,
        registers=int(registers.group(1)),
        spills=len(re.findall(r"\b(?:LDL|STL)\b", code)),
        shared_bytes=kernel.metadata.shared,
        wgmma=len(re.findall(r"\b[HIQ]GMMA\b", code)),
    )


def _cuobjdump(option: str, cubin: Path) -> str:
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    return subprocess.run([tool, option, str(cubin)], capture_output=True, text=True, check=True).stdout
