"""Which checkpoint tensors make up each parameter, as data.

Fused parameters keep their components apart (q, k, v, z are parts of their own), so that each can be sliced
by itself. Does not: read or convert tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from vtcore.interfaces.model_arch import ParamPart, ParamRule
from vtcore_qwen3_5_dense.config import LINEAR, Qwen35Config

RELEASED_PREFIX = "model.language_model."
HEAD = "lm_head.weight"
PREFIXES = (RELEASED_PREFIX, "model.", "language_model.model.", "")
"""What may stand before `layers.N.`; the first is the released form, the second text-only re-saves."""

SKIPPED_PREFIXES = (
    "model.visual.",
    "visual.",
    "mtp.",
    "model.mtp.",
    "model.language_model.mtp.",
    "language_model.mtp.",
)
"""The vision tower and the multi-token-prediction head, which this architecture does not run."""


def is_skipped(name: str) -> bool:
    """Whether a tensor is known and unused: vision, the MTP head, stored rotary frequencies."""
    return name.startswith(SKIPPED_PREFIXES) or name.endswith("rotary_emb.inv_freq")


def find_prefix(names: Collection[str]) -> str:
    """What stands before `embed_tokens.weight`; the released form when no name tells."""
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    return RELEASED_PREFIX


def is_tied(config: Qwen35Config, names: Collection[str]) -> bool:
    """Whether the head is the embedding: as the config says, else by the absence of a stored head."""
    if config.tied is not None:
        return config.tied
    return bool(names) and HEAD not in names


def build_rules(
    config: Qwen35Config,
    names: Collection[str],
    feed_forward_rules: Callable[[str, str], Iterable[ParamRule]],
) -> tuple[ParamRule, ...]:
    """All rules of the model, in model order.

    Args:
        config: Parsed config; where it does not say whether the head is tied, the names tell.
        names: Tensors of the checkpoint; empty stands for the released form.
        feed_forward_rules: (parameter prefix "layers.0.", checkpoint prefix) -> rules of what follows the
            mixer of the layer.
    """
    prefix = find_prefix(names)
    hidden = config.hidden_size
    rules = [_plain("embed_tokens", f"{prefix}embed_tokens.weight", (config.vocab_size, hidden))]
    for index, kind in enumerate(config.layer_types):
        name, source = f"layers.{index}.", f"{prefix}layers.{index}."
        rules.append(_norm(f"{name}input_norm", f"{source}input_layernorm.weight", hidden))
        if kind == LINEAR:
            rules += linear_attention_rules(config, name, source)
        else:
            rules += full_attention_rules(config, name, source)
        rules.append(_norm(f"{name}post_norm", f"{source}post_attention_layernorm.weight", hidden))
        rules += feed_forward_rules(name, source)
    rules.append(_norm("norm", f"{prefix}norm.weight", hidden))
    if not is_tied(config, names):
        rules.append(_plain("lm_head", HEAD, (config.vocab_size, hidden)))
    return tuple(rules)


def linear_attention_rules(config: Qwen35Config, name: str, source: str) -> Iterator[ParamRule]:
    """Rules of one gated DeltaNet mixer.

    Args:
        config: Parsed config.
        name: Parameter prefix, "layers.0.".
        source: Checkpoint prefix, "model.language_model.layers.0.".
    """
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    source += "linear_attn."
    qkv_shape = (config.conv_channels, hidden)
    in_proj = (
        *_qkv_parts(config, f"{source}in_proj_qkv.weight", qkv_shape, None),
        ParamPart(component="z", rows=config.value_rows, source=f"{source}in_proj_z.weight"),
        ParamPart(component="b", rows=heads, source=f"{source}in_proj_b.weight"),
        ParamPart(component="a", rows=heads, source=f"{source}in_proj_a.weight"),
    )
    yield _fused(f"{name}gdn.in_proj", in_proj, hidden)
    conv_shape = (config.conv_channels, 1, config.conv_kernel)
    conv = _qkv_parts(config, f"{source}conv1d.weight", conv_shape, _drop_middle)
    yield _fused(f"{name}gdn.conv", conv, config.conv_kernel, dtype="acc")
    yield _plain(f"{name}gdn.A_log", f"{source}A_log", (heads,), dtype="acc")
    yield _plain(f"{name}gdn.dt_bias", f"{source}dt_bias", (heads,), dtype="acc")
    yield _norm(f"{name}gdn.norm", f"{source}norm.weight", config.linear_value_head_dim)
    yield _plain(f"{name}gdn.out_proj", f"{source}out_proj.weight", (hidden, config.value_rows), shard_axis=1)


def full_attention_rules(config: Qwen35Config, name: str, source: str) -> Iterator[ParamRule]:
    """Rules of one gated attention mixer; arguments as in `linear_attention_rules`.

    The stored q_proj holds D query rows and D gate rows for each head in turn; here they are two components.
    """
    hidden, width = config.hidden_size, config.head_dim
    rows, kv_rows = config.num_heads * width, config.num_kv_heads * width
    source += "self_attn."
    q_proj, q_shape = f"{source}q_proj.weight", (2 * rows, hidden)
    parts = (
        ParamPart(
            component="q",
            rows=rows,
            source=q_proj,
            source_shape=q_shape,
            transform=partial(_half_of_heads, width=width, half=0),
        ),
        ParamPart(component="k", rows=kv_rows, source=f"{source}k_proj.weight"),
        ParamPart(component="v", rows=kv_rows, source=f"{source}v_proj.weight"),
        ParamPart(
            component="gate",
            rows=rows,
            source=q_proj,
            source_shape=q_shape,
            transform=partial(_half_of_heads, width=width, half=1),
        ),
    )
    yield _fused(f"{name}attn.in_proj", parts, hidden)
    yield _norm(f"{name}attn.q_norm", f"{source}q_norm.weight", width)
    yield _norm(f"{name}attn.k_norm", f"{source}k_norm.weight", width)
    yield _plain(f"{name}attn.out_proj", f"{source}o_proj.weight", (hidden, rows), shard_axis=1)


def swiglu_rules(hidden: int, inner: int, name: str, source: str) -> Iterator[ParamRule]:
    """Rules of one SwiGLU block.

    Args:
        hidden, inner: Widths outside and inside.
        name: Parameter prefix, "layers.0.mlp.".
        source: Checkpoint prefix, "model.language_model.layers.0.mlp.".
    """
    parts = (
        ParamPart(component="gate", rows=inner, source=f"{source}gate_proj.weight"),
        ParamPart(component="up", rows=inner, source=f"{source}up_proj.weight"),
    )
    yield _fused(f"{name}in_proj", parts, hidden)
    yield _plain(f"{name}out_proj", f"{source}down_proj.weight", (hidden, inner), shard_axis=1)


def _qkv_parts(
    config: Qwen35Config,
    source: str,
    source_shape: tuple[int, ...],
    transform: Callable[[Any], Any] | None,
) -> tuple[ParamPart, ...]:
    parts = []
    start = 0
    for component, rows in (("q", config.key_rows), ("k", config.key_rows), ("v", config.value_rows)):
        parts.append(
            ParamPart(
                component=component,
                rows=rows,
                source=source,
                source_shape=source_shape,
                source_row=start,
                transform=transform,
            )
        )
        start += rows
    return tuple(parts)


def _drop_middle(weight: Any) -> Any:
    return weight.squeeze(1)


def _half_of_heads(weight: Any, *, width: int, half: int) -> Any:
    return weight.reshape(-1, 2, width, weight.shape[-1])[:, half].reshape(-1, weight.shape[-1])


def _fused(name: str, parts: tuple[ParamPart, ...], columns: int, dtype: str = "model") -> ParamRule:
    return ParamRule(name=name, shape=(sum(p.rows for p in parts), columns), parts=parts, dtype=dtype)


def _plain(
    name: str, source: str, shape: tuple[int, ...], *, shard_axis: int | None = 0, dtype: str = "model"
) -> ParamRule:
    part = ParamPart(component="all", rows=shape[0], source=source, shard_axis=shard_axis)
    return ParamRule(name=name, shape=shape, parts=(part,), dtype=dtype)


def _norm(name: str, source: str, width: int) -> ParamRule:
    return _plain(name, source, (width,), shard_axis=None, dtype="acc")
