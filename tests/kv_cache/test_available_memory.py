"""Reading how much memory the machine and the process's control groups leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtcore.kv_cache.available_memory import available_host_bytes

MEM_AVAILABLE = 1000 * 1024
V1_UNLIMITED = 9223372036854771712


def host(
    tmp_path: Path, own_cgroups: str = "", groups: dict[str, dict[str, str]] | None = None
) -> int | None:
    """What is available with 1000 KiB on the machine; `groups` has the files of each group by folder."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 9000 kB\nMemAvailable: {MEM_AVAILABLE // 1024} kB\n")
    (tmp_path / "own").write_text(own_cgroups)
    for folder, files in (groups or {}).items():
        (tmp_path / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "cgroup" / folder / name).write_text(text)
    return available_host_bytes(tmp_path / "meminfo", tmp_path / "own", tmp_path / "cgroup")


def machine_alone(tmp_path: Path, meminfo: Path) -> int | None:
    return available_host_bytes(meminfo, tmp_path / "absent", tmp_path / "absent")


def v2(limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    stat = f"anon 5\nfile 7\ninactive_file {inactive}\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{usage}\n", "memory.stat": stat}


def v1(limit: int, usage: int) -> dict[str, str]:
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{usage}\n"}


def test_mem_available_is_read_in_kib(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemFree:          7 kB\nMemAvailable:    42 kB\nBuffers: 1 kB\n")
    assert machine_alone(tmp_path, file) == 42 * 1024


def test_a_system_that_does_not_say_gives_none(tmp_path: Path) -> None:
    assert machine_alone(tmp_path, tmp_path / "absent") is None
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailableSoon: 3 kB\n")
    assert machine_alone(tmp_path, file) is None


def test_a_container_limit_below_the_machines_memory_counts(tmp_path: Path) -> None:
    assert host(tmp_path, "0::/\n", {"": v2("700000", 200_000)}) == 500_000


def test_a_container_limit_above_the_machines_memory_changes_nothing(tmp_path: Path) -> None:
    assert host(tmp_path, "0::/\n", {"": v2(str(10**12), 200_000)}) == MEM_AVAILABLE


def test_max_is_no_limit(tmp_path: Path) -> None:
    assert host(tmp_path, "0::/\n", {"": v2("max", 10**15)}) == MEM_AVAILABLE


def test_the_tightest_of_the_own_group_and_those_above_counts(tmp_path: Path) -> None:
    groups = {"": {}, "a": v2("300000", 100_000), "a/b": v2("900000", 50_000), "a/b/c": v2("max", 50_000)}
    assert host(tmp_path, "0::/a/b/c\n", groups) == 200_000


def test_a_group_beside_the_own_one_does_not_count(tmp_path: Path) -> None:
    assert host(tmp_path, "0::/a\n", {"a": v2("max", 1), "b": v2("2", 1)}) == MEM_AVAILABLE


def test_a_limit_is_found_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    own = "5:cpu:/docker/f00\n4:memory:/docker/f00\n0::/\n"
    assert host(tmp_path, own, {"memory": v1(600_000, 100_000)}) == 500_000


def test_an_unlimited_group_of_version_1_changes_nothing(tmp_path: Path) -> None:
    assert host(tmp_path, "4:memory:/x\n", {"memory/x": v1(V1_UNLIMITED, 5)}) == MEM_AVAILABLE


def test_file_pages_that_nobody_uses_count_as_available(tmp_path: Path) -> None:
    # A checkpoint just downloaded fills its container's memory with such pages.
    assert host(tmp_path, "0::/\n", {"": v2("700000", 700_000, inactive=650_000)}) == 650_000


def test_usage_above_the_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    assert host(tmp_path, "0::/\n", {"": v2("1000", 2000)}) == 0


@pytest.mark.parametrize("missing", ["memory.current", "memory.max"])
def test_half_of_the_numbers_is_no_limit(tmp_path: Path, missing: str) -> None:
    files = v2("1000", 10)
    del files[missing]
    assert host(tmp_path, "0::/\n", {"": files}) == MEM_AVAILABLE


def test_this_system_gives_nothing_or_something_positive() -> None:
    found = available_host_bytes()
    assert found is None or found > 0
