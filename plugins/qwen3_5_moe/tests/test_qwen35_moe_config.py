"""Every form of config.json is read, and every unserved value is refused by name."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from qwen35_moe_oracle import tiny_text_config
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch
from vtcore_qwen3_5_moe.config import parse_moe_config

from vtcore.errors import CheckpointError
from vtcore.plugins import build_registry

TEXT = tiny_text_config()


def test_nested_and_flat_forms_are_the_same_model() -> None:
    assert parse_moe_config({"model_type": "qwen3_5_moe", "text_config": TEXT}) == parse_moe_config(TEXT)


def test_absent_fields_take_the_class_defaults_of_transformers() -> None:
    from transformers import Qwen3_5MoeTextConfig

    theirs, ours = Qwen3_5MoeTextConfig(), parse_moe_config({"text_config": {}})
    assert (ours.num_experts, ours.experts_per_token) == (theirs.num_experts, theirs.num_experts_per_tok)
    assert ours.expert_size == theirs.moe_intermediate_size
    assert ours.shared_size == theirs.shared_expert_intermediate_size
    text = ours.text
    assert (text.hidden_size, text.num_layers) == (theirs.hidden_size, theirs.num_hidden_layers)
    assert (text.num_heads, text.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (text.vocab_size, text.head_dim) == (theirs.vocab_size, theirs.head_dim)
    assert text.layer_types == tuple(theirs.layer_types)


def test_the_tied_flag_of_the_outer_level_is_read() -> None:
    text = {key: value for key, value in TEXT.items() if key != "tie_word_embeddings"}
    assert parse_moe_config({"text_config": text, "tie_word_embeddings": True}).text.tied is True
    assert parse_moe_config({"text_config": text}).text.tied is None


@pytest.mark.parametrize("value", [None, 0, 12288, "nonsense"])
def test_a_meaningless_intermediate_size_is_ignored(value: object) -> None:
    assert parse_moe_config({**TEXT, "intermediate_size": value}) == parse_moe_config(TEXT)


@pytest.mark.parametrize(
    "fields",
    [
        {"mlp_only_layers": []},
        {"mlp_only_layers": None},
        {"decoder_sparse_step": 1},
        {"norm_topk_prob": True},
        {"scoring_func": "softmax"},
        {"routed_scaling_factor": 1.0},
        {"n_group": 1, "topk_group": 1},
        {"router_aux_loss_coef": 0.001, "output_router_logits": True},
    ],
)
def test_fields_that_say_what_is_done_anyway_are_accepted(fields: dict[str, Any]) -> None:
    assert parse_moe_config({**TEXT, **fields}) == parse_moe_config(TEXT)


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"num_experts": 0}, "num_experts", "0"),
        ({"num_experts": None}, "num_experts", "None"),
        ({"num_experts": 8.0}, "num_experts", "8.0"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok", "9"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok", "0"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size", "0"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size", "0"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step", "2"),
        ({"decoder_sparse_step": True}, "decoder_sparse_step", "True"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers", "[0]"),
        ({"norm_topk_prob": False}, "norm_topk_prob", "False"),
        ({"scoring_func": "sigmoid"}, "scoring_func", "'sigmoid'"),
        ({"routed_scaling_factor": 2.5}, "routed_scaling_factor", "2.5"),
        ({"n_group": 4}, "n_group", "4"),
        ({"topk_group": 2}, "topk_group", "2"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu'"),
        ({"attention_bias": True}, "attention_bias", "True"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type", "'yarn'"),
        ({"text_config": []}, "text_config", "[]"),
    ],
)
def test_an_unserved_value_is_refused_with_field_and_value(
    fields: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        Qwen35MoeArch({**TEXT, **fields})
    assert f"{field} is {value}," in str(caught.value)


@pytest.mark.parametrize(("seqs", "budget"), [(1, 4096), (31, 4096), (32, 8192), (256, 8192)])
def test_the_token_budget_doubles_from_32_sequences_on(seqs: int, budget: int) -> None:
    assert Qwen35MoeArch(TEXT).default_token_budget(seqs) == budget


@pytest.mark.parametrize(("size", "low", "high"), [("tiny", 0.6, 1.6), ("small", 25, 36)])
def test_checkpoint_sizes_have_about_the_promised_parameters(size: str, low: float, high: float) -> None:
    arch = Qwen35MoeArch(Qwen35MoeArch.checkpoint_config(size, 2048))
    assert low * 1e6 < sum(prod(rule.shape) for rule in arch.param_rules(())) < high * 1e6


def test_an_unknown_checkpoint_size_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tiny, small"):
        Qwen35MoeArch.checkpoint_config("bench", 100)


def test_its_architectures_are_transformers_names_and_none_of_the_dense_plugin() -> None:
    import transformers

    registry = build_registry()
    mine, dense = registry.archs["qwen3_5_moe"].entry, registry.archs["qwen3_5_dense"].entry
    assert not set(mine.architectures) & set(dense.architectures)
    assert all(getattr(transformers, name) for name in mine.architectures)
    configs = (transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeTextConfig)
    assert mine.model_types == tuple(config.model_type for config in configs)
