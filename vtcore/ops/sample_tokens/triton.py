"""Sampling without sorts and without host reads: three Triton kernels for any mix of rows.

Does not: keep order tables or probabilities: scratch is a few numbers per split and per group of ids.

Precision: scores are float64 sums of logit / temperature and noise; masses are float32 exponentials, summed
in float32 within a tile and in float64 across tiles. The reference divides and exponentiates in float32, so
the two differ where two candidates, or a candidate and a threshold, are within about 1e-6 of each other.

Shape letters: N logit rows, V vocabulary, S splits of a row, G groups of ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.ops.argmax.triton import MAX_SPLITS, split_plan
from vtcore.ops.launch import launch
from vtcore.ops.sample_tokens.draw_kernel import check_kernel, draw_kernel
from vtcore.ops.sample_tokens.finish_kernel import finish_kernel
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.params_table import GREEDY_BELOW

GROUP = 256
"""Ids whose maximum is kept; top_k above V / GROUP is served by a slower search."""
TILE_BYTES = 4096
"""Of logits: 16 bytes per thread of TILE_WARPS warps, one read each."""
TILE_WARPS = 8
FINISH_GROUPS = 16
FINISH_WARPS = 16

_UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits that are equal in all float32 numbers made from a dtype."""


def sample_tokens(
    logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, params: DeviceParams, counts: Tensor
) -> Tensor:
    """See `naive.sample_tokens`."""
    num_rows, vocab_size = logits_NV.shape
    logits_NV = logits_NV if logits_NV.stride(1) == 1 else logits_NV.contiguous()
    num_groups = -(-vocab_size // GROUP)
    tile_groups = TILE_BYTES // (GROUP * logits_NV.element_size())
    num_splits, tiles_per_split = split_plan(num_rows, -(-num_groups // tile_groups))
    device = logits_NV.device
    # MAX_SPLITS apart whatever their number: alignment, which a compiled kernel rests on, never changes.
    floats = torch.empty(5, num_rows, MAX_SPLITS, dtype=torch.float64, device=device)
    largest_NS, mass_NS, best_NS, before_NS, next_NS = floats.unbind(0)
    ints = torch.empty(3, num_rows, MAX_SPLITS, dtype=torch.int64, device=device)
    best_id_NS, nan_NS, next_id_NS = ints.unbind(0)
    group_max_NG = torch.empty(num_rows, num_groups, dtype=torch.float32, device=device)
    list_NG = torch.empty(num_rows, num_groups, dtype=torch.int32, device=device)
    ids_N = torch.empty(num_rows, dtype=torch.int64, device=device)
    inputs = (logits_NV, rows_N, positions_N, params.floats_RC, params.ints_RC)
    shapes = {
        "STRIDE": logits_NV.stride(0) if num_rows > 1 else vocab_size,
        "VOCAB": vocab_size,
        "COLUMNS": params.ints_RC.shape[1],
        "GREEDY_BELOW": GREEDY_BELOW,
        "GROUP": GROUP,
        "MAX_SPLITS": MAX_SPLITS,
    }
    launch(
        draw_kernel,
        (num_rows, num_splits),
        *inputs,
        largest_NS,
        mass_NS,
        best_NS,
        best_id_NS,
        nan_NS,
        group_max_NG,
        num_splits,
        tiles_per_split,
        **shapes,
        GROUPS=tile_groups,
        num_warps=TILE_WARPS,
    )
    launch(
        check_kernel,
        (num_rows, num_splits),
        *inputs,
        largest_NS,
        best_NS,
        best_id_NS,
        group_max_NG,
        before_NS,
        next_NS,
        next_id_NS,
        num_splits,
        tiles_per_split,
        **shapes,
        GROUPS=tile_groups,
        num_warps=TILE_WARPS,
    )
    launch(
        finish_kernel,
        (num_rows,),
        *inputs,
        largest_NS,
        mass_NS,
        best_NS,
        best_id_NS,
        nan_NS,
        group_max_NG,
        before_NS,
        next_NS,
        next_id_NS,
        list_NG,
        ids_N,
        counts,
        num_splits,
        **shapes,
        GROUPS=FINISH_GROUPS,
        ALL_GROUPS=max(2, 1 << (num_groups - 1).bit_length()),
        SHIFT=_UNUSED_BITS[logits_NV.dtype],
        num_warps=FINISH_WARPS,
    )
    return ids_N
