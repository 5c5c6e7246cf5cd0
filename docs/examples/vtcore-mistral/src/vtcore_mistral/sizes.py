"""Geometries of random-weight checkpoints for tests, demos and benchmarks.

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
        # Shorter than most prompts, so that the smallest model shows a window at work.
        "sliding_window": 24,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": 256,
    },
}


def checkpoint_config(size: str, vocab_size: int) -> Mapping[str, Any]:
    """config.json as the released models have it.

    Args:
        size: "tiny" (about 1M parameters) or "small" (about 30M), for a few thousand tokens.
        vocab_size: Rows of the embedding.

    Raises:
        ValueError: No such size.
    """
    if size not in _SIZES:
        raise ValueError(f"mistral offers the sizes {', '.join(_SIZES)}, not {size!r}")
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": vocab_size,
        **_SIZES[size],
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
