"""`vtcore warmup`: what it refuses; what it compiles is tested with the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_config


@pytest.fixture
def model(tmp_path: Path) -> str:
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "sm_91"], "no GPU target 'sm_91'; did you mean 'sm_90'"),
        (["--target", "hopper"], "no GPU target 'hopper'"),
        (["--target", "sm_90", "--device", "cpu"], "'cpu' has no kernels to compile"),
        (["--target", "sm_90", "--dtype", "float64"], "float64"),
    ],
)
def test_a_wrong_target_or_device_is_one_sentence(
    model: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmup", model, *flags]) != 0
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_asks_for_a_target(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["warmup", model]) != 0
    assert "as --target sm_90" in capsys.readouterr().err
