"""Attention over paged keys and values, as Triton kernels.

Does not: write the cache.

Shape letters: T query tokens, N query heads, G key/value heads, D head width, U uniform rows, Q their query
length.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from vtcore.interfaces.step import PagedPool, StepInputs
from vtcore.layers.paged_kv import PagedKV
from vtcore.ops.launch import launch
from vtcore.ops.paged_attention.kernels import combine_kernel, decode_kernel, prefill_kernel

_LOG2_E = 1.4426950408889634
_PROGRAMS = 264
"""Programs that fill an H200: two for each of its 132 multiprocessors."""
_MOST_SPLITS = 16
_PREFILL_ROWS = 128
"""Query tokens of one program."""


def num_splits(num_programs: int) -> int:
    """Into how many parts each row's context is cut, so that the device is full.

    Args:
        num_programs: Rows times key/value heads; fixed for a captured step.
    """
    wanted = -(-_PROGRAMS // max(1, num_programs))
    return max(1, min(_MOST_SPLITS, 1 << (wanted - 1).bit_length()))


def paged_attention(
    q_TND: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None = None,
) -> Tensor:
    """See `naive.paged_attention`; rows without a query, and tokens past a cut one, give zeros."""
    splits = num_splits(step.num_uniform * kv.k_tokens.shape[1])
    return _attend(q_TND, kv, step, pool, scale, gate_TX, splits)


def paged_attention_batch_invariant(
    q_TND: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None = None,
) -> Tensor:
    """As `paged_attention`, every context in one part: sums then run in the order of positions in any
    batch."""
    return _attend(q_TND, kv, step, pool, scale, gate_TX, 1)


def _attend(
    q_TND: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None,
    splits: int,
) -> Tensor:
    q_TND = q_TND.contiguous()
    out_TND = torch.empty_like(q_TND)
    if step.num_uniform:
        _uniform(q_TND, kv, step, pool, scale, gate_TX, splits, out_TND)
    if step.prefill:
        _prefill(q_TND, kv, step, pool, scale, gate_TX, out_TND)
    return out_TND


def _uniform(
    q_TND: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None,
    splits: int,
    out_TND: Tensor,
) -> None:
    heads, width = q_TND.shape[1:]
    groups, query, rows = kv.k_tokens.shape[1], step.query_len, step.num_uniform
    num_tokens, block_d = rows * query, max(16, triton.next_power_of_2(width))
    part = stat = q_TND
    if splits > 1:
        part = torch.empty((num_tokens, heads, splits, width), dtype=torch.float32, device=q_TND.device)
        stat = torch.empty((num_tokens, heads, splits, 2), dtype=torch.float32, device=q_TND.device)
    gate = q_TND if gate_TX is None else gate_TX
    gate_stride = 0 if gate_TX is None else gate_TX.stride(0)
    launch(
        decode_kernel,
        (rows * groups, splits),
        q_TND,
        kv.k_tokens,
        kv.v_tokens,
        pool.block_table,
        step.computed,
        step.query_lens,
        gate,
        out_TND,
        part,
        stat,
        scale * _LOG2_E,
        pool.block_table.shape[1],
        Q=query,
        N=heads,
        G=groups,
        D=width,
        BLOCK_SIZE=pool.block_size,
        WINDOW=pool.window or 0,
        GATE_STRIDE=gate_stride,
        SPLITS=splits,
        BLOCK_M=max(16, triton.next_power_of_2(query * (heads // groups))),
        BLOCK_D=block_d,
        TILE=32 if width > 128 else 64,
        PRECISION=_precision(q_TND),
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        launch(
            combine_kernel,
            (num_tokens, heads),
            part,
            stat,
            gate,
            out_TND,
            N=heads,
            D=width,
            GATE_STRIDE=gate_stride,
            SPLITS=splits,
            BLOCK_S=triton.next_power_of_2(splits),
            BLOCK_D=block_d,
            num_warps=2,
        )


def _prefill(
    q_TND: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None,
    out_TND: Tensor,
) -> None:
    heads, width = q_TND.shape[1:]
    num_rows = step.query_lens.shape[0]
    num_tokens = q_TND.shape[0] - step.num_uniform_tokens
    is_float32 = q_TND.dtype == torch.float32
    block_m = 32 if is_float32 else _PREFILL_ROWS
    launch(
        prefill_kernel,
        (num_tokens // block_m + num_rows - step.num_uniform, heads),
        q_TND,
        kv.k_tokens,
        kv.v_tokens,
        pool.block_table,
        step.computed,
        step.query_start,
        q_TND if gate_TX is None else gate_TX,
        out_TND,
        step.num_uniform,
        num_rows,
        scale * _LOG2_E,
        pool.block_table.shape[1],
        N=heads,
        G=kv.k_tokens.shape[1],
        D=width,
        BLOCK_SIZE=pool.block_size,
        WINDOW=pool.window or 0,
        GATE_STRIDE=0 if gate_TX is None else gate_TX.stride(0),
        BLOCK_M=block_m,
        BLOCK_D=max(16, triton.next_power_of_2(width)),
        TILE=32 if is_float32 else 64,
        PRECISION=_precision(q_TND),
        num_warps=4 if is_float32 else 8,
        num_stages=2,
    )


def _precision(q_TND: Tensor) -> str | None:
    # On float32 the tensor cores would round to 10 bits.
    return "ieee" if q_TND.dtype == torch.float32 else None
