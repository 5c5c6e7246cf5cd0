"""The tuner of experts tries what can be planned and run, and says so where it cannot measure."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

import tune_sparse_moe
from attrs import asdict
from vtcore_qwen3_5_moe.ops.sparse_moe.plan import TOKENS, ByRow, Shape, parse_entry, rule

from vtcore.cli.make_checkpoint import make_config

RELEASED = Shape(dtype="bfloat16", hidden=2048, inner=512, experts=256, top_k=8, has_shared=True)


def test_the_shape_is_that_of_the_release(tmp_path: Path) -> None:
    make_config("qwen3_5_moe", "35b-a3b", tmp_path / "model")
    assert tune_sparse_moe.shape_of(tmp_path / "model") == RELEASED


@pytest.mark.parametrize("tokens", TOKENS)
def test_every_plan_that_is_tried_could_be_an_entry(tokens: int) -> None:
    families = list(tune_sparse_moe.families(tokens, RELEASED))
    plans = [plan for family in families for plan in family]
    assert len(set(plans)) == len(plans) > 1
    assert any(isinstance(plan, type(rule(tokens, RELEASED))) for plan in plans)
    for plan in plans:
        entry = asdict(RELEASED) | {
            "tokens": tokens,
            "kernel": "rows" if isinstance(plan, ByRow) else "tiles",
            "first": asdict(plan.first),
            "second": asdict(plan.second),
            "us": 1.0,
            "rule_us": 2.0,
        }
        assert parse_entry(entry) == (RELEASED, tokens, plan)


def test_what_is_measured_is_compiled_before() -> None:
    """Each plan launches the same kernels for data as without: none is compiled between two measurements."""
    recorded = tune_sparse_moe.launches_of(RELEASED, (1, 256))
    kernels = {launch.kernel.__name__ for launch in recorded}
    assert {"row_in_kernel", "row_out_kernel", "tile_kernel", "sum_kernel"} <= kernels


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if tune_sparse_moe.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert tune_sparse_moe.main(["model", "--output", str(tmp_path / "out.json")]) == 1
    assert "sees none here" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
