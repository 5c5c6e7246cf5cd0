"""What the doctor looks at on this machine, read and not yet judged.

Does not: raise for what is missing; that is a fact too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sized
from importlib.metadata import metadata
from pathlib import Path

from attrs import frozen

from vtcore.config.env import HostVariables
from vtcore.errors import HostError
from vtcore.host.cache_dir import check_kernel_folder, prepare_cache_dir


@frozen
class InterpreterFacts:
    """The running Python.

    Args:
        executable: Its path.
        version: Of three numbers.
        required: Versions that vtcore's metadata allows, ">=3.11"; "" for any.
        is_isolated: Whether it belongs to a virtual environment.
    """

    executable: str
    version: tuple[int, int, int]
    required: str
    is_isolated: bool


@frozen
class CompilerFacts:
    """What Triton needs to build its launchers.

    Source: triton 3.9, runtime/build.py and backends/nvidia/driver.py.

    Args:
        asked: The variable `CC`; None when unset.
        found: The compiler that Triton would call; None when there is none.
        other: A `cc` that Triton does not look for by itself; None when there is none.
        header: Where Python.h should be.
        has_header: Whether it is there.
        has_libcuda: Whether libcuda.so.1 loads.
    """

    asked: str | None
    found: str | None
    other: str | None
    header: str
    has_header: bool
    has_libcuda: bool


@frozen
class FolderFacts:
    """A directory that vtcore writes to.

    Args:
        path: The directory.
        problem: Why it cannot be written; None when it can, or it was not tried.
        free_bytes: On its disk; None when unknown.
    """

    path: str
    problem: str | None
    free_bytes: int | None


def read_interpreter() -> InterpreterFacts:
    """Look at the running Python."""
    major, minor, micro = sys.version_info[:3]
    return InterpreterFacts(
        executable=sys.executable,
        version=(major, minor, micro),
        required=",".join(metadata("vtcore").get_all("Requires-Python") or ()),
        is_isolated=sys.prefix != sys.base_prefix,
    )


def read_compiler(variables: HostVariables) -> CompilerFacts:
    """Look for a C compiler, Python's headers and the driver's library, where Triton looks."""
    asked = variables.cc
    found = shutil.which(asked) if asked else shutil.which("gcc") or shutil.which("clang")
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme names a folder without headers.
    header = (
        Path(sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme))
        / "Python.h"
    )
    return CompilerFacts(
        asked, found, shutil.which("cc"), str(header), header.is_file(), _loads("libcuda.so.1")
    )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def read_cache(folder: Path) -> FolderFacts:
    """Create the cache directory if need be, and write to it."""
    problem = None
    try:
        prepare_cache_dir(folder)
    except HostError as error:
        problem = str(error)
    return FolderFacts(str(folder), problem, free_bytes(folder))


def read_kernel_folder(variables: HostVariables) -> FolderFacts | None:
    """Write to the folder of compiled kernels that is the user's own; None when TRITON_CACHE_DIR is unset."""
    if variables.triton_cache_dir is None:
        return None
    folder, problem = Path(variables.triton_cache_dir), None
    try:
        check_kernel_folder(folder)
    except HostError as error:
        problem = str(error)
    return FolderFacts(str(folder), problem, free_bytes(folder))


def free_bytes(folder: Path) -> int | None:
    """What this user may still write on the disk of a directory, which need not exist yet.

    Returns:
        None when not even its root can be asked.
    """
    for existing in (folder, *folder.parents):
        try:
            return shutil.disk_usage(existing).free
        except OSError:
            continue
    return None


def num_usable_cores() -> int:
    """CPU cores that this process may run on; all of them where the system does not say."""
    affinity: Callable[[int], Sized] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
