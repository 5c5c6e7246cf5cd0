"""How much host memory caches and weights may use.

Does not: reserve any.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

_MEMINFO = Path("/proc/meminfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@frozen
class _Controller:
    """Where one version of the memory controller keeps its numbers, in bytes.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """

    folder: str
    limit: str
    usage: str
    reclaimable: str


_V1 = _Controller("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Controller("", "memory.max", "memory.current", "inactive_file")


def available_host_bytes(
    meminfo: Path = _MEMINFO, own_cgroups: Path = _OWN_CGROUPS, cgroup_root: Path = _CGROUP_ROOT
) -> int | None:
    """Bytes that can be had without swapping, by the machine and by every memory limit on this process.

    Args:
        meminfo: The machine's memory.
        own_cgroups: Names the process's control groups.
        cgroup_root: Where their hierarchies are mounted.

    Returns:
        None where neither the machine nor a limit says.
    """
    found = [*_by_machine(meminfo), *_by_limits(own_cgroups, cgroup_root)]
    return max(0, min(found)) if found else None


def _by_machine(meminfo: Path) -> Iterator[int]:
    """MemAvailable. Source: Linux, Documentation/filesystems/proc.rst."""
    for line in (_read(meminfo) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _by_limits(own_cgroups: Path, cgroup_root: Path) -> Iterator[int]:
    """What each limited group that holds this process has left: its own group and all groups above."""
    for line in (_read(own_cgroups) or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if "memory" in names.split(","):
            controller = _V1
        elif number == "0" and not names:
            controller = _V2
        else:
            continue
        mount = cgroup_root / controller.folder
        # Inside a container the path may be the host's; its folders are then absent here, and the mount's
        # own folder is the container's group.
        group = mount / path.strip("/")
        for folder in (group, *group.parents):
            yield from _left(folder, controller)
            if folder == mount:
                break


def _left(folder: Path, controller: _Controller) -> Iterator[int]:
    """The limit less what is used; file pages not in use give way first and do not count as used."""
    limit, usage = (_number(_read(folder / name)) for name in (controller.limit, controller.usage))
    if limit is None or usage is None:
        return
    stat = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines())
    yield limit - usage + min(usage, _number(stat.get(controller.reclaimable)) or 0)


def _number(text: str | None) -> int | None:
    """An integer; None for the word "max", which is no limit, and for an absent file."""
    return int(text) if text is not None and text.strip().isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
