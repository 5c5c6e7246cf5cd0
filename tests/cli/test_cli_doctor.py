"""`vtcore doctor` on this machine, and on this machine with something taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore.cli.doctor import print_checks
from vtcore.cli.main import main
from vtcore.config.options import UserOptions
from vtcore.host.check import Check
from vtcore.host.doctor import diagnose


@pytest.fixture(autouse=True)
def quiet_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")


def report(capsys: pytest.CaptureFixture[str], exit_code: int, *argv: str) -> dict[str, Any]:
    assert main(["doctor", "--json", *argv]) == exit_code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_report_as_json_has_a_stable_form(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, 0)
    assert set(found) == {"errors", "warnings", "notes", "checks"}
    assert found["errors"] == 0
    for check in found["checks"]:
        assert set(check) == {"name", "status", "message", "remedy"}
        assert check["status"] in {"ok", "note", "warning", "error"}
    names = {check["name"] for check in found["checks"]}
    assert names >= {"interpreter", "vtcore", "torch", "triton", "cpu", "gpu", "compiler", "headers"}
    assert names >= {"cache", "models", "memory", "environment", "scheduler_policy fcfs"}


def test_the_text_is_aligned_and_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    checks = (
        Check("a", "ok", "fine"),
        Check("longer", "error", "bad\nthing", "mend it"),
        Check("n" * 50, "warning", "meh", "wait"),
        Check("b", "warning", "meh", "wait"),
    )
    assert print_checks(checks, as_json=False) == 3
    assert capsys.readouterr().out.splitlines() == [
        "ok       a       fine",
        "error    longer  bad thing",
        "                 remedy: mend it",
        f"warning  {'n' * 50}",
        "                 meh",
        "                 remedy: wait",
        "warning  b       meh",
        "                 remedy: wait",
        "4 checks: 1 error, 2 warnings",
    ]


def test_notes_and_warnings_alone_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_checks((Check("a", "warning", "meh", "wait"), Check("b", "note", "so", "or so")), False) == 0
    assert capsys.readouterr().out.endswith("2 checks: 1 warning, 1 note\n")
    assert print_checks((Check("a", "ok", "fine"),), False) == 0
    assert capsys.readouterr().out.endswith("1 check: all well\n")


def test_wrong_variables_are_errors_and_the_rest_is_still_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("VTCORE_PLUGIN", "x")
    monkeypatch.setenv("VTCORE_MAX_NUM_SEQS", "many")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    found = report(capsys, 3)
    errors = [check for check in found["checks"] if check["status"] == "error"]
    assert {check["remedy"] for check in errors} >= {"mend or unset VTCORE_PLUGIN"}
    assert {check["name"] for check in errors} == {"environment"}
    assert (tmp_path / "xdg" / "vtcore").is_dir()
    monkeypatch.delenv("VTCORE_PLUGIN")
    [error] = [check for check in report(capsys, 3)["checks"] if check["status"] == "error"]
    assert "VTCORE_MAX_NUM_SEQS: 'many'" in error["message"]


def test_a_cache_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("VTCORE_CACHE_DIR", str(file))
    [error] = [check for check in report(capsys, 3)["checks"] if check["status"] == "error"]
    assert error["name"] == "cache"
    assert str(file) in error["message"]


def test_a_folder_of_kernels_of_ones_own_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    [error] = [check for check in report(capsys, 3)["checks"] if check["status"] == "error"]
    assert (error["name"], error["remedy"]) == ("cache", "set or unset TRITON_CACHE_DIR")
    assert str(tmp_path / "file") in error["message"]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    assert report(capsys, 0)["errors"] == 0


def test_a_wrong_flag_is_the_command_lines_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--plugin-owner", "x"]) == 2
    assert capsys.readouterr().err.startswith("error[VT201]: --plugin-owner")


def test_the_doctor_works_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules.update(torch=None)\n"
        "from vtcore.cli.main import main\nsys.exit(main(['doctor', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    [torch_row] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "torch"]
    assert torch_row["status"] == "error"
    assert "torch is installed and cannot be imported: ModuleNotFoundError" in torch_row["message"]
    assert torch_row["remedy"] == f"{sys.executable} -m pip install --force-reinstall torch"


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
def test_a_gpu_that_this_torch_cannot_use_is_an_error_unless_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    [gpu] = [check for check in diagnose(UserOptions(), root=tmp_path) if check.name == "gpu"]
    assert gpu.status == "error"
    assert "built without CUDA" in gpu.message
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [gpu] = [check for check in diagnose(UserOptions(), root=tmp_path) if check.name == "gpu"]
    assert gpu.status == "note"
