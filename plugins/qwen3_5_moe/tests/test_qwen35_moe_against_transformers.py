"""The model equals transformers' Qwen3.5 mixture of experts on random weights, in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen35_moe_oracle import LAYOUTS, build_oracle, oracle_logits, stored_as, tiny_text_config
from torch import Tensor
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch

from vtcore.testing.exact_casts import float32_casts_lifted
from vtcore.testing.model_harness import Harness, Prefill, Uniform, build_model

GEOMETRIES: dict[str, dict[str, Any]] = {
    "8 experts, 2 per token": {},
    "one expert per token, tied": {"num_experts_per_tok": 1, "tie_word_embeddings": True},
    "every expert for each token": {"num_experts": 4, "num_experts_per_tok": 4},
    "a single expert": {"num_experts": 1, "num_experts_per_tok": 1},
    "odd numbers": {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 9,
        "shared_expert_intermediate_size": 5,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
    },
}


def make(
    geometry: str, layout: str = "fused", dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Any, Harness]:
    config = tiny_text_config(**GEOMETRIES[geometry])
    oracle = build_oracle(config, dtype)
    arch = Qwen35MoeArch(config)
    model = build_model(arch, stored_as(layout, oracle.state_dict()), dtype)
    return oracle, Harness(arch, model, dtype, **options)


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(found: Tensor, wanted: Tensor, relative: float = 1e-8) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= relative * wanted.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 63, 64, 65, 130, 200])
def test_one_prefill_equals_transformers_in_float64(layout: str, length: int) -> None:
    oracle, harness = make("8 experts, 2 per token", layout)
    ids = random_ids(length)
    assert_close(harness.run_sequence(ids, [length]), oracle_logits(oracle, ids))


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("layout", ["fused", "per expert"])
@pytest.mark.parametrize("prompt", [1, 2, 4, 70])
def test_prefill_then_decode_equals_transformers_in_float64(geometry: str, layout: str, prompt: int) -> None:
    oracle, harness = make(geometry, layout)
    ids = random_ids(prompt + 20)
    assert_close(harness.run_sequence(ids, [prompt]), oracle_logits(oracle, ids))


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_a_prompt_cut_anywhere_gives_the_same_logits(cut: int) -> None:
    oracle, harness = make("8 experts, 2 per token")
    ids = random_ids(130)
    assert_close(harness.run_sequence(ids, [cut, 130 - cut]), oracle_logits(oracle, ids), 1e-10)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_equal_chunks_of_any_length_give_the_same_logits(chunk: int) -> None:
    oracle, harness = make("odd numbers")
    ids = random_ids(70)
    chunks = [min(chunk, 70 - start) for start in range(0, 70, chunk)]
    assert_close(harness.run_sequence(ids, chunks), oracle_logits(oracle, ids), 1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_tokens_equal_transformers_generate(layout: str) -> None:
    oracle, harness = make("8 experts, 2 per token", layout)
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


def test_a_mixed_step_equals_each_row_alone() -> None:
    oracle, harness = make("8 experts, 2 per token", columns=3)
    known = [random_ids(n, seed=n) for n in (5, 17, 70)]
    rows = []
    for ids in known:
        rows.append(harness.admit())
        harness.step(prefill=[Prefill(rows[-1], ids)])
    verify = [random_ids(3, seed=50 + i) for i in range(3)]
    first = random_ids(67, 90)
    logits = harness.logits(
        uniform=[Uniform(row, ids, 3) for row, ids in zip(rows, verify, strict=True)],
        prefill=[Prefill(harness.admit(), first)],
    )
    for index in range(3):
        wanted = oracle_logits(oracle, known[index] + verify[index])[-3:]
        assert_close(logits[3 * index : 3 * index + 3], wanted, 1e-10)
    assert_close(logits[9:], oracle_logits(oracle, first), 1e-10)
