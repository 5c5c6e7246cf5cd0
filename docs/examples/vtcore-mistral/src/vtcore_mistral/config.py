"""The numbers of a Mistral model, read from its config.json.

Does not: read files or know tensor names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from vtcore.errors import CheckpointError

_MOST = 2**31 - 1
_MOST_LAYERS = 10_000
"""Far above any model: a damaged count must not make lists that fill the memory."""
_SHOWN_CHARS = 80


@frozen(kw_only=True)
class MistralConfig:
    """Geometry of the model. Widths in elements, counts in heads or layers.

    Args:
        sliding_window: Positions a query sees, its own included; None sees all.
        tied: Whether the head is the embedding.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    sliding_window: int | None
    tied: bool


def parse_config(hf_config: Mapping[str, Any]) -> MistralConfig:
    """Read a config.json; absent fields take the defaults of the class that wrote it.

    An absent `sliding_window` is 4096, null is none.
    Source of defaults: transformers, MistralConfig.

    Raises:
        CheckpointError: A field has a wrong type or range, or a value that is not served.
    """
    _refuse_unserved(hf_config)
    heads = _count(hf_config, "num_attention_heads", 32)
    kv_heads = _count(hf_config, "num_key_value_heads", 8, null=heads)
    if heads % kv_heads:
        raise refuse_field("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    hidden = _count(hf_config, "hidden_size", 4096)
    head_dim = _count(hf_config, "head_dim", None, null=hidden // heads)
    if head_dim % 2:
        raise refuse_field("head_dim", head_dim, "even widths, for rotary embeddings turn pairs")
    window = None
    if hf_config.get("sliding_window", 4096) is not None:
        window = _count(hf_config, "sliding_window", 4096)
    tied = hf_config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise refuse_field("tie_word_embeddings", tied, "true or false")
    return MistralConfig(
        vocab_size=_count(hf_config, "vocab_size", 32000),
        hidden_size=hidden,
        intermediate_size=_count(hf_config, "intermediate_size", 14336),
        num_layers=_count(hf_config, "num_hidden_layers", 32, most=_MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_positive(hf_config, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(hf_config),
        max_position_embeddings=_count(hf_config, "max_position_embeddings", 131072),
        sliding_window=window,
        tied=tied,
    )


def refuse_field(field: str, value: object, wanted: str) -> CheckpointError:
    """The error for a field of config.json whose value is not served; `wanted` says which values are."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return CheckpointError(f"config.json: {field} is {shown}, but Mistral is served only with {wanted}")


def _count(
    section: Mapping[str, Any], field: str, default: int | None, *, null: int | None = None, most: int = _MOST
) -> int:
    """An integer from 1 to `most`; `null` is what null stands for, where it may stand."""
    value = section.get(field, default)
    if value is None and null is not None:
        value = null
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise refuse_field(field, value, f"integers from 1 to {most}")
    return value


def _positive(section: Mapping[str, Any], field: str, default: float) -> float:
    value = section.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise refuse_field(field, value, "finite numbers above 0")
    return float(value)


def _refuse_unserved(hf_config: Mapping[str, Any]) -> None:
    if hf_config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise refuse_field("hidden_act", hf_config["hidden_act"], "'silu' (or its other name 'swish')")
    for field in ("attention_bias", "mlp_bias"):
        if hf_config.get(field, False) is not False:
            raise refuse_field(field, hf_config[field], "false")
    for field in ("layer_types", "quantization_config"):
        if hf_config.get(field) is not None:
            raise refuse_field(field, hf_config[field], "null: all layers alike, none quantized")


def _rope_theta(hf_config: Mapping[str, Any]) -> float:
    nested: dict[str, Any] = {}
    # `rope_scaling` is where writers before transformers 5 put what `rope_parameters` holds today.
    for field in ("rope_scaling", "rope_parameters"):
        section = hf_config.get(field)
        if section is not None and not isinstance(section, Mapping):
            raise refuse_field(field, section, "an object")
        nested.update(section or {})
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        raise refuse_field("rope_parameters.rope_type", kind, "'default' (no scaling of positions)")
    return _positive({**hf_config, **nested}, "rope_theta", 1e4)
