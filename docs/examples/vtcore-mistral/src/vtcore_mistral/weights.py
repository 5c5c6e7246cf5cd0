"""Which checkpoint tensors make up each parameter, as data.

Does not: read or convert tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from vtcore.interfaces.model_arch import ParamPart, ParamRule
from vtcore_mistral.config import MistralConfig

HEAD = "lm_head.weight"


def build_rules(config: MistralConfig) -> Iterator[ParamRule]:
    """All rules of the model, in model order.

    Query, key and value are stored apart and used as one matrix, and so are gate and up: one product each
    instead of five.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield _matrix("embed_tokens", hidden, {"model.embed_tokens.weight": config.vocab_size})
    for index in range(config.num_layers):
        name, source = f"layers.{index}.", f"model.layers.{index}."
        yield _norm(f"{name}input_norm", f"{source}input_layernorm.weight", hidden)
        attention = f"{source}self_attn."
        qkv = {
            f"{attention}q_proj.weight": rows,
            f"{attention}k_proj.weight": kv_rows,
            f"{attention}v_proj.weight": kv_rows,
        }
        yield _matrix(f"{name}attn.in_proj", hidden, qkv)
        yield _matrix(f"{name}attn.out_proj", rows, {f"{attention}o_proj.weight": hidden}, shard_axis=1)
        yield _norm(f"{name}post_norm", f"{source}post_attention_layernorm.weight", hidden)
        gate_up = {f"{source}mlp.gate_proj.weight": inner, f"{source}mlp.up_proj.weight": inner}
        yield _matrix(f"{name}mlp.in_proj", hidden, gate_up)
        yield _matrix(f"{name}mlp.out_proj", inner, {f"{source}mlp.down_proj.weight": hidden}, shard_axis=1)
    yield _norm("norm", "model.norm.weight", hidden)
    if not config.tied:
        yield _matrix("lm_head", hidden, {HEAD: config.vocab_size})


def is_skipped(config: MistralConfig, name: str) -> bool:
    """Stored rotary frequencies, which are computed here, and a stored copy of a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (name == HEAD and config.tied)


def _matrix(name: str, columns: int, sources: dict[str, int], *, shard_axis: int = 0) -> ParamRule:
    """A matrix of one or more stored ones, source name -> rows, below one another."""
    parts = tuple(
        ParamPart(component=source.split(".")[-2], rows=rows, source=source, shard_axis=shard_axis)
        for source, rows in sources.items()
    )
    return ParamRule(name=name, shape=(sum(sources.values()), columns), parts=parts)


def _norm(name: str, source: str, width: int) -> ParamRule:
    part = ParamPart(component="weight", rows=width, source=source, shard_axis=None)
    return ParamRule(name=name, shape=(width,), parts=(part,), dtype="acc")
