"""What a start on a GPU checks first."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from vtcore.errors import HostError
from vtcore.host import preflight
from vtcore.host.facts import CompilerFacts
from vtcore.host.gpu_memory import GpuHolder, GpuMemory
from vtcore.host.preflight import memory_checks, prepare_gpu_start, prepare_kernel_cache

GIB = 1 << 30
COMPLETE = CompilerFacts(
    found="/usr/bin/gcc", asked=None, other=None, header="/usr/Python.h", has_header=True, has_libcuda=True
)
LACKING = CompilerFacts(
    found=None, asked=None, other=None, header="/usr/Python.h", has_header=False, has_libcuda=True
)


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    # The start sets it for Triton; monkeypatch puts back what was.
    monkeypatch.setenv("TRITON_CACHE_DIR", "")


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "read_compiler", lambda variables: COMPLETE)
    monkeypatch.setattr(preflight, "installed_version", lambda name: "3.6.0")
    monkeypatch.setattr(preflight, "read_gpu_memory", lambda device: GpuMemory(140 * GIB, 139 * GIB))


@pytest.mark.usefixtures("facts")
def test_a_complete_machine_passes_and_triton_keeps_its_kernels_below_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_gpu_start("cuda", tmp_path / "cache")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
    assert not caplog.records


@pytest.mark.usefixtures("facts")
def test_a_triton_cache_of_the_users_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    prepare_gpu_start("cuda", tmp_path / "cache")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "mine")


@pytest.mark.usefixtures("facts")
def test_a_triton_cache_of_the_users_own_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(HostError, match=r"kernels .*file cannot be written: .*; set TRITON_CACHE_DIR"):
        prepare_gpu_start("cuda", tmp_path)


@pytest.mark.usefixtures("facts")
def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "read_compiler", lambda variables: LACKING)
    with pytest.raises(HostError, match=r"no C compiler.*install gcc.*Python\.h is missing.*python3-dev"):
        prepare_gpu_start("cuda", tmp_path)


@pytest.mark.usefixtures("facts")
def test_without_triton_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "installed_version", lambda name: None)
    with pytest.raises(HostError, match=r"triton is not installed.*install 'triton==3\.6\.\*'"):
        prepare_kernel_cache(tmp_path)


@pytest.mark.usefixtures("facts")
def test_a_triton_of_another_version_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "installed_version", lambda name: "3.7.0")
    with caplog.at_level(logging.WARNING):
        prepare_gpu_start("cuda", tmp_path)
    (record,) = caplog.records
    assert "triton 3.7.0 is installed; kernels for a GPU are tested with 3.6" in record.getMessage()
    assert "'triton==3.6.*'" in record.getMessage()


@pytest.mark.usefixtures("facts")
def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HostError, match="VTCORE_CACHE_DIR"):
        prepare_gpu_start("cuda", tmp_path / "file")


@pytest.mark.usefixtures("facts")
def test_other_users_of_the_memory_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = GpuMemory(140 * GIB, 20 * GIB, (GpuHolder(71, 119 * GIB), GpuHolder(72, None)))
    monkeypatch.setattr(preflight, "read_gpu_memory", lambda device: memory)
    with caplog.at_level(logging.WARNING):
        prepare_gpu_start("cuda:1", tmp_path)
    (record,) = caplog.records
    assert "cuda:1: 20.0 GiB of 140.0 GiB free" in record.getMessage()
    assert "process 71 (119.0 GiB), process 72 hold memory" in record.getMessage()
    assert "gpu_memory_utilization" in record.getMessage()


def test_many_holders_are_counted() -> None:
    memory = GpuMemory(GIB, 0, tuple(GpuHolder(pid, GIB) for pid in range(9)))
    (check,) = memory_checks("cuda", memory)
    assert "and 5 more" in check.message


def test_memory_that_nobody_tells_of_is_no_row() -> None:
    assert memory_checks("cuda", None) == []
    assert [check.status for check in memory_checks("cuda", GpuMemory(GIB, GIB))] == ["ok"]
