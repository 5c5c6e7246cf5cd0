"""transformers' own Qwen3.5 as the reference, with its internal float32 casts lifted for float64.

Does not: change transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

from vtcore.testing.exact_casts import float32_casts_lifted


def tiny_text_config(**changes: Any) -> dict[str, Any]:
    """A four-layer text config with more value heads than key heads."""
    config: dict[str, Any] = {
        "model_type": "qwen3_5_text",
        "vocab_size": 96,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    }
    config.update(changes)
    return config


def build_oracle(text_config: dict[str, Any], dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A random Qwen3_5ForCausalLM with norms away from identity and exact rotary frequencies."""
    torch.manual_seed(seed)
    config = hf.Qwen3_5TextConfig(**text_config)
    config._attn_implementation = "eager"
    model = hf.Qwen3_5ForCausalLM(config).eval().to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.dim() == 2 and "embed" not in name:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[1] ** -0.5)
        model.lm_head.weight.mul_(3.0)
        model.get_input_embeddings().weight.copy_(
            torch.randn_like(model.get_input_embeddings().weight)
            if not config.tie_word_embeddings
            else torch.randn_like(model.lm_head.weight) * 3 * config.hidden_size**-0.5
        )
    rotary = model.model.rotary_emb
    width = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
    model = model.to(dtype)
    rotary.inv_freq = config.rope_parameters["rope_theta"] ** -exponent
    if dtype != torch.float64:
        rotary.inv_freq = rotary.inv_freq.to(torch.float32)
    return model


@torch.inference_mode()
def oracle_logits(model: Any, ids: list[int]) -> Tensor:
    """[T, V] of one uncached forward."""
    with float32_casts_lifted():
        return model(torch.tensor([ids]), use_cache=False).logits[0]
