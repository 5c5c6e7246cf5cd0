"""Geometries of random-weight checkpoints for tests and demos, and of the releases for benchmarks.

Does not: write files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "small": {
        "hidden_size": 320,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 96,
    },
}

_PUBLISHED_VOCAB = 248320
_PUBLISHED_POSITIONS = 262144
_PUBLISHED: Mapping[str, Mapping[str, int]] = {
    "35b-a3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}
"""Source: config.json of Qwen3.5-35B-A3B."""


def checkpoint_config(size: str, vocab_size: int) -> Mapping[str, Any]:
    """config.json of the released, nested form; its weights have the fused layout.

    Args:
        size: "tiny" (about 1M parameters) or "small" (30M), for a few thousand tokens.
        vocab_size: Rows of the embedding.

    Raises:
        ValueError: No such size.
    """
    if size not in _SIZES:
        raise ValueError(f"qwen3_5_moe offers the sizes {', '.join(_SIZES)}, not {size!r}")
    return _config(_SIZES[size], vocab_size, 32768)


def published_config(size: str) -> Mapping[str, Any]:
    """config.json of a release.

    Args:
        size: "35b-a3b".

    Raises:
        ValueError: No such size.
    """
    if size not in _PUBLISHED:
        raise ValueError(f"qwen3_5_moe knows the release {', '.join(_PUBLISHED)}, not {size!r}")
    return _config(_PUBLISHED[size], _PUBLISHED_VOCAB, _PUBLISHED_POSITIONS)


def _config(geometry: Mapping[str, int], vocab_size: int, positions: int) -> Mapping[str, Any]:
    layers = geometry["num_hidden_layers"]
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "vocab_size": vocab_size,
            **geometry,
            "hidden_act": "silu",
            "attention_bias": False,
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)],
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": positions,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
            },
        },
    }
