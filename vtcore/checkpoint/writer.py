"""Writes the files of a checkpoint: safetensors shards with their index, and JSON.

Does not: decide what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors.torch import save

from vtcore.checkpoint.shards import INDEX_FILE


@frozen
class ShardPlan:
    """Which tensors go into which shard.

    Args:
        shards: Names by shard; every name exactly once, order kept.
    """

    shards: tuple[tuple[str, ...], ...]

    def file_name(self, index: int) -> str:
        """File name of shard `index`, 0-based."""
        return f"model-{index + 1:05d}-of-{len(self.shards):05d}.safetensors"


def plan_shards(sizes: Mapping[str, int], num_shards: int) -> ShardPlan:
    """Cut a list of tensors into consecutive shards of about equal bytes.

    Args:
        sizes: Bytes by name, in order; at least num_shards entries.
        num_shards: >= 1.
    """
    names, total, filled = list(sizes), sum(sizes.values()), 0
    shards: list[list[str]] = [[]]
    for index, name in enumerate(names):
        left = num_shards - len(shards)
        is_due = filled * num_shards >= total * len(shards) or len(names) - index <= left
        if shards[-1] and left and is_due:
            shards.append([])
        shards[-1].append(name)
        filled += sizes[name]
    return ShardPlan(tuple(tuple(s) for s in shards))


def write_shards(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], num_shards: int) -> int:
    """Write weights and model.safetensors.index.json.

    Args:
        tensors: All of them are held in memory while writing.

    Returns:
        Bytes of tensor data.
    """
    held = {name: tensor.contiguous() for name, tensor in tensors}
    sizes = {name: t.numel() * t.element_size() for name, t in held.items()}
    plan = plan_shards(sizes, num_shards)
    weight_map: dict[str, str] = {}
    for index, names in enumerate(plan.shards):
        file = plan.file_name(index)
        # `save_file` would make the file private to its owner.
        (directory / file).write_bytes(save({name: held[name] for name in names}, {"format": "pt"}))
        weight_map.update(dict.fromkeys(names, file))
    total = sum(sizes.values())
    index_json = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / INDEX_FILE, index_json)
    return total


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as indented UTF-8 JSON, keys in the order given."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
