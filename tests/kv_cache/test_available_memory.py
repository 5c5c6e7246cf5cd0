"""Reading how much memory the system says is available."""

from __future__ import annotations

from pathlib import Path

from vtcore.kv_cache.available_memory import available_host_bytes


def test_mem_available_is_read_in_kib(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemFree:          7 kB\nMemAvailable:    42 kB\nBuffers: 1 kB\n")
    assert available_host_bytes(file) == 42 * 1024


def test_a_system_that_does_not_say_gives_none(tmp_path: Path) -> None:
    assert available_host_bytes(tmp_path / "absent") is None
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailableSoon: 3 kB\n")
    assert available_host_bytes(file) is None


def test_this_system_gives_nothing_or_something_positive() -> None:
    found = available_host_bytes()
    assert found is None or found > 0
