"""The only place that allocates cache tensors: KV blocks and recurrent state.

Does not: decide sizes (planner) or hand out ids (pool).
"""

from __future__ import annotations

import torch

from vtcore.interfaces.step import LayerCache
from vtcore.kv_cache.planner import MemoryPlan
from vtcore.layers.dtypes import DTYPES


def allocate_caches(plan: MemoryPlan, k_max: int, device: str) -> dict[str, LayerCache]:
    """Allocate every pool's tensors, uninitialised.

    Returns:
        Layer name -> its tensors, [num_units, *unit shape]; the caller owns them for the engine's life.
    """
    caches: dict[str, LayerCache] = {}
    for index, pool in enumerate(plan.pools):
        for spec in pool.specs:
            for layer in spec.layers:
                tensors = {
                    name: torch.empty(
                        (pool.num_units, *tensor.shape), dtype=DTYPES[tensor.dtype], device=device
                    )
                    for name, tensor in spec.tensors(k_max).items()
                }
                caches[layer] = LayerCache(index, tensors)
    return caches
