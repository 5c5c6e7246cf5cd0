"""Everything the doctor looks at, in the order in which it is shown.

Does not: print, repair or download anything.
"""

from __future__ import annotations

from pathlib import Path

from vtcore.config.env import read_host_variables, read_what_can_be_read
from vtcore.config.options import UserOptions
from vtcore.host.cache_dir import TRITON_FOLDER, resolve_hub_cache
from vtcore.host.check import Check
from vtcore.host.facts import (
    FolderFacts,
    free_bytes,
    num_usable_cores,
    read_cache,
    read_compiler,
    read_interpreter,
    read_kernel_folder,
)
from vtcore.host.gpu import GpuFacts, judge_gpus, read_cuda, read_gpu_files
from vtcore.host.gpu_memory import driver_version, read_gpu_memory
from vtcore.host.plugin_checks import plugin_checks
from vtcore.host.preflight import memory_checks
from vtcore.host.requirements import installed_version, read_needs
from vtcore.host.verdicts import (
    compiler_checks,
    device_checks,
    driver_checks,
    environment_checks,
    interpreter_checks,
    kernel_folder_checks,
    memory_check,
    storage_checks,
    triton_check,
    version_checks,
)
from vtcore.kv_cache.available_memory import available_host_bytes


def diagnose(
    options: UserOptions, problems: tuple[str, ...] = (), root: Path = Path("/")
) -> tuple[Check, ...]:
    """Look at interpreter, versions, devices, Triton's needs, storage, memory, environment and plugins.

    Args:
        options: Only those of plugins are read.
        problems: What is wrong with vtcore's environment variables.
        root: Where `dev` and `proc` lie.
    """
    environment = read_what_can_be_read()
    variables = read_host_variables()
    files, cuda = read_gpu_files(root), read_cuda()
    is_gpu_visible = bool(files.devices) and not environment.gpus_hidden
    gpus = judge_gpus(files, cuda) if is_gpu_visible else GpuFacts()
    has_gpu = is_gpu_visible and gpus.problem is None
    hub = resolve_hub_cache(variables)
    return (
        *interpreter_checks(read_interpreter()),
        *version_checks(installed_version("vtcore") or "", read_needs("vtcore"), cuda.torch_error),
        triton_check(installed_version("triton"), has_gpu),
        *device_checks(num_usable_cores(), files, variables, environment.gpus_hidden, cuda, gpus),
        *driver_checks(driver_version()),
        *(memory_checks("cuda", read_gpu_memory("cuda")) if has_gpu else ()),
        *compiler_checks(read_compiler(variables), has_gpu),
        *storage_checks(
            read_cache(environment.cache_dir),
            FolderFacts(str(hub), None, free_bytes(hub)),
            str(environment.cache_dir / TRITON_FOLDER),
            variables,
        ),
        *kernel_folder_checks(read_kernel_folder(variables)),
        memory_check(available_host_bytes()),
        *environment_checks(problems, variables),
        *plugin_checks(options, environment),
    )
