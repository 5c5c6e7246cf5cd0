"""Geometries of random-weight checkpoints for tests and demos.

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
    layers = _SIZES[size]["num_hidden_layers"]
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "vocab_size": vocab_size,
            **_SIZES[size],
            "hidden_act": "silu",
            "attention_bias": False,
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)],
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 32768,
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
