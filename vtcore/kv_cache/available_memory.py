"""How much host memory caches and weights may use.

Does not: reserve any.
"""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_host_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """Bytes that can be had without swapping; None where the system does not say.

    Source: Linux, Documentation/filesystems/proc.rst, MemAvailable.
    """
    try:
        text = meminfo.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
