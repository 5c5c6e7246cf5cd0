"""Every form of config.json is read, and what is not served is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mistral_oracle import tiny_config
from vtcore_mistral.arch import MistralArch
from vtcore_mistral.config import parse_config
from vtcore_mistral.spec import SlidingWindowSpec

from vtcore import LLM
from vtcore.errors import CheckpointError, UnsupportedFeatureError
from vtcore.interfaces.model_arch import CacheContext
from vtcore.kv_cache.specs import FullAttentionSpec

CONTEXT = CacheContext(block_size=32, dtype="bfloat16")


def test_absent_fields_are_those_of_the_first_release() -> None:
    config = parse_config({"architectures": ["MistralForCausalLM"]})
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (4096, 32, 8, 128)
    assert (config.sliding_window, config.rope_theta, config.tied) == (4096, 1e4, False)


@pytest.mark.parametrize(
    ("changes", "field", "wanted"),
    [
        ({"sliding_window": None}, "sliding_window", None),
        ({"sliding_window": 7}, "sliding_window", 7),
        ({"head_dim": None, "hidden_size": 48}, "head_dim", 8),
        ({"num_key_value_heads": None}, "num_kv_heads", 6),
        ({"rope_parameters": None, "rope_theta": 1e6}, "rope_theta", 1e6),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta", 5e5),
        ({"rope_parameters": None, "rope_scaling": None}, "rope_theta", 1e4),
        ({"tie_word_embeddings": True}, "tied", True),
        ({"quantization_config": None, "layer_types": None}, "num_layers", 2),
    ],
)
def test_a_field_is_read_in_every_form(changes: dict[str, Any], field: str, wanted: object) -> None:
    assert getattr(parse_config(tiny_config(**changes)), field) == wanted


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": True}, "sliding_window"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"hidden_size": "40"}, "hidden_size"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_what_is_not_served_is_refused_with_field_and_value(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(
        CheckpointError, match=rf"^config\.json: {field} is .+, but Mistral is served only with"
    ):
        MistralArch(tiny_config(**changes))


def test_the_window_decides_the_kind_of_cache() -> None:
    (windowed,) = MistralArch(tiny_config()).cache_specs(CONTEXT)
    (whole,) = MistralArch(tiny_config(sliding_window=None)).cache_specs(CONTEXT)
    assert isinstance(windowed, SlidingWindowSpec)
    assert isinstance(whole, FullAttentionSpec)
    assert windowed.layers == whole.layers == ("layers.0", "layers.1")


def test_a_stored_copy_of_a_tied_head_is_skipped_and_an_untied_head_is_not() -> None:
    assert MistralArch(tiny_config(tie_word_embeddings=True)).is_skipped("lm_head.weight")
    assert not MistralArch(tiny_config()).is_skipped("lm_head.weight")


def test_a_quantized_checkpoint_is_refused_before_its_weights_are_looked_at(tmp_path: Path) -> None:
    config = tiny_config(quantization_config={"quant_method": "awq"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedFeatureError, match="is quantized"):
        LLM(tmp_path, skip_tokenizer_init=True)
