"""All kernels that a released Qwen3.5 can launch compile for an H200 and keep to what its blocks have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_config
from vtcore.config.options import UserOptions
from vtcore.gpu_start import record_launches
from vtcore.loader import plan_core
from vtcore.ops.launch import Launch
from vtcore.testing.kernel_compile import check_compiled

RELEASES = [("qwen3_5_dense", "0.8b"), ("qwen3_5_dense", "27b"), ("qwen3_5_moe", "35b-a3b")]
WITH_TENSOR_CORES = ("prefill_kernel", "scan_kernel", "output_kernel", "tile_kernel")


def has_wgmma(launch: Launch) -> bool:
    # An expert's tile of fewer than 64 rows is too small for a warpgroup's instruction.
    rows = launch.constants.get("ROWS", 64)
    return launch.kernel.__name__ in WITH_TENSOR_CORES and rows >= 64


def spills_by_choice(launch: Launch) -> bool:
    # Two warps keep a chunk's triangle in fewer registers than it wants, and still take two thirds of the
    # time that four take, which do not spill (bench/notes.md).
    return launch.kernel.__name__ == "solve_kernel"


@pytest.mark.parametrize(("arch", "size"), RELEASES)
def test_kernels_of_a_release_fit_an_h200(arch: str, size: str, tmp_path: Path) -> None:
    make_config(arch, size, tmp_path / "model")
    planned = plan_core(
        UserOptions(
            model=str(tmp_path / "model"),
            load_format="dummy",
            device="cuda",
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=64,
            max_num_batched_tokens=4096,
        )
    )
    reports = check_compiled(record_launches(planned), wgmma=has_wgmma, may_spill=spills_by_choice)
    kernels = {report.kernel for report in reports}
    assert {"decode_kernel", "combine_kernel", "step_kernel", "draw_kernel"} <= kernels


def test_warmup_fills_the_cache_without_weights_and_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    monkeypatch.setenv("VTCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    command = ["warmup", str(tmp_path / "model"), "--target", "sm_90", "--max-num-seqs", "2", "--json"]
    from triton import knobs

    with monkeypatch.context() as own:
        # Set in triton and not in the environment, which later tests of this process would see.
        own.setattr(knobs.cache, "dir", str(tmp_path / "cache" / "triton"))
        assert main(command) == 0
        first = json.loads(capsys.readouterr().out)
        assert first["built"] > 10
        assert first["directory"] == str(tmp_path / "cache" / "triton")
        assert list((tmp_path / "cache" / "triton").iterdir())
        assert main(command) == 0
        second = json.loads(capsys.readouterr().out)
    assert second["built"] == 0
    assert second["cached"] == first["built"] + first["cached"]
