"""What each fact means: the doctor's verdicts, table by table."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from vtcore.config.env import HostVariables
from vtcore.host.check import Check, Status
from vtcore.host.facts import CompilerFacts, FolderFacts, InterpreterFacts
from vtcore.host.gpu import CudaFacts, GpuFacts, GpuFiles
from vtcore.host.requirements import Need, need_checks
from vtcore.host.verdicts import (
    compiler_checks,
    device_checks,
    driver_checks,
    environment_checks,
    interpreter_checks,
    memory_check,
    storage_checks,
    triton_check,
    version_checks,
)

NONE = HostVariables()


def statuses(checks: list[Check]) -> list[tuple[str, Status]]:
    assert all(check.message for check in checks)
    # What needs doing says how; what does not, says nothing.
    assert all((check.status == "ok") == (check.remedy == "") for check in checks)
    return [(check.name, check.status) for check in checks]


@pytest.mark.parametrize(
    ("version", "required", "status"),
    [
        ((3, 10, 14), ">=3.11", "error"),
        ((3, 11, 0), ">=3.11", "ok"),
        ((3, 14, 9), ">=3.11", "ok"),
        ((3, 15, 0), ">=3.11", "warning"),
        ((3, 12, 1), "", "ok"),
    ],
)
def test_a_python_below_the_metadata_is_an_error_and_an_untried_one_a_warning(
    version: tuple[int, int, int], required: str, status: Status
) -> None:
    [check] = interpreter_checks(InterpreterFacts("/opt/python", version, required, True))
    assert check.status == status
    assert "/opt/python, virtual environment" in check.message


def test_a_python_outside_a_virtual_environment_is_named_so() -> None:
    [check] = interpreter_checks(InterpreterFacts("/opt/python", (3, 12, 0), "", False))
    assert check.message.endswith("no virtual environment")


@pytest.mark.parametrize(
    ("need", "is_met"),
    [
        (Need("torch", ">=2.9", "2.13.0+cpu"), True),
        (Need("torch", ">=2.9", "2.8.1"), False),
        (Need("torch", ">=2.9", "2.10.0.dev20260101"), True),
        (Need("torch", ">=2.9", None), False),
        (Need("torch", ">=2.9", "unknown"), False),
        (Need("torch", "", "0.1"), True),
        (Need("torch", "!=2.10", "2.10"), False),
    ],
    ids=str,
)
def test_a_requirement_is_met_by_an_installed_version_in_its_range(need: Need, is_met: bool) -> None:
    assert need.is_met is is_met
    checks = need_checks("vtcore", (need,))
    assert statuses(checks) == ([] if is_met else [("torch", "error")])


def test_an_unmet_requirement_says_what_is_there_and_the_command() -> None:
    [old, absent] = need_checks("some-plugin", (Need("a", ">=2", "1.0"), Need("b", ">=3,<4", None)))
    assert old.message == "some-plugin needs a>=2, and 1.0 is installed"
    assert absent.message == "some-plugin needs b>=3,<4, which is not installed"
    assert old.remedy.endswith("-m pip install 'a>=2'")
    assert absent.remedy.endswith("-m pip install 'b>=3,<4'")


def test_an_optional_part_that_lacks_something_is_one_note_with_its_command() -> None:
    needs = (
        Need("a", "", "1.0"),
        Need("b", "", None, "fast"),
        Need("c", ">=2", "1.0", "fast"),
        Need("d", "", "1.0", "whole"),
    )
    [check] = need_checks("some-plugin", needs)
    assert (check.name, check.status) == ("some-plugin[fast]", "note")
    assert check.message.endswith("lacks b (not installed), c>=2 (1.0)")
    assert check.remedy.endswith("-m pip install 'some-plugin[fast]'")


def test_a_torch_that_cannot_be_imported_is_one_error() -> None:
    needs = (Need("attrs", ">=23", "25.0"), Need("torch", ">=2.9", "2.13.0"))
    checks = version_checks("0.1.0", needs, "OSError: libx.so: no such file")
    assert statuses(checks) == [("vtcore", "ok"), ("attrs", "ok"), ("torch", "error")]
    assert "OSError: libx.so" in checks[-1].message
    absent = (needs[0], evolve(needs[1], installed=None))
    checks = version_checks("0.1.0", absent, "ModuleNotFoundError: No module named 'torch'")
    assert statuses(checks) == [("vtcore", "ok"), ("attrs", "ok"), ("torch", "error")]
    assert "which is not installed" in checks[-1].message


@pytest.mark.parametrize(
    ("installed", "has_gpu", "status"),
    [("3.6.0", True, "ok"), ("3.6.1+cu130", True, "ok"), (None, True, "error"), (None, False, "ok")],
)
def test_triton_is_needed_only_where_a_gpu_is(installed: str | None, has_gpu: bool, status: Status) -> None:
    assert statuses([triton_check(installed, has_gpu)]) == [("triton", status)]


@pytest.mark.parametrize("installed", ["3.5.1", "3.7.0", "3.60.0", "4.0.0", "of my own"])
def test_a_triton_that_kernels_were_not_tested_with_is_warned_of(installed: str) -> None:
    check = triton_check(installed, True)
    assert check.status == "warning"
    assert check.message.startswith(f"triton {installed} is installed; kernels for a GPU are tested with 3.6")
    assert check.remedy.endswith("-m pip install 'torch==2.11.*' 'triton==3.6.*'")
    quiet = triton_check(installed, False)
    assert (quiet.status, quiet.message, quiet.remedy) == ("ok", check.message, "")


FILES = GpuFiles(devices=("/dev/nvidia0",), names=("NVIDIA H200",))
USABLE = CudaFacts(built_for="12.8", names=("NVIDIA H200",))


@pytest.mark.parametrize(
    ("files", "hidden", "gpus", "status", "words"),
    [
        (GpuFiles(), False, GpuFacts(), "ok", "no NVIDIA GPU"),
        (GpuFiles(), True, GpuFacts(), "ok", "no NVIDIA GPU"),
        (GpuFiles(names=("NVIDIA H200",)), False, GpuFacts(), "note", "no device file is here"),
        (FILES, True, GpuFacts(), "note", "hidden by CUDA_VISIBLE_DEVICES=''"),
        (FILES, False, GpuFacts(("NVIDIA H200",)), "ok", "NVIDIA H200; torch is built for CUDA 12.8"),
        (FILES, False, GpuFacts(("NVIDIA H200",), "broken", "mend it"), "error", "broken"),
    ],
)
def test_a_gpu_is_absent_hidden_usable_or_an_error(
    files: GpuFiles, hidden: bool, gpus: GpuFacts, status: Status, words: str
) -> None:
    variables = HostVariables(cuda_visible_devices="")
    cpu, gpu = device_checks(4, files, variables, hidden, USABLE, gpus)
    assert cpu == Check("cpu", "ok", "4 CPU cores usable by this process")
    assert statuses([gpu]) == [("gpu", status)]
    assert words in gpu.message


def test_one_unsupported_gpu_among_others_is_a_note() -> None:
    cuda = CudaFacts(built_for="12.8", names=("NEW", "OLD"), unsupported={1: "OLD (compute capability 6.1)"})
    checks = device_checks(1, FILES, NONE, False, cuda, GpuFacts(("NEW", "OLD")))
    assert statuses(checks) == [("cpu", "ok"), ("gpu", "ok"), ("gpu", "note")]
    assert "OLD (compute capability 6.1)" in checks[-1].message


def test_a_gpu_too_old_for_kernels_among_others_is_a_note() -> None:
    cuda = CudaFacts(built_for="12.8", names=("NEW", "V100"), too_old={1: "V100 (compute capability 7.0)"})
    checks = device_checks(1, FILES, NONE, False, cuda, GpuFacts(("NEW", "V100")))
    assert statuses(checks) == [("cpu", "ok"), ("gpu", "ok"), ("gpu", "note")]
    assert "compute capability 8.0, which is more than V100" in checks[-1].message


def test_a_drivers_version_is_shown_where_there_is_one() -> None:
    assert driver_checks(None) == []
    assert driver_checks("580.65.06") == [Check("driver", "ok", "NVIDIA driver 580.65.06")]


COMPILER = CompilerFacts(None, "/usr/bin/gcc", "/usr/bin/cc", "/usr/include/Python.h", True, True)


@pytest.mark.parametrize(
    ("changes", "name", "words", "remedy"),
    [
        ({"found": None, "other": None}, "compiler", "no C compiler", "install gcc"),
        ({"found": None}, "compiler", "looks only for gcc and clang", "set CC=/usr/bin/cc"),
        ({"found": None, "asked": "icc"}, "compiler", "CC='icc' is no program", "set CC to"),
        ({"has_header": False}, "headers", "Python.h is missing", "python3-dev"),
    ],
)
def test_what_triton_lacks_is_an_error_only_beside_a_usable_gpu(
    changes: dict[str, Any], name: str, words: str, remedy: str
) -> None:
    facts = evolve(COMPILER, **changes)
    [check] = [check for check in compiler_checks(facts, True) if check.status != "ok"]
    assert (check.name, check.status) == (name, "error")
    assert words in check.message
    assert remedy in check.remedy
    # Without a GPU nothing needs it, so nobody is told to install it.
    alone = compiler_checks(facts, False)
    assert {status for _, status in statuses(alone)} == {"ok"}
    assert check.message in [other.message for other in alone]


def test_a_missing_libcuda_matters_only_beside_a_usable_gpu() -> None:
    facts = evolve(COMPILER, has_libcuda=False)
    assert statuses(compiler_checks(facts, True))[-1] == ("libcuda", "error")
    assert [name for name, _ in statuses(compiler_checks(facts, False))] == ["compiler", "headers"]
    assert {status for _, status in statuses(compiler_checks(COMPILER, True))} == {"ok"}


GOOD = FolderFacts("/cache/vtcore", None, 50 << 30)
HUB = FolderFacts("/cache/hub", None, 50 << 30)


@pytest.mark.parametrize(
    ("cache", "hub", "variables", "expected"),
    [
        (GOOD, HUB, NONE, [("cache", "ok"), ("models", "ok")]),
        (evolve(GOOD, problem="read-only"), HUB, NONE, [("cache", "error"), ("models", "ok")]),
        (evolve(GOOD, free_bytes=1 << 20), HUB, NONE, [("cache", "warning"), ("models", "ok")]),
        (GOOD, evolve(HUB, free_bytes=2 << 30), NONE, [("cache", "ok"), ("models", "warning")]),
        (GOOD, evolve(HUB, free_bytes=None), NONE, [("cache", "ok"), ("models", "note")]),
        (
            GOOD,
            HUB,
            HostVariables(triton_cache_dir="/elsewhere"),
            [("cache", "ok"), ("cache", "note"), ("models", "ok")],
        ),
        (GOOD, HUB, HostVariables(triton_cache_dir="/t"), [("cache", "ok"), ("models", "ok")]),
    ],
)
def test_storage(
    cache: FolderFacts, hub: FolderFacts, variables: HostVariables, expected: list[tuple[str, str]]
) -> None:
    assert statuses(storage_checks(cache, hub, "/t", variables)) == expected


@pytest.mark.parametrize(("available", "status"), [(8 << 30, "ok"), (1 << 30, "warning"), (None, "note")])
def test_memory(available: int | None, status: Status) -> None:
    assert statuses([memory_check(available)]) == [("memory", status)]


def test_each_wrong_variable_is_an_error_that_names_it() -> None:
    checks = environment_checks(("VTCORE_CACH: no such", "VTCORE_PLUGINS: bad"), NONE)
    assert statuses(checks) == [("environment", "error")] * 2
    assert checks[0].remedy == "mend or unset VTCORE_CACH"
    [check] = environment_checks((), HostVariables(vtcore_names=("VTCORE_CACHE_DIR",)))
    assert check.message == "variables of vtcore: VTCORE_CACHE_DIR"
