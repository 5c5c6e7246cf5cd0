"""What a start on a GPU needs beside the GPU: Triton, a compiler, a cache that can be written, free memory.

Does not: judge the GPU itself, which options do, or run on a CPU.
"""

from __future__ import annotations

import logging
from pathlib import Path

from vtcore.config.env import read_host_variables
from vtcore.errors import HostError
from vtcore.host.cache_dir import check_kernel_folder, prepare_cache_dir
from vtcore.host.check import Check
from vtcore.host.facts import read_compiler
from vtcore.host.gpu_memory import GpuMemory, read_gpu_memory
from vtcore.host.requirements import installed_version
from vtcore.host.verdicts import compiler_checks, gib, triton_check

_log = logging.getLogger(__name__)

_HOLDERS_SHOWN = 4


def prepare_kernel_cache(cache_dir: Path) -> None:
    """Make the folder of compiled kernels and have Triton use it; whoever compiles calls it first.

    Warns of a Triton of another version than kernels are tested with.

    Raises:
        HostError: The folder, or the one that TRITON_CACHE_DIR names, cannot be written, or Triton is not
            installed.
    """
    prepare_cache_dir(cache_dir)
    folder = read_host_variables().triton_cache_dir
    assert folder is not None, "prepare_cache_dir sets it"
    check_kernel_folder(Path(folder))
    check = triton_check(installed_version("triton"), True)
    if check.status == "error":
        raise HostError(f"{check.message}; {check.remedy}")
    if check.status != "ok":
        _log.warning("%s; %s", check.message, check.remedy)


def prepare_gpu_start(device: str, cache_dir: Path) -> None:
    """Refuse a start that would fail later, with all reasons at once; warn of other users of the memory.

    Args:
        device: "cuda" or "cuda:N".
        cache_dir: `Environment.cache_dir`.

    Raises:
        HostError: Something is missing; it says what and what mends it.
    """
    prepare_kernel_cache(cache_dir)
    checks = compiler_checks(read_compiler(read_host_variables()), True)
    faults = [f"{check.message}; {check.remedy}" for check in checks if check.status == "error"]
    if faults:
        raise HostError(". ".join(faults))
    for check in memory_checks(device, read_gpu_memory(device)):
        if check.status != "ok":
            _log.warning("%s; %s", check.message, check.remedy)


def memory_checks(device: str, memory: GpuMemory | None) -> list[Check]:
    """Judge a GPU's memory: what others hold is missing to an engine that wants nearly all of it."""
    if memory is None:
        return []
    free = f"{device}: {gib(memory.free_bytes)} of {gib(memory.total_bytes)} free"
    if not memory.holders:
        return [Check("gpu memory", "ok", free)]
    shown = ", ".join(
        f"process {holder.pid}" + (f" ({gib(holder.num_bytes)})" if holder.num_bytes is not None else "")
        for holder in memory.holders[:_HOLDERS_SHOWN]
    )
    more = len(memory.holders) - _HOLDERS_SHOWN
    held = f"{shown} and {more} more" if more > 0 else shown
    return [
        Check(
            "gpu memory",
            "note",
            f"{free}; {held} hold memory of it",
            "end them, choose another GPU (device cuda:N), or lower gpu_memory_utilization",
        )
    ]
