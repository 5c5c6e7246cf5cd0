"""Attention over paged keys and values, in torch: the reference and the CPU path.

Uniform rows run as one batch, prefill rows one after another. Only positions that hold written keys are
gathered, so nothing that lies in unused block tails or freed blocks can reach a result.
Does not: write the cache.

Shape letters: T query tokens, H query heads, D head width, U uniform rows, Q their query length, G key/value
heads, E = H / G query heads per key/value head, C context positions.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from vtcore.errors import EngineError
from vtcore.interfaces.step import PagedPool, PrefillSpan, StepInputs
from vtcore.layers.paged_kv import PagedKV
from vtcore.ops.once import once


@frozen(eq=False)
class _UniformPlan:
    """Where the uniform rows read, shared by all layers of a step.

    Args:
        rows: [U'] rows with a query, None when all have one.
        index_UGC: Rows of `PagedKV.k_rows`.
        mask: [U', 1, Q * E or 1, C] added to scores, or None when nothing is hidden.
    """

    rows: Tensor | None
    index_UGC: Tensor
    mask: Tensor | None


@frozen(eq=False)
class _PrefillPlan:
    """Where one prefill row reads; `mask` [Q, C] is None for plain causal attention from position 0."""

    index_GC: Tensor
    mask: Tensor | None


def paged_attention(
    q_THD: Tensor,
    kv: PagedKV,
    step: StepInputs,
    pool: PagedPool,
    scale: float,
    gate_TX: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v, causal, each query over its own row's positions; times sigmoid(gate) if
    given.

    Query head h reads key/value head h // E. Query tokens beyond a row's query length give finite values,
    those of rows without any query give zeros.

    Args:
        q_THD: The cache's dtype.
        kv: This step's keys and values are already written.
        scale: Factor on the scores.
        gate_TX: [T, H * D], q's dtype; None gates nothing.

    Returns:
        [T, H, D], q's dtype.

    Raises:
        EngineError: A row would read through block id 0.
    """
    out_THD = _attend(q_THD, kv, step, pool, scale)
    if gate_TX is None:
        return out_THD
    return (out_THD.reshape(gate_TX.shape) * gate_TX.sigmoid()).view(out_THD.shape)


def _attend(q_THD: Tensor, kv: PagedKV, step: StepInputs, pool: PagedPool, scale: float) -> Tensor:
    uniform = step.num_uniform_tokens
    if not step.prefill:
        return _attend_uniform(q_THD, kv, step, pool, scale)
    parts = []
    if uniform:
        parts.append(_attend_uniform(q_THD[:uniform], kv, step, pool, scale))
    for span in step.prefill:
        q_QHD = q_THD[span.offset : span.offset + span.length]
        parts.append(
            torch.zeros_like(q_QHD) if span.is_null else _attend_prefill(q_QHD, kv, step, pool, span, scale)
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_uniform(q_THD: Tensor, kv: PagedKV, step: StepInputs, pool: PagedPool, scale: float) -> Tensor:
    heads, width = q_THD.shape[1:]
    groups = kv.k_tokens.shape[1]
    each = heads // groups
    length = step.query_len
    key = ("uniform", groups, each, q_THD.dtype)
    plan = once(pool, key, lambda: _plan_uniform(step, pool, groups, each, q_THD.dtype))
    if plan.rows is not None:
        q_UQHD = q_THD.view(-1, length, heads, width)
        out_UQHD = torch.zeros_like(q_UQHD)
        if plan.rows.numel():
            some = q_UQHD.index_select(0, plan.rows).flatten(0, 1)
            some = _attend_batch(some, kv, plan, length, scale).view(-1, length, heads, width)
            out_UQHD.index_copy_(0, plan.rows, some)
        return out_UQHD.view_as(q_THD)
    return _attend_batch(q_THD, kv, plan, length, scale)


def _attend_batch(q_THD: Tensor, kv: PagedKV, plan: _UniformPlan, length: int, scale: float) -> Tensor:
    # The query heads that share keys become query rows, so that no key is repeated in memory.
    k_UGCD = F.embedding(plan.index_UGC, kv.k_rows)
    v_UGCD = F.embedding(plan.index_UGC, kv.v_rows)
    batch, groups, _, width = k_UGCD.shape
    if length == 1:
        q = q_THD.view(batch, groups, -1, width)
        out = F.scaled_dot_product_attention(q, k_UGCD, v_UGCD, attn_mask=plan.mask, scale=scale)
        return out.reshape(q_THD.shape)
    q = q_THD.view(batch, length, groups, -1, width).transpose(1, 2).flatten(2, 3)
    out = F.scaled_dot_product_attention(q, k_UGCD, v_UGCD, attn_mask=plan.mask, scale=scale)
    return out.view(batch, groups, length, -1, width).transpose(1, 2).reshape(q_THD.shape)


def _plan_uniform(
    step: StepInputs, pool: PagedPool, groups: int, each: int, dtype: torch.dtype
) -> _UniformPlan:
    rows: Tensor | None = None
    computed_U = step.computed[: step.num_uniform]
    query_lens_U = step.query_lens[: step.num_uniform]
    table = pool.block_table[: step.num_uniform]
    if step.query_len_min == 0:
        rows = query_lens_U.nonzero().view(-1)
        computed_U, query_lens_U, table = computed_U[rows], query_lens_U[rows], table[rows]
    context_U1 = (computed_U + query_lens_U)[:, None]
    extent = step.context_max
    first_U1 = torch.zeros_like(context_U1)
    if pool.window is not None:
        # The first query token's window; what lies before may be freed already.
        extent = min(extent, pool.window + step.query_len - 1)
        first_U1 = (computed_U[:, None] - pool.window + 1).clamp_min(0)
    device = table.device
    position_UC = first_U1 + torch.arange(extent, device=device)
    slots_UC = _slots(table, position_UC.minimum(context_U1 - 1), pool.block_size)
    index_UGC = slots_UC[:, None] * groups + torch.arange(groups, device=device)[:, None]
    last_UQ1 = (computed_U[:, None] + torch.arange(step.query_len, device=device))[..., None]
    seen_UQC = (position_UC[:, None] <= last_UQ1) & (position_UC < context_U1)[:, None]
    if pool.window is not None:
        # An invalid query token past the context keeps the last written position, so it stays finite.
        seen_UQC &= position_UC[:, None] > last_UQ1.minimum(context_U1[:, None] - 1) - pool.window
    if step.query_len == 1 and bool(seen_UQC.all()):
        return _UniformPlan(rows, index_UGC, None)
    mask_UQC = _additive(seen_UQC, dtype)
    if step.query_len > 1:
        mask_UQC = mask_UQC.repeat_interleave(each, dim=1)
    return _UniformPlan(rows, index_UGC, mask_UQC[:, None])


def _attend_prefill(
    q_QHD: Tensor, kv: PagedKV, step: StepInputs, pool: PagedPool, span: PrefillSpan, scale: float
) -> Tensor:
    groups = kv.k_tokens.shape[1]
    key = ("prefill", span.index, groups, q_QHD.dtype)
    plan = once(pool, key, lambda: _plan_prefill(pool, span, groups, q_QHD.dtype))
    out_1HQD = F.scaled_dot_product_attention(
        q_QHD.transpose(0, 1)[None],
        F.embedding(plan.index_GC, kv.k_rows)[None],
        F.embedding(plan.index_GC, kv.v_rows)[None],
        attn_mask=plan.mask,
        is_causal=plan.mask is None,
        scale=scale,
        enable_gqa=q_QHD.shape[1] != groups,
    )
    return out_1HQD[0].transpose(0, 1)


def _plan_prefill(pool: PagedPool, span: PrefillSpan, groups: int, dtype: torch.dtype) -> _PrefillPlan:
    device = pool.block_table.device
    end = span.start + span.length
    first = 0 if pool.window is None else max(0, span.start - pool.window + 1)
    position_C = torch.arange(first, end, device=device)
    slots_C = _slots(pool.block_table[span.index][None], position_C[None], pool.block_size)[0]
    index_GC = slots_C * groups + torch.arange(groups, device=device)[:, None]
    if span.start == 0 and (pool.window is None or pool.window >= end):
        return _PrefillPlan(index_GC, None)
    query_Q1 = torch.arange(span.start, end, device=device)[:, None]
    seen_QC = position_C <= query_Q1
    if pool.window is not None:
        seen_QC &= position_C > query_Q1 - pool.window
    return _PrefillPlan(index_GC, _additive(seen_QC, dtype))


def _slots(table_UM: Tensor, position_UC: Tensor, block_size: int) -> Tensor:
    block_UC = table_UM.gather(1, position_UC // block_size)
    if block_UC.numel() and int(block_UC.min()) == 0:
        raise EngineError("a running row would read keys through the null block 0")
    return block_UC * block_size + position_UC % block_size


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
