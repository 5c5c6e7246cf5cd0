"""Memory of a GPU and who holds it, asked of the driver's own library: no context is made on the device.

Does not: reserve any, or need torch where it is not loaded yet.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/ (functions and structures named below).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from attrs import frozen

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_UNKNOWN_BYTES = 2**64 - 1
_MAX_PROCESSES = 1024


@frozen
class GpuHolder:
    """A process with memory on a GPU.

    Args:
        pid: In the driver's own namespace: inside a container it may name nobody.
        num_bytes: None when the driver does not say.
    """

    pid: int
    num_bytes: int | None


@frozen
class GpuMemory:
    """What a GPU's memory holds now.

    Args:
        holders: Processes that compute on it, this one left out; a container may be shown none.
    """

    total_bytes: int
    free_bytes: int
    holders: tuple[GpuHolder, ...] = ()


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def read_gpu_memory(device: str, load: Callable[[str], Any] = ctypes.CDLL) -> GpuMemory | None:
    """Read a GPU's memory.

    Args:
        device: "cuda" or "cuda:N", by torch's numbers.
        load: Opens a shared library by its name.

    Returns:
        None where the driver, its library or the GPU is not here, or torch does not see it.
    """
    uuid = _uuid(int(device.partition(":")[2] or 0))
    if uuid is None:
        return None
    try:
        nvml = load(_LIBRARY)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != _SUCCESS:
        return None
    try:
        return _read(nvml, uuid)
    finally:
        nvml.nvmlShutdown()


def driver_version(load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """Of the NVIDIA driver, "580.65.06"; None where it or its library is not here."""
    try:
        nvml = load(_LIBRARY)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != _SUCCESS:
        return None
    try:
        text = ctypes.create_string_buffer(80)
        is_read = nvml.nvmlSystemGetDriverVersion(text, 80) == _SUCCESS
        return text.value.decode(errors="replace") if is_read else None
    finally:
        nvml.nvmlShutdown()


def _uuid(number: int) -> bytes | None:
    """How the driver calls a GPU that torch numbers: CUDA_VISIBLE_DEVICES changes numbers, not this."""
    torch = import_module("torch")
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return None
    return f"GPU-{torch.cuda.get_device_properties(number).uuid}".encode()


def _read(nvml: Any, uuid: bytes) -> GpuMemory | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)) != _SUCCESS:
        return None
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != _SUCCESS:
        return None
    count, processes = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
    status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    found = processes[: count.value] if status == _SUCCESS else []
    return GpuMemory(
        int(memory.total),
        int(memory.free),
        tuple(
            GpuHolder(process.pid, None if process.used == _UNKNOWN_BYTES else int(process.used))
            for process in found
            if process.pid != os.getpid()
        ),
    )
