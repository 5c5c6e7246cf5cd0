"""`vtcore warmup`: what it refuses; what it compiles is tested with the kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vtcore import gpu_start
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_config
from vtcore.ops import compiled, tuned
from vtcore.ops.compiled import Compiled


@pytest.fixture
def model(tmp_path: Path) -> str:
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "sm_91"], "no GPU target 'sm_91'; did you mean 'sm_90'"),
        (["--target", "hopper"], "no GPU target 'hopper'"),
        (
            ["--target", "sm_80", "--device-name", "NVIDIA H200"],
            "--device-name: 'NVIDIA H200' is sm_90, not the sm_80 of --target; give a GPU of sm_80, or",
        ),
        (["--device-name", "NVIDIA H200"], "--device-name: 'NVIDIA H200' without --target"),
        (["--target", "sm_90", "--device", "cpu"], "'cpu' has no kernels to compile"),
        (["--target", "sm_90", "--dtype", "float64"], "float64"),
    ],
)
def test_a_wrong_target_or_device_is_one_sentence(
    model: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmup", model, *flags]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "device", "plans", "sentence"),
    [
        (["--target", "sm_90"], "NVIDIA H200", "NVIDIA H200", "for sm_90, as measured on NVIDIA H200"),
        (["--target", "sm_80"], "sm_80", None, "for sm_80, by rules: nothing was measured on sm_80"),
        (
            ["--target", "sm_90", "--device-name", "NVIDIA H100 PCIe"],
            "NVIDIA H100 PCIe",
            None,
            "by rules: nothing was measured on NVIDIA H100 PCIe",
        ),
    ],
)
def test_launches_are_planned_as_on_the_target(
    model: str,
    tmp_path: Path,
    flags: list[str],
    device: str,
    plans: str | None,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What compiles them is tested with the kernels."""
    seen = []

    def record(planned: object) -> list[object]:
        seen.append(tuned.device_name())
        return []

    def compile_none(launches: list[object], *, target: str) -> Compiled:
        return Compiled((), 0, 0, 0.0, "somewhere")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_start, "record_launches", record)
    monkeypatch.setattr(compiled, "compile_launches", compile_none)
    monkeypatch.setenv("VTCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    assert main(["warmup", model, *flags]) == 0
    assert sentence in capsys.readouterr().out
    assert main(["warmup", model, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"] == plans
    assert seen == [device, device]
    assert tuned.device_name() == tuned.DEFAULT_DEVICE


def test_without_a_gpu_it_asks_for_a_target(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["warmup", model]) != 0
    assert "as --target sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "text", "said"),
    [
        (
            "compile_launches",
            "2 of 7 kernels are kept",
            "interrupted: 2 of 7 kernels are kept; the same command goes on from there",
        ),
        ("record_launches", "", "interrupted: nothing is compiled"),
    ],
)
def test_ctrl_c_says_what_is_kept(
    model: str,
    broken: str,
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt(text)

    monkeypatch.setattr(gpu_start, "record_launches", lambda planned: [])
    monkeypatch.setattr(gpu_start if broken == "record_launches" else compiled, broken, interrupted)
    monkeypatch.setenv("VTCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    assert main(["warmup", model, "--target", "sm_90"]) == 130
    assert capsys.readouterr() == ("", f"{said}\n")
