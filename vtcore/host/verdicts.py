"""What each fact about the machine means: pure functions from facts to rows.

Does not: look at the machine.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from vtcore.config.env import HostVariables
from vtcore.host.check import Check
from vtcore.host.facts import CompilerFacts, FolderFacts, InterpreterFacts
from vtcore.host.gpu import CudaFacts, GpuFacts, GpuFiles, no_kernels_for, too_old_for_kernels
from vtcore.host.installed import pip_command
from vtcore.host.requirements import Need, need_checks

NEWEST_PYTHON = (3, 14)
"""Newer ones may work; nobody has tried."""

TESTED_TRITON = "3.6"
"""Kernels are compiled ahead and counted through parts of Triton that are private, and differ by version."""

TRITONS_TORCH = "2.11"
"""Whose CUDA build brings that Triton."""

LOW_CACHE_BYTES = 1 << 30
"""Compiled kernels of one model take tens of megabytes; below this a disk is nearly full."""

LOW_HUB_BYTES = 4 << 30
"""About the bfloat16 weights of a model of two billion parameters: less holds hardly any model."""

LOW_MEMORY_BYTES = 2 << 30
"""torch takes about a quarter of this before the first weight."""


def gib(num_bytes: int) -> str:
    """A size for reading."""
    return f"{num_bytes / (1 << 30):.1f} GiB"


def interpreter_checks(facts: InterpreterFacts) -> list[Check]:
    """Judge the Python version and its isolation."""
    text, newest = ".".join(map(str, facts.version)), ".".join(map(str, NEWEST_PYTHON))
    where = "virtual environment" if facts.is_isolated else "no virtual environment"
    message = f"Python {text} at {facts.executable}, {where}"
    if not SpecifierSet(facts.required).contains(text, prereleases=True):
        return [
            Check(
                "interpreter",
                "error",
                f"{message}; vtcore needs {facts.required}",
                f"make an environment with another Python: python{newest} -m venv DIR",
            )
        ]
    if facts.version[:2] > NEWEST_PYTHON:
        return [
            Check("interpreter", "warning", f"{message}; vtcore is tested up to {newest}", f"use {newest}")
        ]
    return [Check("interpreter", "ok", message)]


def version_checks(own_version: str, needs: tuple[Need, ...], torch_error: str | None) -> list[Check]:
    """Judge vtcore's own requirements, and whether torch can be imported at all."""
    checks = [Check("vtcore", "ok", f"vtcore {own_version}")]
    for need in needs:
        if need.is_met and not need.extra and not (need.name == "torch" and torch_error):
            floor = f" (needs {need.specifier})" if need.specifier else ""
            checks.append(Check(need.name, "ok", f"{need.name} {need.installed}{floor}"))
    unmet = need_checks("vtcore", needs)
    checks += unmet
    if torch_error is not None and not any(check.name == "torch" for check in unmet):
        checks.append(
            Check(
                "torch",
                "error",
                f"torch is installed and cannot be imported: {torch_error}",
                pip_command("install", "--force-reinstall", "torch"),
            )
        )
    return checks


def triton_check(installed: str | None, has_gpu: bool) -> Check:
    """Judge Triton: only kernels for a GPU need it, and they are tested with one version."""
    if installed is not None:
        need = Need("triton", f"=={TESTED_TRITON}.*", installed)
        if need.is_met:
            return Check("triton", "ok", f"triton {installed}")
        message = (
            f"triton {installed} is installed; kernels for a GPU are tested with {TESTED_TRITON} and use "
            f"private parts of it, so they may fail to compile"
        )
        if not has_gpu:
            return Check("triton", "ok", message)
        remedy = pip_command("install", f"torch=={TRITONS_TORCH}.*", need.name + need.specifier)
        return Check("triton", "warning", message, remedy)
    if not has_gpu:
        return Check("triton", "ok", "triton is not installed, and only kernels for a GPU need it")
    return Check(
        "triton",
        "error",
        "triton is not installed; kernels for a GPU need it",
        pip_command("install", f"triton=={TESTED_TRITON}.*"),
    )


def device_checks(
    num_cores: int, files: GpuFiles, variables: HostVariables, hidden: bool, cuda: CudaFacts, gpus: GpuFacts
) -> list[Check]:
    """Judge the devices: a GPU that is there and cannot be used is an error."""
    checks = [Check("cpu", "ok", f"{num_cores} CPU core{'s' * (num_cores > 1)} usable by this process")]
    if not files.devices and files.names:
        checks.append(
            Check(
                "gpu",
                "note",
                f"the driver lists {', '.join(files.names)}, but no device file is here, so none can be used",
                "in a container: start it with its GPU option (--gpus all)",
            )
        )
    elif not files.devices:
        checks.append(Check("gpu", "ok", "no NVIDIA GPU"))
    elif hidden:
        checks.append(
            Check(
                "gpu",
                "note",
                f"{len(files.devices)} NVIDIA GPU(s) hidden by CUDA_VISIBLE_DEVICES="
                f"{variables.cuda_visible_devices!r}",
                "unset CUDA_VISIBLE_DEVICES to use them",
            )
        )
    elif gpus.problem is not None:
        checks.append(Check("gpu", "error", gpus.problem, gpus.remedy))
    else:
        names = ", ".join(gpus.names)
        checks.append(Check("gpu", "ok", f"{names}; torch is built for CUDA {cuda.built_for}"))
        for why, left_out in ((no_kernels_for, cuda.unsupported), (too_old_for_kernels, cuda.too_old)):
            if left_out:
                message = why(*left_out.values())
                checks.append(Check("gpu", "note", message, "leave them out with CUDA_VISIBLE_DEVICES"))
    return checks


def driver_checks(version: str | None) -> list[Check]:
    """Show the NVIDIA driver's version, or nothing where there is none; torch says whether it can use it."""
    return [] if version is None else [Check("driver", "ok", f"NVIDIA driver {version}")]


def compiler_checks(facts: CompilerFacts, has_gpu: bool) -> list[Check]:
    """Judge what Triton needs at run time; without a usable GPU a lack stops nothing and needs no advice."""

    def lacking(name: str, message: str, remedy: str) -> Check:
        return Check(name, "error", message, remedy) if has_gpu else Check(name, "ok", message)

    why = "Triton needs one to start kernels on a GPU"
    checks = []
    if facts.found is not None:
        checks.append(Check("compiler", "ok", f"C compiler {facts.found}"))
    elif facts.asked is not None:
        checks.append(
            lacking("compiler", f"CC={facts.asked!r} is no program; {why}", "set CC to a C compiler's path")
        )
    elif facts.other is not None:
        checks.append(
            lacking(
                "compiler",
                f"there is a C compiler {facts.other}, but Triton looks only for gcc and clang; {why}",
                f"set CC={facts.other}",
            )
        )
    else:
        checks.append(
            lacking("compiler", f"no C compiler; {why}", "install gcc, or set CC to a C compiler's path")
        )
    if facts.has_header:
        checks.append(Check("headers", "ok", f"Python's headers, {facts.header}"))
    else:
        checks.append(
            lacking(
                "headers",
                f"{facts.header} is missing; Triton needs it to start kernels on a GPU",
                "install this Python's development package (python3-dev, python3-devel)",
            )
        )
    if facts.has_libcuda:
        checks.append(Check("libcuda", "ok", "the driver's library libcuda.so.1"))
    elif has_gpu:
        checks.append(
            Check(
                "libcuda",
                "error",
                "libcuda.so.1 cannot be loaded; Triton needs it to start kernels on a GPU",
                "install the NVIDIA driver's user-space libraries",
            )
        )
    return checks


def storage_checks(
    cache: FolderFacts, hub: FolderFacts, triton_folder: str, variables: HostVariables
) -> list[Check]:
    """Judge the cache directory, Triton's below it, and the disk under both caches."""
    checks = []
    if cache.problem is not None:
        checks.append(
            Check("cache", "error", cache.problem, "set VTCORE_CACHE_DIR to a directory that can be written")
        )
    else:
        checks.append(_disk("cache", "cache directory", cache, LOW_CACHE_BYTES, "VTCORE_CACHE_DIR"))
    if variables.triton_cache_dir not in (None, triton_folder):
        checks.append(
            Check(
                "cache",
                "note",
                f"Triton's kernels are kept in {variables.triton_cache_dir}, as TRITON_CACHE_DIR says",
                f"unset TRITON_CACHE_DIR to keep them in {triton_folder}",
            )
        )
    checks.append(_disk("models", "downloaded models", hub, LOW_HUB_BYTES, "HF_HOME"))
    return checks


def kernel_folder_checks(folder: FolderFacts | None) -> list[Check]:
    """Judge the user's own folder of compiled kernels; None is none, and Triton's lies below the cache."""
    if folder is None or folder.problem is None:
        return []
    return [Check("cache", "error", folder.problem, "set or unset TRITON_CACHE_DIR")]


def _disk(name: str, what: str, folder: FolderFacts, low: int, variable: str) -> Check:
    if folder.free_bytes is None:
        return Check(name, "note", f"{what} in {folder.path}; its free space is unknown", "ask df")
    message = f"{what} in {folder.path}, {gib(folder.free_bytes)} free"
    if folder.free_bytes < low:
        return Check(name, "warning", message, f"free some, or set {variable} to another disk's directory")
    return Check(name, "ok", message)


def memory_check(available_bytes: int | None) -> Check:
    """Judge the memory that this process can still have."""
    if available_bytes is None:
        return Check("memory", "note", "this system does not say how much memory is available", "ask top")
    message = f"{gib(available_bytes)} of memory available to this process"
    if available_bytes < LOW_MEMORY_BYTES:
        return Check("memory", "warning", message, "end other programs, or raise the container's limit")
    return Check("memory", "ok", message)


def environment_checks(problems: tuple[str, ...], variables: HostVariables) -> list[Check]:
    """Judge vtcore's environment variables; a wrong one stops every command."""
    if problems:
        return [
            Check("environment", "error", problem, f"mend or unset {problem.split(': ', 1)[0]}")
            for problem in problems
        ]
    names = ", ".join(variables.vtcore_names)
    return [Check("environment", "ok", f"variables of vtcore: {names or 'none set'}")]
