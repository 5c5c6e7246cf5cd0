"""transformers' own Mistral as the reference: random weights, float64, eager attention.

Does not: change transformers, or download anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from vtcore.testing.exact_casts import float32_casts_lifted

VOCAB = 48


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A two-layer config.json whose window is shorter than most prompts."""
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": VOCAB,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "sliding_window": 5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    }
    return {**config, **changes}


def build_oracle(config: dict[str, Any]) -> Any:
    """A MistralForCausalLM with norms away from identity, lively logits and exact rotary frequencies."""
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**config, attn_implementation="eager")).double().eval()
    width = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name == "lm_head.weight" or (model.config.tie_word_embeddings and "embed" in name):
                parameter.copy_(torch.randn_like(parameter) * 4 * width**-0.5)
            else:
                gain = 1.0 if "embed" in name else parameter.shape[1] ** -0.5
                parameter.copy_(torch.randn_like(parameter) * gain)
    rotary, head_dim = model.model.rotary_emb, model.config.head_dim
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    rotary.inv_freq = model.config.rope_parameters["rope_theta"] ** -exponent
    return model


@torch.inference_mode()
def oracle_logits(model: Any, ids: list[int]) -> Tensor:
    """[T, V] of one forward without a cache."""
    with float32_casts_lifted():
        logits: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Token ids below VOCAB."""
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
