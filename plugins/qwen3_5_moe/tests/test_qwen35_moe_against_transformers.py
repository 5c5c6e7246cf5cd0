"""What the conformance kit does not ask: transformers' own generation, from every layout of the experts."""

from __future__ import annotations

import pytest
import torch
from qwen35_moe_oracle import LAYOUTS, build_oracle, oracle_logits, stored_as, tiny_text_config
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch

from vtcore.testing.exact_casts import float32_casts_lifted
from vtcore.testing.model_harness import Harness, Prefill, Uniform, build_model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_greedy_tokens_equal_transformers(layout: str) -> None:
    config = tiny_text_config()
    oracle, arch = build_oracle(config), Qwen35MoeArch(config)
    model = build_model(arch, stored_as(layout, oracle.state_dict()), torch.float64)
    harness = Harness(arch, model, torch.float64)
    ids = torch.randint(0, 96, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    wanted = oracle_logits(oracle, ids)
    assert (harness.run_sequence(ids, [130]) - wanted).abs().max() <= 1e-8 * wanted.abs().max()
    row = harness.admit()
    token = int(harness.logits(prefill=[Prefill(row, ids[:9])])[-1].argmax())
    found = [token]
    for _ in range(29):
        token = int(harness.logits(uniform=[Uniform(row, [token], 1)])[-1].argmax())
        found.append(token)
    with float32_casts_lifted(), torch.inference_mode():
        prompt = torch.tensor([ids[:9]])
        # Without a mask, generate takes prompt tokens equal to the pad id for padding.
        wanted = oracle.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, pad_token_id=0
        )
    assert found == wanted[0, 9:].tolist()
