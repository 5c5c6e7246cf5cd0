"""Which kernels a start compiles is found out without data; where an op reads some, the start goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_config
from vtcore.config.options import UserOptions
from vtcore.internals import Internals
from vtcore.loader import plan_core
from vtcore.planning import PlannedCore

pytest.importorskip("triton", reason="kernels need triton")

READING = ["qk_norm_rope_write", "paged_attention", "gated_delta_net"]
"""Ops whose naive forms wait for values."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_config("qwen3_5_dense", "tiny", tmp_path / "model")
    return tmp_path / "model"


def planned(model: Path, **changes: Any) -> PlannedCore:
    options = {"max_model_len": 64, "max_num_seqs": 3, "max_num_batched_tokens": 64} | changes
    return plan_core(UserOptions(model=str(model), load_format="dummy", device="cuda", **options))


def variants(found: PlannedCore) -> set[tuple[Any, ...]]:
    from vtcore.gpu_start import record_launches

    return {(own.kernel, tuple(sorted(own.constants.items()))) for own in record_launches(found)}


def test_a_shorter_model_length_needs_no_other_kernels(model: Path) -> None:
    """What memory leaves room for is known only after kernels were listed."""
    assert variants(planned(model, max_model_len=64)) >= variants(planned(model, max_model_len=48))


@pytest.mark.parametrize("op", READING)
def test_an_op_that_reads_values_is_named(model: Path, op: str, caplog: pytest.LogCaptureFixture) -> None:
    from vtcore.gpu_start import RecordError, compile_for_device, record_launches

    found = planned(model, op_overrides={op: "naive"})
    with pytest.raises(RecordError, match=r"qwen3_5_dense cannot be listed, for some op reads values"):
        record_launches(found)
    with caplog.at_level(logging.WARNING):
        compile_for_device(found, Internals())
    assert "cannot be listed" in caplog.text


def test_warmup_refuses_what_it_cannot_list(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["warmup", str(model), "--target", "sm_90", "--op-overrides", '{"paged_attention": "naive"}']
    assert main(argv) != 0
    assert "cannot be listed" in capsys.readouterr().err
