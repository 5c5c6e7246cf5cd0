"""Geometries of random-weight checkpoints for tests and demos, and of the releases for benchmarks.

Does not: write files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "small": {
        "hidden_size": 320,
        "intermediate_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "bench": {
        "hidden_size": 640,
        "intermediate_size": 1856,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}

_PUBLISHED_VOCAB = 248320
_PUBLISHED_POSITIONS = 262144
_HEADS = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
_PUBLISHED: Mapping[str, Mapping[str, int]] = {
    size: {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "linear_num_value_heads": value_heads,
        **_HEADS,
    }
    for size, hidden, inner, layers, heads, kv_heads, value_heads in (
        ("0.8b", 1024, 3584, 24, 8, 2, 16),
        ("2b", 2048, 6144, 24, 8, 2, 16),
        ("4b", 2560, 9216, 32, 16, 4, 32),
        ("9b", 4096, 12288, 32, 16, 4, 32),
        ("27b", 5120, 17408, 64, 24, 4, 48),
    )
}
"""Source: config.json of Qwen3.5-0.8B, -2B, -4B, -9B and -27B."""
_PUBLISHED_TIED = ("0.8b", "2b", "4b")


def checkpoint_config(size: str, vocab_size: int) -> Mapping[str, Any]:
    """config.json of the released, nested form.

    Args:
        size: "tiny" (about 1M parameters), "small" (30M) or "bench" (120M), for a few thousand tokens.
        vocab_size: Rows of the embedding.

    Raises:
        ValueError: No such size.
    """
    if size not in _SIZES:
        raise ValueError(f"qwen3_5_dense offers the sizes {', '.join(_SIZES)}, not {size!r}")
    # Random weights under a tied head repeat their last token; the demo's size shows more variety without.
    return _config(_SIZES[size], vocab_size, 32768, tied=size != "tiny")


def published_config(size: str) -> Mapping[str, Any]:
    """config.json of a release.

    Args:
        size: "0.8b", "2b", "4b", "9b" or "27b".

    Raises:
        ValueError: No such size.
    """
    if size not in _PUBLISHED:
        raise ValueError(f"qwen3_5_dense knows the releases {', '.join(_PUBLISHED)}, not {size!r}")
    tied = size in _PUBLISHED_TIED
    return _config(_PUBLISHED[size], _PUBLISHED_VOCAB, _PUBLISHED_POSITIONS, tied)


def _config(geometry: Mapping[str, int], vocab_size: int, positions: int, tied: bool) -> Mapping[str, Any]:
    layers = geometry["num_hidden_layers"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": tied,
        "text_config": {
            "model_type": "qwen3_5_text",
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
            "tie_word_embeddings": tied,
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
