"""transformers' own Qwen3.5 mixture of experts as the reference, and its tensors in other layouts.

Does not: change transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf

from vtcore.testing.exact_casts import float32_casts_lifted

LAYOUTS = ("fused", "per expert", "mixed by layer", "mixed within layers")


def tiny_text_config(**changes: Any) -> dict[str, Any]:
    """A four-layer text config: 8 experts, 2 per token, more value heads than key heads."""
    config: dict[str, Any] = {
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 96,
        "hidden_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
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
    """A random Qwen3_5MoeForCausalLM, eager throughout, norms away from identity, rotation in float64."""
    torch.manual_seed(seed)
    config = hf.Qwen3_5MoeTextConfig(**text_config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = hf.Qwen3_5MoeForCausalLM(config).eval().to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.dim() in (2, 3) and "conv1d" not in name and "embed" not in name:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
        model.lm_head.weight.mul_(3.0)
        embedding = model.get_input_embeddings().weight
        std = 3 * config.hidden_size**-0.5 if config.tie_word_embeddings else 1.0
        embedding.copy_(torch.randn_like(embedding) * std)
    assert model.config._experts_implementation == "eager"
    width = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
    model = model.to(dtype)
    frequencies = config.rope_parameters["rope_theta"] ** -exponent
    model.model.rotary_emb.inv_freq = frequencies if dtype == torch.float64 else frequencies.to(torch.float32)
    return model


@torch.inference_mode()
def oracle_logits(model: Any, ids: list[int]) -> Tensor:
    """[T, V] of one uncached forward."""
    with float32_casts_lifted():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def stored_as(layout: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a fused checkpoint under the names of one of `LAYOUTS`."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else 0
        is_split = {
            "fused": False,
            "per expert": True,
            "mixed by layer": layer % 2 == 0,
            "mixed within layers": name.endswith("down_proj") == (layer % 2 == 0),
        }[layout]
        if ".mlp.experts." not in name or not is_split:
            stored[name] = tensor
            continue
        prefix = name.rsplit(".", 1)[0]
        for expert, matrix in enumerate(tensor):
            if name.endswith("gate_up_proj"):
                gate, up = matrix.chunk(2)
                stored[f"{prefix}.{expert}.gate_proj.weight"] = gate.clone()
                stored[f"{prefix}.{expert}.up_proj.weight"] = up.clone()
            else:
                stored[f"{prefix}.{expert}.down_proj.weight"] = matrix.clone()
    return stored
