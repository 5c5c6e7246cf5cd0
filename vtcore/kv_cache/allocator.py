"""The only place that allocates cache tensors: KV blocks and recurrent state.

Does not: decide sizes (planner) or hand out ids (pool).
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.layers.dtypes import DTYPES


@frozen(eq=False)
class PoolTensor:
    """One cache tensor of all layers of a group.

    Args:
        data: [layers, units, *unit shape]; each layer's part is contiguous.
        zeroed: Whether a fresh unit starts at zero.
    """

    data: Tensor
    zeroed: bool


@frozen(eq=False)
class Caches:
    """Every pool's tensors; whoever allocated them owns them for the engine's life.

    Args:
        layers: Layer name -> its tensors, [units, *unit shape], views.
        pools: By pool, the tensors that hold its units.
    """

    layers: dict[str, LayerCache]
    pools: tuple[tuple[PoolTensor, ...], ...]


def allocate_caches(plan: MemoryPlan, k_max: int, device: str) -> Caches:
    """Allocate every pool's tensors, uninitialised.

    Args:
        k_max: Drafts verified per step at most.
        device: torch device string.
    """
    layers: dict[str, LayerCache] = {}
    pools = []
    for index, pool in enumerate(plan.pools):
        held = []
        for spec in pool.specs:
            of_layer: list[dict[str, Tensor]] = [{} for _ in spec.layers]
            for name, tensor in spec.tensors(k_max).items():
                shape = (len(spec.layers), pool.num_units, *tensor.shape)
                data = torch.empty(shape, dtype=DTYPES[tensor.dtype], device=device)
                held.append(PoolTensor(data, tensor.zeroed))
                for own, part in zip(of_layer, data.unbind(0), strict=True):
                    own[name] = part
            layers |= {
                layer: LayerCache(index, own) for layer, own in zip(spec.layers, of_layer, strict=True)
            }
        pools.append(tuple(held))
    return Caches(layers, tuple(pools))
