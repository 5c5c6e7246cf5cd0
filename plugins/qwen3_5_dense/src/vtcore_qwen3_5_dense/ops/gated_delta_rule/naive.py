"""The gated delta rule in torch: chunked for prefill rows, recurrent for uniform rows.

State S [K, V] per value head; each token does S <- exp(g) S, d = beta (v - S^T k), S <- S + k d^T, o = S^T q.
Does not: project, convolve or compute gates.

Shape letters: T query tokens, C channels [q | k | v], G value heads, K key width, V value width, U uniform
rows, A active rows, Q their query length, L tokens of a prefill row, B chunk length, M chunks.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.step import StepInputs
from vtcore.ops.once import once
from vtcore_qwen3_5_dense.ops.gated_delta_rule.chunk import CHUNK
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import DeltaRuleShape
from vtcore_qwen3_5_dense.ops.state_plan import QueryIndex, StatePlan, build_state_plan, prefill_slots


def gated_delta_rule(
    qkv_TC: Tensor,
    g_TG: Tensor,
    beta_TG: Tensor,
    state: Tensor,
    shape: DeltaRuleShape,
    step: StepInputs,
    pool: int,
) -> Tensor:
    """Run every row of the step through its own state; updates the states.

    q and k are normalised to unit length here. Uniform rows write the state after each valid query token to
    that token's slot; a prefill row writes its last. Tokens beyond a row's query length give zeros.

    Source: Yang, Kautz and Hatamizadeh 2024, Gated Delta Networks, equations 10 and, for chunks, section 3.3.

    Args:
        qkv_TC: Convolved channels, accumulation dtype.
        g_TG: Log decay, <= 0, accumulation dtype.
        beta_TG: In [0, 1], accumulation dtype.
        state: [slots, G, K, V] cache, accumulation dtype, read and written.
        pool: Index of the slot pool.

    Returns:
        [T * G, 1, V] accumulation dtype, token-major.

    Raises:
        EngineError: A row with a query names slot 0.
    """
    if not step.prefill:
        return _recurrent(qkv_TC, g_TG, beta_TG, state, shape, step, pool)
    parts = []
    uniform = step.num_uniform_tokens
    if uniform:
        parts.append(
            _recurrent(qkv_TC[:uniform], g_TG[:uniform], beta_TG[:uniform], state, shape, step, pool)
        )
    for span, (read, write) in zip(step.prefill, prefill_slots(step, pool), strict=True):
        tokens = slice(span.offset, span.offset + span.length)
        if span.is_null:
            heads = g_TG.shape[1]
            parts.append(g_TG.new_zeros((span.length * heads, 1, shape.value_width)))
            continue
        out_LGV, last = _chunked(
            qkv_TC[tokens], g_TG[tokens], beta_TG[tokens], state.index_select(0, read)[0], shape
        )
        state.index_copy_(0, write, last[None])
        parts.append(out_LGV.reshape(-1, 1, shape.value_width))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@frozen(eq=False)
class _HeadPlan:
    """Rows of the state cache viewed as [slots * G, K, V]: read once, written per query index."""

    plan: StatePlan
    read: Tensor
    write: tuple[Tensor, ...]


def _head_plan(step: StepInputs, pool: int, heads_G: Tensor) -> _HeadPlan:
    plan = build_state_plan(step, pool)
    count = heads_G.shape[0]

    def per_head(slots_A: Tensor) -> Tensor:
        return (slots_A[:, None] * count + heads_G).flatten()

    return _HeadPlan(plan, per_head(plan.read_A), tuple(per_head(query.write_A) for query in plan.queries))


def _recurrent(
    qkv_TC: Tensor,
    g_TG: Tensor,
    beta_TG: Tensor,
    state: Tensor,
    shape: DeltaRuleShape,
    step: StepInputs,
    pool: int,
) -> Tensor:
    heads, width = shape.value_heads, shape.value_width
    plan = once(step, ("heads", pool, heads), lambda: _head_plan(step, pool, shape.heads_G))
    cache = state.view(-1, shape.key_width, width)
    rows = cache.index_select(0, plan.read)
    if step.query_len == 1 and plan.plan.rows is None:
        out = _token(qkv_TC, g_TG.exp(), beta_TG, rows, shape)
        cache.index_copy_(0, plan.write[0], rows)
        return out
    decay_UQG = g_TG.exp().view(-1, step.query_len, heads)
    beta_UQG = beta_TG.view(-1, step.query_len, heads)
    qkv_UQC = qkv_TC.view(-1, step.query_len, qkv_TC.shape[1])
    out_UQX = qkv_TC.new_zeros(qkv_UQC.shape[0], step.query_len, heads * width)
    for index, query in enumerate(plan.plan.queries):
        if query.keep is not None and index:
            rows = rows.view(-1, heads, shape.key_width, width).index_select(0, query.keep).flatten(0, 1)
        out = _token(
            _active(qkv_UQC[:, index], query),
            _active(decay_UQG[:, index], query),
            _active(beta_UQG[:, index], query),
            rows,
            shape,
        )
        cache.index_copy_(0, plan.write[index], rows)
        target = out_UQX[:, index]
        out = out.view(query.count, -1)
        if query.rows is None:
            target.copy_(out)
        else:
            target.index_copy_(0, query.rows, out)
    return out_UQX.view(-1, 1, width)


def _active(x_U: Tensor, query: QueryIndex) -> Tensor:
    return x_U if query.rows is None else x_U.index_select(0, query.rows)


def _token(qkv_AC: Tensor, decay_AG: Tensor, beta_AG: Tensor, rows: Tensor, shape: DeltaRuleShape) -> Tensor:
    """One token of every active row; `rows` [A * G, K, V] is updated in place. Returns [A * G, 1, V]."""
    split = 2 * shape.key_heads * shape.key_width
    qk = qkv_AC.index_select(1, shape.head_channels).view(-1, 2, 1, shape.key_width)
    qk.div_(torch.hypot(torch.linalg.vector_norm(qk, dim=-1, keepdim=True), shape.l2_floor))
    q, k = qk.unbind(1)
    v = qkv_AC[:, split:].reshape(-1, 1, shape.value_width)
    rows.mul_(decay_AG.reshape(-1, 1, 1))
    delta = torch.baddbmm(v, k, rows, alpha=-1).mul_(beta_AG.reshape(-1, 1, 1))
    rows.baddbmm_(k.mT, delta)
    return torch.baddbmm(shape.no_output, q, rows, beta=0, alpha=shape.scale)


def _chunked(
    qkv_LC: Tensor, g_LG: Tensor, beta_LG: Tensor, first_GKV: Tensor, shape: DeltaRuleShape
) -> tuple[Tensor, Tensor]:
    length = qkv_LC.shape[0]
    chunk = min(CHUNK, length)
    # A padded token has k = v = beta = g = 0 and leaves the state as it is.
    padding = -length % chunk
    qkv_LC = F.pad(qkv_LC, (0, 0, 0, padding))
    g_GMB = F.pad(g_LG, (0, 0, 0, padding)).t().reshape(shape.value_heads, -1, chunk)
    beta_GMB = F.pad(beta_LG, (0, 0, 0, padding)).t().reshape(shape.value_heads, -1, chunk)
    q, k, v = _split_heads(qkv_LC, shape, chunk)

    total_GMB = g_GMB.cumsum(-1)
    # The mask comes before exp: above the diagonal the difference is positive and could overflow.
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=g_LG.device).triu(1)
    decay = (total_GMB[..., :, None] - total_GMB[..., None, :]).masked_fill(later, float("-inf")).exp()
    k_beta = k * beta_GMB[..., None]
    grown = total_GMB.exp()[..., None]
    system = (k_beta @ k.mT) * decay
    right = torch.cat((v * beta_GMB[..., None], k_beta * grown), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, reads = solved.split((shape.value_width, shape.key_width), -1)
    inner = (q @ k.mT) * decay
    q_grown = q * grown
    k_left = k * (total_GMB[..., -1:] - total_GMB).exp()[..., None]
    last_decay = total_GMB[..., -1].exp()[..., None, None]

    state_GKV = first_GKV
    out = torch.empty_like(v)
    for index in range(v.shape[1]):
        fresh = values[:, index] - reads[:, index] @ state_GKV
        out[:, index] = torch.baddbmm(inner[:, index] @ fresh, q_grown[:, index], state_GKV)
        state_GKV = torch.baddbmm(state_GKV * last_decay[:, index], k_left[:, index].mT, fresh)
    out_LGV = out.flatten(1, 2)[:, :length].transpose(0, 1)
    return out_LGV, state_GKV


def _split_heads(qkv_LC: Tensor, shape: DeltaRuleShape, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (scaled), k [G, M, B, K] of unit length and v [G, M, B, V]."""
    length = qkv_LC.shape[0]
    split = 2 * shape.key_heads * shape.key_width
    qk = qkv_LC[:, :split].reshape(length, 2, shape.key_heads, shape.key_width)
    qk = qk / torch.hypot(torch.linalg.vector_norm(qk, dim=-1, keepdim=True), shape.l2_floor)
    qk = qk.repeat_interleave(shape.value_heads // shape.key_heads, dim=2)
    q, k = qk.permute(1, 2, 0, 3).reshape(2, shape.value_heads, -1, chunk, shape.key_width).unbind(0)
    v = qkv_LC[:, split:].reshape(length, shape.value_heads, shape.value_width).transpose(0, 1)
    return q * shape.scale, k, v.reshape(shape.value_heads, -1, chunk, shape.value_width)
