"""Which checkpoint tensors make up a layer's experts, as data, in both layouts that checkpoints have.

Fused: `experts.gate_up_proj` [E, 2I, H] and `experts.down_proj` [E, H, I], as the releases store them.
Per expert: `experts.{e}.gate_proj.weight` and so on, as quantising and fine-tuning tools write them.
A shared expert of their width is the last group of the same products, else a block of its own.
Does not: read or convert tensors.

Shape letters: E experts, H hidden size, I an expert's inner width.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vtcore_qwen3_5_dense.public import swiglu_rules

from vtcore.interfaces.model_arch import ParamPart, ParamRule
from vtcore_qwen3_5_moe.config import Qwen35MoeConfig


def moe_rules(config: Qwen35MoeConfig, names: Collection[str], name: str, source: str) -> Iterator[ParamRule]:
    """Rules of one layer's router, routed experts and shared expert.

    Args:
        config: Parsed config.
        names: Tensors of the checkpoint, which tell the layout of each parameter; empty stands for fused.
        name: Parameter prefix, "layers.0.".
        source: Checkpoint prefix, "model.language_model.layers.0.".
    """
    hidden, experts, inner = config.text.hidden_size, config.num_experts, config.expert_size
    name, source = f"{name}moe.", f"{source}mlp."
    gates = (
        ParamPart(component="router", rows=experts, source=f"{source}gate.weight", shard_axis=None),
        ParamPart(component="shared", rows=1, source=f"{source}shared_expert_gate.weight", shard_axis=None),
    )
    yield ParamRule(name=f"{name}gates", shape=(experts + 1, hidden), parts=gates)
    in_shape, out_shape = (inner, hidden), (hidden, inner)
    in_parts = _expert_parts(names, source, "gate_up_proj", ("gate", "up"), experts, in_shape, 0)
    out_parts = _expert_parts(names, source, "down_proj", ("down",), experts, out_shape, 1)
    if config.shared_is_group:
        in_parts += _shared_parts(source, ("gate", "up"), inner, 0)
        out_parts += _shared_parts(source, ("down",), hidden, 1)
        experts += 1
    yield ParamRule(
        name=f"{name}in_proj", shape=(2 * experts * inner, hidden), parts=in_parts, num_groups=experts
    )
    yield ParamRule(
        name=f"{name}out_proj", shape=(experts * hidden, inner), parts=out_parts, num_groups=experts
    )
    if not config.shared_is_group:
        yield from swiglu_rules(hidden, config.shared_size, f"{name}shared.", f"{source}shared_expert.")


def _expert_parts(
    names: Collection[str],
    source: str,
    fused: str,
    matrices: tuple[str, ...],
    num_experts: int,
    shape: tuple[int, int],
    shard_axis: int,
) -> tuple[ParamPart, ...]:
    """For each routed expert in turn its matrices, each of `shape`, as components of their own."""
    source = f"{source}experts."
    rows, columns = shape
    stacked = (num_experts, len(matrices) * rows, columns)

    def own(expert: int, matrix: str) -> str:
        return f"{source}{expert}.{matrix}_proj.weight"

    keys = [(expert, matrix) for expert in range(num_experts) for matrix in matrices]
    is_fused = f"{source}{fused}" in names or not any(own(*key) in names for key in keys)
    return tuple(
        ParamPart(
            component=f"{matrix}.{expert}",
            rows=rows,
            source=f"{source}{fused}" if is_fused else own(expert, matrix),
            source_shape=stacked if is_fused else shape,
            source_row=place * rows if is_fused else 0,
            shard_axis=shard_axis,
        )
        for place, (expert, matrix) in enumerate(keys)
    )


def _shared_parts(
    source: str, matrices: tuple[str, ...], rows: int, shard_axis: int
) -> tuple[ParamPart, ...]:
    """The shared expert's matrices, as those of one expert more."""
    return tuple(
        ParamPart(
            component=f"{matrix}.shared",
            rows=rows,
            source=f"{source}shared_expert.{matrix}_proj.weight",
            shard_axis=shard_axis,
        )
        for matrix in matrices
    )
