"""A GPU's memory is read from the driver's library: here from a compiled one with NVML's structures."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore.host import gpu_memory
from vtcore.host.gpu_memory import GpuHolder, GpuMemory, driver_version, read_gpu_memory

LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu, compute; } Process;
static int open_count = 0;
int is_open(void) { return open_count; }
int nvmlInit_v2(void) { open_count++; return INIT; }
int nvmlShutdown(void) { open_count--; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
  snprintf(text, size, "580.65.06");
  return FAILS == 1;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  *handle = (void *)7;
  return strcmp(uuid, "GPU-abc") ? 6 : 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  memory->total = 150754820096ULL;
  memory->free = 150000000000ULL;
  return handle == (void *)7 ? FAILS == 2 : 9;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, Process *found) {
  if (FAILS == 3) return 3;
  *count = 3;
  found[0].pid = 11, found[0].used = 5000000000ULL;
  found[1].pid = 12, found[1].used = ~0ULL;
  found[2].pid = OWN, found[2].used = 1;
  return 0;
}
"""
MEMORY = GpuMemory(150_754_820_096, 150_000_000_000, (GpuHolder(11, 5_000_000_000), GpuHolder(12, None)))

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
Load = Callable[[str], Any]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Load, Any]]:
    """Compiles the library; INIT is what it says to the first call, FAILS which call fails."""
    monkeypatch.setattr(gpu_memory, "_uuid", lambda number: b"GPU-abc" if number == 0 else b"GPU-other")

    def build(init: int = 0, fails: int = 0) -> tuple[Load, Any]:
        source, out = tmp_path / "nvml.c", tmp_path / f"nvml{init}{fails}.so"
        source.write_text(LIBRARY)
        words = {"INIT": init, "FAILS": fails, "OWN": os.getpid()}
        flags = [f"-D{name}={value}" for name, value in words.items()]
        subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", out, source], check=True)
        opened = ctypes.CDLL(str(out))

        def load(name: str) -> Any:
            assert name == "libnvidia-ml.so.1"
            return opened

        return load, opened

    return build


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@needs_compiler
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_memory_and_holders_but_oneself_are_read_and_the_library_is_closed(device: str, library: Any) -> None:
    load, opened = library()
    assert read_gpu_memory(device, load) == MEMORY
    assert opened.is_open() == 0


@needs_compiler
@pytest.mark.parametrize(
    ("device", "init", "fails", "expected"),
    [
        ("cuda:1", 0, 0, None),
        ("cuda", 9, 0, None),
        ("cuda", 0, 2, None),
        ("cuda", 0, 3, GpuMemory(MEMORY.total_bytes, MEMORY.free_bytes)),
    ],
)
def test_what_the_driver_does_not_say_is_unknown(
    device: str, init: int, fails: int, expected: GpuMemory | None, library: Any
) -> None:
    load, opened = library(init, fails)
    assert read_gpu_memory(device, load) == expected
    assert init or opened.is_open() == 0


@needs_compiler
def test_the_drivers_version_is_a_text_or_unknown(library: Any) -> None:
    assert driver_version(library()[0]) == "580.65.06"
    assert driver_version(library(fails=1)[0]) is None
    assert driver_version(library(init=9)[0]) is None
    assert driver_version(missing) is None


def test_without_the_library_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_uuid", lambda number: b"GPU-abc")
    assert read_gpu_memory("cuda", missing) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_memory_is_unknown() -> None:
    assert read_gpu_memory("cuda") is None


@pytest.mark.gpu
def test_the_memory_of_this_machines_gpu() -> None:
    memory = read_gpu_memory("cuda")
    assert memory is not None
    free, total = torch.cuda.mem_get_info(0)
    # The driver keeps a part for itself, of which only one of the two knows.
    assert abs(memory.total_bytes - total) < 2**31
    assert abs(memory.free_bytes - free) < 2**32
