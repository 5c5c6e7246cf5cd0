"""Every form of config.json is read, and every unserved value is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from vtcore_qwen3_5_dense.arch import Qwen35DenseArch
from vtcore_qwen3_5_dense.config import parse_config

from vtcore.errors import CheckpointError

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


def test_nested_and_flat_forms_are_the_same_model() -> None:
    assert parse_config({"model_type": "qwen3_5", "text_config": TEXT}) == parse_config(TEXT)


def test_absent_fields_take_the_released_defaults() -> None:
    config = parse_config({})
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (248320, 4096, 32)
    assert (config.rotary_dim, config.rope_theta, config.rms_norm_eps) == (64, 1e7, 1e-6)
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"][:2] == [3, 7]


def test_layer_types_win_over_the_interval() -> None:
    kinds = ["full_attention"] + 4 * ["linear_attention"]
    assert parse_config({**TEXT, "layer_types": kinds, "full_attention_interval": 2}).layer_types == tuple(
        kinds
    )
    by_interval = parse_config({**TEXT, "full_attention_interval": 2}).layer_types
    assert [kind == "full_attention" for kind in by_interval] == [False, True, False, True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}},
        {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
        {"rope_theta": 5e5, "rope_scaling": {"type": "mrope", "partial_rotary_factor": 0.5}},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_rope_parameters_are_found_wherever_they_stand(fields: dict[str, Any]) -> None:
    config = parse_config({**TEXT, **fields})
    assert (config.rope_theta, config.rotary_dim) == (5e5, 16)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, None), (True, None, True), (None, True, True), (True, False, False), (False, True, True)],
)
def test_the_tied_flag_is_read_inside_first_then_outside(
    outer: bool | None, inner: bool | None, tied: bool | None
) -> None:
    text = TEXT if inner is None else {**TEXT, "tie_word_embeddings": inner}
    config = {"text_config": text} if outer is None else {"text_config": text, "tie_word_embeddings": outer}
    assert parse_config(config).tied is tied


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"hidden_size": 0}, "hidden_size", "0"),
        ({"hidden_size": "64"}, "hidden_size", "'64'"),
        ({"vocab_size": True}, "vocab_size", "True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "3"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads", "3"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim", "1"),
        ({"attn_output_gate": False}, "attn_output_gate", "False"),
        ({"attention_bias": True}, "attention_bias", "True"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu'"),
        ({"num_experts": 8}, "num_experts", "8"),
        ({"output_gate_type": "tanh"}, "output_gate_type", "'tanh'"),
        ({"layer_types": ["full_attention"]}, "layer_types", "['full_attention']"),
        ({"layer_types": 5 * ["sliding_attention"]}, "layer_types", "'sliding_attention'"),
        ({"full_attention_interval": 0}, "full_attention_interval", "0"),
        ({"rms_norm_eps": 0}, "rms_norm_eps", "0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type", "'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_parameters.rope_type", "'linear'"),
        ({"rope_parameters": 3}, "rope_parameters", "3"),
        ({"rope_theta": -1.0}, "rope_theta", "-1.0"),
        ({"rope_theta": float("nan")}, "rope_theta", "nan"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor", "0.1"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor", "1.5"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "1"),
        ({"text_config": []}, "text_config", "[]"),
    ],
)
def test_an_unserved_value_is_refused_with_field_and_value(
    fields: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        Qwen35DenseArch({**TEXT, **fields})
    assert f"{field} is {value}," in str(caught.value)


@pytest.mark.parametrize(
    ("size", "low", "high"), [("tiny", 0.6, 1.6), ("small", 25, 36), ("bench", 100, 140)]
)
def test_checkpoint_sizes_have_about_the_promised_parameters(size: str, low: float, high: float) -> None:
    arch = Qwen35DenseArch(Qwen35DenseArch.checkpoint_config(size, 2048))
    count = sum(_size(rule.shape) for rule in arch.param_rules(()))
    assert low * 1e6 < count < high * 1e6
    assert arch.config.linear_num_value_heads != arch.config.linear_num_key_heads


def test_an_unknown_checkpoint_size_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tiny, small, bench"):
        Qwen35DenseArch.checkpoint_config("huge", 100)


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
