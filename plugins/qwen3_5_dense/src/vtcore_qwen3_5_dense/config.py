"""The numbers of a Qwen3.5 text model, read from any form of its config.json.

Does not: read files or know tensor names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from vtcore.errors import CheckpointError

LINEAR = "linear_attention"
FULL = "full_attention"

ACTIVATIONS: Mapping[str, str] = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}
"""Gate functions of the gated norm by `output_gate_type`; swish is another name of silu."""


_MOST = 2**31 - 1
_MOST_LAYERS = 10_000
"""Far above any model: a damaged count must not make lists that fill the memory."""
_LARGEST = sys.float_info.max
_SHOWN_CHARS = 80


@frozen(kw_only=True)
class Qwen35Config:
    """Geometry of the text model. Widths in elements, counts in heads or layers.

    Args:
        layer_types: "linear_attention" or "full_attention" per layer.
        rotary_dim: Leading elements of each head that are rotated, even.
        output_gate: "silu" or "sigmoid", the gate function of the gated norm.
        tied: Whether the head is the embedding; None when the config does not say.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    conv_kernel: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    max_position_embeddings: int
    output_gate: str
    tied: bool | None

    @property
    def key_rows(self) -> int:
        """Channels of all key heads of one linear layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_rows(self) -> int:
        """Channels of all value heads of one linear layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass the convolution: q, k and v."""
        return 2 * self.key_rows + self.value_rows


def text_section(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's part of a nested or flat config.json.

    Raises:
        CheckpointError: `text_config` is not an object.
    """
    section = hf_config.get("text_config", hf_config)
    if not isinstance(section, Mapping):
        raise refuse_field("text_config", section, "an object")
    return section


def parse_config(hf_config: Mapping[str, Any]) -> Qwen35Config:
    """Read nested and flat forms; absent fields take the class defaults of the released models.

    Source of defaults: transformers, Qwen3_5TextConfig.

    Args:
        hf_config: The parsed config.json, outer form.

    Raises:
        CheckpointError: A field has a wrong type or range, or a value that is not served.
    """
    text = text_section(hf_config)
    num_layers = read_count(text, "num_hidden_layers", 32, most=_MOST_LAYERS)
    heads, kv_heads = read_count(text, "num_attention_heads", 16), read_count(text, "num_key_value_heads", 4)
    if heads % kv_heads:
        raise refuse_field("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    key_heads = read_count(text, "linear_num_key_heads", 16)
    value_heads = read_count(text, "linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise refuse_field(
            "linear_num_value_heads", value_heads, f"a multiple of linear_num_key_heads ({key_heads})"
        )
    _refuse_unserved(text)
    head_dim = read_count(text, "head_dim", 256)
    theta, rotary_dim = _rope(text, head_dim)
    return Qwen35Config(
        vocab_size=read_count(text, "vocab_size", 248320),
        hidden_size=read_count(text, "hidden_size", 4096),
        intermediate_size=read_count(text, "intermediate_size", 12288),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=read_count(text, "linear_key_head_dim", 128),
        linear_value_head_dim=read_count(text, "linear_value_head_dim", 128),
        conv_kernel=read_count(text, "linear_conv_kernel_dim", 4, least=2),
        layer_types=_layer_types(text, num_layers),
        rms_norm_eps=_positive(text, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        rotary_dim=rotary_dim,
        max_position_embeddings=read_count(text, "max_position_embeddings", 32768),
        output_gate=_output_gate(text),
        tied=_tied(hf_config, text),
    )


def refuse_field(field: str, value: object, wanted: str) -> CheckpointError:
    """The error for a field of config.json whose value is not served; `wanted` says which values are."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return CheckpointError(f"config.json: {field} is {shown}, but this model is served only with {wanted}")


def read_count(
    section: Mapping[str, Any], field: str, default: int, least: int = 1, most: int = _MOST
) -> int:
    """An integer field.

    Raises:
        CheckpointError: It is not an integer from `least` to `most`.
    """
    value = section.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise refuse_field(field, value, f"integers from {least} to {most}")
    return value


def _positive(section: Mapping[str, Any], field: str, default: float) -> float:
    value = section.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise refuse_field(field, value, "finite numbers above 0")
    return float(value)


def _refuse_unserved(text: Mapping[str, Any]) -> None:
    if text.get("attn_output_gate", True) is not True:
        raise refuse_field("attn_output_gate", text["attn_output_gate"], "true")
    if text.get("attention_bias", False) is not False:
        raise refuse_field("attention_bias", text["attention_bias"], "false")
    if text.get("hidden_act", "silu") not in ("silu", "swish"):
        raise refuse_field("hidden_act", text["hidden_act"], "'silu' (or its other name 'swish')")
    if text.get("num_experts") not in (None, 0):
        raise refuse_field("num_experts", text["num_experts"], "models without experts")


def _output_gate(text: Mapping[str, Any]) -> str:
    name = text.get("output_gate_type") or "silu"
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise refuse_field("output_gate_type", name, "'silu', 'swish' or 'sigmoid'")
    return ACTIVATIONS[name]


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    types = text.get("layer_types")
    if types is None:
        interval = read_count(text, "full_attention_interval", 4)
        return tuple(LINEAR if (i + 1) % interval else FULL for i in range(num_layers))
    if not isinstance(types, list | tuple) or len(types) != num_layers:
        raise refuse_field("layer_types", types, f"lists of num_hidden_layers ({num_layers}) entries")
    for name in types:
        if name not in (LINEAR, FULL):
            raise refuse_field("layer_types", name, f"entries {LINEAR!r} and {FULL!r}")
    return tuple(types)


def _rope(text: Mapping[str, Any], head_dim: int) -> tuple[float, int]:
    nested: dict[str, Any] = {}
    # `rope_scaling` is where writers before transformers 5 put what `rope_parameters` holds today.
    for field in ("rope_scaling", "rope_parameters"):
        section = text.get(field)
        if section is not None and not isinstance(section, Mapping):
            raise refuse_field(field, section, "an object")
        # One object per layer type is another nested form; the linear layers have no positions.
        of_full = (section or {}).get(FULL, section or {})
        if not isinstance(of_full, Mapping):
            raise refuse_field(f"{field}.{FULL}", of_full, "an object")
        nested.update(of_full)
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise refuse_field(
            "rope_parameters.rope_type", kind, "'default' (no position scaling, YaRN included)"
        )
    merged = {**text, **nested}
    theta = _positive(merged, "rope_theta", 1e7)
    factor = _positive(merged, "partial_rotary_factor", 0.25)
    # Above 1 it is refused, and may be more than an integer can be made of.
    rotary_dim = int(head_dim * min(factor, 1.0))
    if factor > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise refuse_field(
            "partial_rotary_factor", factor, f"factors that give head_dim ({head_dim}) an even part"
        )
    return theta, rotary_dim


def _tied(hf_config: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    tied = text.get("tie_word_embeddings", hf_config.get("tie_word_embeddings"))
    if tied is not None and not isinstance(tied, bool):
        raise refuse_field("tie_word_embeddings", tied, "true or false")
    return tied
