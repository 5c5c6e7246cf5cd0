"""What the conformance kit does not ask: transformers' own generation, its float32, the config's gates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch

from vtcore.testing.exact_casts import float32_casts_lifted
from vtcore.testing.model_harness import Harness, Prefill, Uniform, build_model


def make(dtype: torch.dtype = torch.float64, **changes: Any) -> tuple[Any, Harness]:
    config = tiny_text_config(**changes)
    oracle = build_oracle(config, dtype)
    arch = Qwen35DenseArch(config)
    return oracle, Harness(arch, build_model(arch, oracle.state_dict(), dtype), dtype)


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_greedy_tokens_equal_transformers_generate() -> None:
    oracle, harness = make()
    prompt = random_ids(9)
    row = harness.admit()
    token = int(harness.logits(prefill=[Prefill(row, prompt)])[-1].argmax())
    found = [token]
    for _ in range(29):
        token = int(harness.logits(uniform=[Uniform(row, [token], 1)])[-1].argmax())
        found.append(token)
    with float32_casts_lifted(), torch.inference_mode():
        ids = torch.tensor([prompt])
        # Without a mask, generate takes prompt tokens equal to the pad id for padding.
        wanted = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, pad_token_id=0
        )
    assert found == wanted[0, 9:].tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"linear_num_value_heads": 2, "linear_value_head_dim": 8, "tie_word_embeddings": True},
        {"num_attention_heads": 5, "num_key_value_heads": 1, "linear_num_value_heads": 10},
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
    ],
)
def test_float32_logits_are_within_5e_3_of_transformers_own(changes: dict[str, Any]) -> None:
    oracle, harness = make(torch.float32, **changes)
    ids = random_ids(200)
    with torch.inference_mode():
        wanted = oracle(torch.tensor([ids]), use_cache=False).logits[0]
    assert (harness.run_sequence(ids, [100, 64]) - wanted).abs().max() < 5e-3


def test_bfloat16_prefers_the_tokens_of_float64_up_to_a_margin() -> None:
    config = tiny_text_config()
    oracle, ids = build_oracle(config), random_ids(120)
    arch = Qwen35DenseArch(config)
    harness = Harness(arch, build_model(arch, oracle.state_dict(), torch.bfloat16), torch.bfloat16)
    found, wanted = harness.run_sequence(ids, [60]), oracle_logits(oracle, ids)
    assert found.dtype == torch.bfloat16
    chosen = wanted.gather(1, found.argmax(-1, keepdim=True))[:, 0]
    assert (wanted.max(-1).values - chosen).max() < 0.5


def test_sigmoid_gates_differ_from_silu_gates() -> None:
    config = tiny_text_config()
    tensors = build_oracle(config).state_dict()
    ids = random_ids(6)
    outputs = []
    for gate in ("silu", "swish", "sigmoid"):
        arch = Qwen35DenseArch({**config, "output_gate_type": gate})
        harness = Harness(arch, build_model(arch, tensors, torch.float64), torch.float64)
        outputs.append(harness.run_sequence(ids, [4]))
    assert torch.equal(outputs[0], outputs[1])
    assert (outputs[0] - outputs[2]).abs().max() > 1e-2
