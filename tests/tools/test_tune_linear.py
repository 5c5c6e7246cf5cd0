"""The tuner tries what can be planned, and what it wrote covers the projections of every release."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("triton")

import json

import tune_linear
from attrs import asdict

from vtcore.cli.make_checkpoint import make_config
from vtcore.ops.linear.plan import OP, ROWS, ByRow, parse_entry
from vtcore.ops.tuned import DEFAULT_DEVICE, file_name

WRITTEN = files("vtcore.ops").joinpath("tuned", file_name(DEFAULT_DEVICE)).read_text("utf-8")
RELEASES = [("qwen3_5_dense", size) for size in ("0.8b", "2b", "4b", "9b", "27b")] + [
    ("qwen3_5_moe", "35b-a3b")
]


@pytest.mark.parametrize(("arch", "size"), RELEASES)
def test_every_projection_of_a_release_is_tuned(arch: str, size: str, tmp_path: Path) -> None:
    make_config(arch, size, tmp_path / "model")
    shapes = set(tune_linear.matrices(str(tmp_path / "model")))
    measured = {(entry["n"], entry["k"], entry["m"]) for entry in json.loads(WRITTEN)["entries"][OP]}
    assert len(shapes) > 4
    assert {(*shape, rows) for shape in shapes for rows in ROWS} <= measured


def test_the_packaged_file_is_as_the_tuner_writes_it() -> None:
    assert tune_linear.shown(json.loads(WRITTEN), tune_linear.OP) == WRITTEN


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("width", "depth"), [(64, 64), (257, 2048), (1024, 3584), (248320, 5120)])
def test_every_candidate_could_be_an_entry(rows: int, width: int, depth: int) -> None:
    plans = list(tune_linear.candidates(rows, width, depth))
    assert plans
    assert len(set(plans)) == len(plans) < 40
    for plan in plans:
        entry = {"dtype": "bfloat16", "n": width, "k": depth, "m": rows, "us": 1, "library_us": 2}
        kernel = "rows" if isinstance(plan, ByRow) else "tiles"
        assert plan is not None
        assert parse_entry(entry | {"kernel": kernel, "config": asdict(plan)}) == plan


def test_what_was_measured_is_written_with_the_gpu_and_its_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_linear.torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(tune_linear, "made_on", lambda: {"clocks": "1980 MHz"})
    tune_linear.write_tuned(tmp_path / "new" / "out.json", "op", [{"us": 2}, {"us": 3}], 4.25e6)
    assert json.loads((tmp_path / "new" / "out.json").read_text()) == {
        "device": "Some GPU",
        "made": {"clocks": "1980 MHz", "read_tb_s": 4.25},
        "entries": {"op": [{"us": 2}, {"us": 3}]},
    }


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if tune_linear.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert tune_linear.main(["model", "--output", str(tmp_path / "out.json")]) == 1
    assert "sees none here" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
