"""The model equals transformers' Qwen3.5 on random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from qwen35_oracle import build_oracle, oracle_logits, tiny_text_config
from torch import Tensor
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch

from vtcore.testing.exact_casts import float32_casts_lifted
from vtcore.testing.model_harness import Harness, Prefill, Uniform, build_model

GEOMETRIES: dict[str, dict[str, Any]] = {
    "more value heads": {},
    "equal heads, tied": {
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 8,
        "tie_word_embeddings": True,
    },
    "odd head counts": {
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 9,
        "linear_conv_kernel_dim": 3,
    },
    "other layer order": {
        "num_hidden_layers": 3,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 5,
    },
}


def make(geometry: str, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Harness]:
    config = tiny_text_config(**GEOMETRIES[geometry])
    oracle = build_oracle(config, dtype)
    arch = Qwen35DenseArch(config)
    model = build_model(arch, oracle.state_dict(), dtype)
    return oracle, Harness(arch, model, dtype, **options)


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_close(found: Tensor, wanted: Tensor, relative: float = 1e-8) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= relative * wanted.abs().max()


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 63, 64, 65, 130, 300])
def test_one_prefill_equals_transformers_in_float64(geometry: str, length: int) -> None:
    oracle, harness = make(geometry)
    ids = random_ids(length)
    assert_close(harness.run_sequence(ids, [length]), oracle_logits(oracle, ids))


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("prompt", [1, 2, 4, 70])
def test_prefill_then_decode_equals_transformers_in_float64(geometry: str, prompt: int) -> None:
    oracle, harness = make(geometry)
    ids = random_ids(prompt + 20)
    assert_close(harness.run_sequence(ids, [prompt]), oracle_logits(oracle, ids))


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_a_prompt_cut_anywhere_gives_the_same_logits(cut: int) -> None:
    oracle, harness = make("more value heads")
    ids = random_ids(130)
    assert_close(harness.run_sequence(ids, [cut, 130 - cut]), oracle_logits(oracle, ids), 1e-10)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_equal_chunks_of_any_length_give_the_same_logits(chunk: int) -> None:
    oracle, harness = make("odd head counts")
    ids = random_ids(70)
    chunks = [min(chunk, 70 - start) for start in range(0, 70, chunk)]
    assert_close(harness.run_sequence(ids, chunks), oracle_logits(oracle, ids), 1e-10)


def test_greedy_tokens_equal_transformers_generate() -> None:
    oracle, harness = make("more value heads")
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


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_float32_logits_are_within_5e_3(geometry: str) -> None:
    oracle, harness = make(geometry, torch.float32)
    ids = random_ids(200)
    with torch.inference_mode():
        wanted = oracle(torch.tensor([ids]), use_cache=False).logits[0]
    assert (harness.run_sequence(ids, [100, 64]) - wanted).abs().max() < 5e-3


def test_bfloat16_prefers_the_tokens_of_float64_up_to_a_margin() -> None:
    oracle, _ = make("more value heads")
    ids = random_ids(120)
    wanted = oracle_logits(oracle, ids)
    arch = Qwen35DenseArch(tiny_text_config())
    model = build_model(arch, oracle.state_dict(), torch.bfloat16)
    harness = Harness(arch, model, torch.bfloat16)
    found = harness.run_sequence(ids, [60])
    assert found.dtype == torch.bfloat16
    chosen = wanted.gather(1, found.argmax(-1, keepdim=True))[:, 0]
    assert (wanted.max(-1).values - chosen).max() < 0.5


def test_captured_residuals_equal_transformers_hidden_states() -> None:
    config = tiny_text_config()
    oracle = build_oracle(config)
    arch = Qwen35DenseArch(config)
    model = build_model(arch, oracle.state_dict(), torch.float64, aux_layers=(2, -1, 0))
    harness = Harness(arch, model, torch.float64)
    ids = random_ids(12)
    out = harness.step(prefill=[Prefill(harness.admit(), ids)])
    with float32_casts_lifted(), torch.inference_mode():
        states = oracle.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    wanted = torch.cat([states.hidden_states[i + 1][0] for i in (2, -1, 0)], -1)
    assert out.aux is not None
    assert_close(out.aux, wanted)
    assert_close(out.hidden, states.last_hidden_state[0])


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
