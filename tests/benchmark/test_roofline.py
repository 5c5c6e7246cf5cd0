"""The roofline of published shapes, from the plugins' own data, against figures worked out by hand.

The figures: weights once for a step, keys and values read, states read and written, at 4.3 TB/s; products,
causal attention and chunked gated DeltaNet at 790 TFLOP/s.
"""

from __future__ import annotations

from typing import Any

import pytest

from vtcore.benchmark.roofline import Ceilings, ModelWork, expected_groups, model_work
from vtcore.interfaces.model_arch import CacheContext
from vtcore.plugins import build_registry

H200 = Ceilings(bytes_per_s=4.3e12, flops_per_s=790e12)


def config_of(model: str) -> dict[str, Any]:
    hidden, layers, heads, kv_heads, value_heads, inner, tied = {
        "0.8b": (1024, 24, 8, 2, 16, 3584, True),
        "9b": (4096, 32, 16, 4, 32, 12288, False),
        "27b": (5120, 64, 24, 4, 48, 17408, False),
        "35b-a3b": (2048, 40, 16, 2, 32, None, False),
    }[model]
    text = {
        "vocab_size": 248_320,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 262_144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }
    if inner is not None:
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {**text, "model_type": "qwen3_5_text", "intermediate_size": inner},
        }
    experts = {
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {**text, **experts, "model_type": "qwen3_5_moe_text"},
    }


def work_of(model: str) -> ModelWork:
    _, arch = build_registry().build_arch(config_of(model))
    return model_work(arch, (), arch.cache_specs(CacheContext(block_size=32, dtype="bfloat16")), "bfloat16")


@pytest.mark.parametrize(
    ("model", "batch", "tokens_per_s"),
    [
        ("0.8b", 1, 2763),
        ("0.8b", 32, 43_574),
        ("0.8b", 256, 74_735),
        ("9b", 1, 269),
        ("9b", 32, 6797),
        ("9b", 256, 21_653),
        ("27b", 1, 83),
        ("27b", 32, 2176),
        ("27b", 256, 7476),
        ("35b-a3b", 1, 712),
        ("35b-a3b", 32, 2765),
        ("35b-a3b", 256, 10_324),
    ],
)
def test_decoding_at_1024_tokens_of_context(model: str, batch: int, tokens_per_s: float) -> None:
    seconds = work_of(model).decode_step(batch, 1024).seconds(H200)
    assert batch / seconds == pytest.approx(tokens_per_s, rel=0.02)


@pytest.mark.parametrize(
    ("model", "length", "ms"),
    [
        ("0.8b", 1024, 1.4),
        ("0.8b", 8192, 13.0),
        ("9b", 1024, 18.2),
        ("9b", 8192, 151),
        ("27b", 1024, 64),
        ("27b", 8192, 526),
        ("35b-a3b", 1024, 15.9),
        ("35b-a3b", 8192, 59),
    ],
)
def test_the_time_to_a_first_token(model: str, length: int, ms: float) -> None:
    seconds = work_of(model).prefill_seconds(1, length, 8192, H200)
    assert 1000 * seconds == pytest.approx(ms, rel=0.03)


def test_bytes_and_flops_of_a_decode_step() -> None:
    work = work_of("9b")
    step = work.decode_step(32, 1024)
    kv, state, conv = 32 * 1024, 48 * 2**20, 1152 * 1024
    assert work.cache_bytes(1024) == 1024 * kv + 2 * (state + conv)
    assert step.num_bytes == pytest.approx(15.87e9 + 32 * work.cache_bytes(1024), rel=0.002)
    assert step.flops == pytest.approx(32 * (2 * 15.87e9 / 2 + 1024 * 4 * 16 * 256 * 8), rel=0.002)


def test_a_counted_number_of_experts_replaces_the_expected_one() -> None:
    work = work_of("35b-a3b")
    expected = expected_groups(256, 8, 32)
    assert expected == pytest.approx(163.3, rel=0.001)
    assert work.weight_bytes(32, expected) == pytest.approx(work.weight_bytes(32))
    few, many = work.weight_bytes(32, 64), work.weight_bytes(32, 128)
    expert_bytes = 3 * 2048 * 512 * 2 * 40
    assert many - few == 64 * expert_bytes


def test_prompts_that_fill_several_steps_read_the_weights_in_each() -> None:
    slow_memory = Ceilings(bytes_per_s=1e6, flops_per_s=1e30)
    work = work_of("9b")
    one, nine = (work.prefill_seconds(count, 1024, 8192, slow_memory) for count in (1, 9))
    assert nine == pytest.approx(2 * one)


def test_a_closed_loop_takes_a_round_for_each_set_of_clients_and_one_for_the_rest() -> None:
    work = work_of("9b")
    whole = work.closed_loop_seconds(32, 16, 1024, 128, 8192, H200)
    assert whole == pytest.approx(2 * work.generate_seconds(16, 1024, 128, 8192, H200))
    more = work.closed_loop_seconds(33, 16, 1024, 128, 8192, H200)
    assert more - whole == pytest.approx(work.generate_seconds(1, 1024, 128, 8192, H200))


def test_an_arch_that_tells_no_costs_still_has_a_bound() -> None:
    text = {"vocab_size": 16, "model_type": "toy", "parts": ["whole", "state"]}
    from vtcore.testing.schedules import toy_registry

    _, arch = toy_registry().build_arch(text)
    specs = arch.cache_specs(CacheContext(block_size=4, dtype="float32"))
    step = model_work(arch, (), specs, "float32").decode_step(2, 8)
    assert step.num_bytes > 0
