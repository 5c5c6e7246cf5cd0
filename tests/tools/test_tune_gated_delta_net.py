"""The tuner of recurrent kernels tries what can be planned, over steps that the op's reference takes too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import tune_gated_delta_net as tool
from attrs import asdict
from vtcore_qwen3_5_dense.ops.gated_delta_net import naive
from vtcore_qwen3_5_dense.ops.gated_delta_net.plan import Shape, parse_entry

from vtcore.cli.make_checkpoint import make_config

RELEASED = Shape(dtype="bfloat16", key_heads=16, value_heads=32, key_width=128, value_width=128)
TINY = Shape(dtype="bfloat16", key_heads=1, value_heads=2, key_width=16, value_width=32)


@pytest.mark.parametrize(("arch", "size"), [("qwen3_5_dense", "9b"), ("qwen3_5_moe", "35b-a3b")])
def test_the_shape_is_that_of_the_release(arch: str, size: str, tmp_path: Path) -> None:
    make_config(arch, size, tmp_path / "model")
    assert tool.shape_of(tmp_path / "model") == RELEASED


@pytest.mark.parametrize(("kernel", "rows"), list(tool.kinds()))
def test_every_tile_that_is_tried_could_be_an_entry(kernel: str, rows: int) -> None:
    tiles = list(tool.candidates(kernel, RELEASED))
    assert len(set(tiles)) == len(tiles) > 4
    for tile in tiles:
        entry = {**asdict(RELEASED), **asdict(tile), "kernel": kernel, "rows": rows, "us": 1, "rule_us": 1}
        assert parse_entry(entry) == (RELEASED, kernel, rows, tile)


def test_all_tiles_are_compiled_before_they_are_measured() -> None:
    launches = tool.launches_of([RELEASED])
    by_kernel = {
        name: {launch.constants["BV"] for launch in launches if launch.kernel.__name__ == name}
        for name in ("step_kernel", "scan_kernel")
    }
    for kernel, columns in by_kernel.items():
        assert columns == {tile.columns for tile in tool.candidates(kernel.partition("_")[0], RELEASED)}


@pytest.mark.parametrize("kernel", ["step", "scan"])
def test_a_case_is_a_step_of_the_op(kernel: str) -> None:
    case = tool.make_case(TINY, kernel, 2, "cpu")
    before = case.cache["state"].clone()
    out = naive.gated_delta_net(case.projected, case.layer, case.cache, case.steps[0])
    assert out.shape == (2 if kernel == "step" else 2 * 1024, 64)
    assert out.isfinite().all()
    changed = (case.cache["state"] != before).flatten(1).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [1, 2]
    slots = torch.cat([step.pools[0].write_slots.flatten() for step in case.steps])
    assert len(slots.unique()) == len(slots), "two steps share a state"


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert tool.main(["model", "--output", str(tmp_path / "out.json")]) == 1
    assert "sees none here" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
