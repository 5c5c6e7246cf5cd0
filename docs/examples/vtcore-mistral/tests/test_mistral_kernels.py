"""On a GPU the model needs no kernel of its own: those of the core's ops are all listed before it serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import test_mistral_conformance as conformance
from mistral_oracle import tiny_config

from vtcore.config.options import UserOptions
from vtcore.loader import plan_core


def test_a_start_can_list_every_kernel(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="kernels need triton")
    from vtcore.gpu_start import record_launches

    (tmp_path / "config.json").write_text(json.dumps(dict(tiny_config(sliding_window=7))))
    planned = plan_core(
        UserOptions(
            model=str(tmp_path), load_format="dummy", device="cuda", max_model_len=64, max_num_seqs=3
        ),
        registry=conformance.TestMistral.registry(),
    )
    kernels = {launch.kernel.__name__ for launch in record_launches(planned)}
    assert {"_write_kernel", "decode_kernel", "prefill_kernel"} <= kernels
