"""How many aten calls a decode step may cost on the host, per layer and beside the layers."""

from __future__ import annotations

import pytest
import torch
from qwen35_oracle import build_oracle, tiny_text_config

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams
from vtcore.loader import load_core
from vtcore.testing.call_counter import CallCounter

GDN, ATTENTION = "linear_attention", "full_attention"


def calls_of_a_decode_step(kinds: list[str], batch: int) -> CallCounter:
    """A whole greedy step of the engine: schedule, forward, head, sampling, commit."""
    config = tiny_text_config(num_hidden_layers=len(kinds), layer_types=kinds)
    loaded = load_core(
        UserOptions(dtype="float32", max_model_len=64),
        hf_config=config,
        tensors=build_oracle(config, torch.float32).state_dict(),
        environment=Environment(),
    )
    for index in range(batch):
        request = EngineRequest(
            id=str(index), prompt_token_ids=(1, 2, 3), params=RowParams(temperature=0.0), max_tokens=20
        )
        loaded.core.inbox.append(AddRequest(request))
    for _ in range(3):
        loaded.core.step()
    with CallCounter() as counter:
        updates = loaded.core.step()
    assert len(updates) == batch
    loaded.close()
    return counter


@pytest.mark.usefixtures("plain_empty")
@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step_stays_within_its_calls(batch: int) -> None:
    two = calls_of_a_decode_step([GDN, GDN], batch)
    four = calls_of_a_decode_step([GDN] * 4, batch)
    one_more = calls_of_a_decode_step([GDN, GDN, ATTENTION], batch)
    two_more = calls_of_a_decode_step([GDN, GDN, ATTENTION, ATTENTION], batch)
    per_gdn = (four.kernels - two.kernels) / 2
    assert per_gdn <= 45
    assert two_more.kernels - one_more.kernels <= 40
    # Views run no kernel; they are bounded apart so that none of the work hides there.
    assert (four.views - two.views) / 2 <= 15
    assert two.kernels - 2 * per_gdn <= 80
