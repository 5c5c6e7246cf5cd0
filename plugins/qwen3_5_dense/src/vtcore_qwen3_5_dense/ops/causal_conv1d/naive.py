"""Causal depthwise convolution with a carried tail, in torch: the reference and the CPU path.

The tail of a slot is the last W - 1 raw inputs of its sequence, oldest first, zeros before its start.
Does not: project.

Shape letters: T query tokens, C channels, W kernel width, N slots, U uniform rows, A active rows, Q their
query length, X inputs of a window.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vtcore.interfaces.step import StepInputs
from vtcore_qwen3_5_dense.ops.state_plan import build_state_plan, prefill_slots


def causal_conv1d(x_TC: Tensor, weight_WC: Tensor, tail: Tensor, step: StepInputs, pool: int) -> Tensor:
    """y_t = silu(sum_j w_j x_(t - W + 1 + j)) over each row's own sequence; updates the tails.

    A uniform row writes the tail after each valid query token to that token's slot; a prefill row writes its
    last. Tokens beyond a row's query length give finite values.

    Args:
        x_TC: Raw inputs.
        weight_WC: Accumulation dtype; the last row belongs to the current token.
        tail: [N, W - 1, C] cache in x's dtype, read and written.
        pool: Index of the slot pool.

    Returns:
        [T, C] accumulation dtype.

    Raises:
        EngineError: A row with a query names slot 0.
    """
    if not step.prefill:
        return _uniform(x_TC, weight_WC, tail, step, pool)
    parts = []
    if step.num_uniform:
        parts.append(_uniform(x_TC[: step.num_uniform_tokens], weight_WC, tail, step, pool))
    width = weight_WC.shape[0]
    for span, (read, write) in zip(step.prefill, prefill_slots(step, pool), strict=True):
        x_1TC = x_TC[span.offset : span.offset + span.length][None]
        if span.is_null:
            parts.append(torch.zeros_like(x_1TC[0], dtype=weight_WC.dtype))
            continue
        window_1XC = torch.cat((tail.index_select(0, read), x_1TC), 1)
        tail.index_copy_(0, write, window_1XC[:, 1 - width :])
        parts.append(_convolve(window_1XC, weight_WC)[0])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _uniform(x_TC: Tensor, weight_WC: Tensor, tail: Tensor, step: StepInputs, pool: int) -> Tensor:
    plan = build_state_plan(step, pool)
    width, channels = weight_WC.shape
    x_UQC = x_TC.unsqueeze(1) if step.query_len == 1 else x_TC.view(-1, step.query_len, channels)
    rows = plan.rows
    x_AQC = x_UQC if rows is None else x_UQC.index_select(0, rows)
    window_AXC = torch.cat((tail.index_select(0, plan.read_A), x_AQC), 1)
    if step.query_len == 1:
        y_AQC = F.silu((window_AXC * weight_WC).sum(1), inplace=True)
    else:
        y_AQC = _convolve(window_AXC, weight_WC)
    for index, query in enumerate(plan.queries):
        if query.keep is not None and index:
            window_AXC = window_AXC.index_select(0, query.keep)
        tail.index_copy_(0, query.write_A, window_AXC[:, index + 1 : index + width])
    if rows is not None:
        y_UQC = y_AQC.new_zeros(x_UQC.shape)
        return y_UQC.index_copy_(0, rows, y_AQC.view(x_AQC.shape)).view(-1, channels)
    return y_AQC if step.query_len == 1 else y_AQC.view(-1, channels)


def _convolve(window_AXC: Tensor, weight_WC: Tensor) -> Tensor:
    width = weight_WC.shape[0]
    length = window_AXC.shape[1] - width + 1
    y_AQC = window_AXC[:, :length] * weight_WC[0]
    for tap in range(1, width):
        y_AQC.addcmul_(window_AXC[:, tap : tap + length], weight_WC[tap])
    return F.silu(y_AQC, inplace=True)
