"""Router of a mixture of experts as a Triton kernel: the likeliest experts of each token and their weights.

Does not: compute the logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

_TAKEN = tl.constexpr(-(1 << 63))


@triton.jit
def route_kernel(
    gates_ptr,
    experts_ptr,
    weights_ptr,
    STRIDE: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
):
    """One token's experts and their weights."""
    i_t = tl.program_id(0).to(tl.int64)
    o_e = tl.arange(0, BLOCK)
    b_x = tl.load(gates_ptr + i_t * STRIDE + o_e, mask=o_e < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    # A NaN would have no place in the order; its token's result is NaN whatever is chosen. -0 equals 0.
    b_x = tl.where(b_x == b_x, b_x, float("-inf"))
    b_x = tl.where(b_x == 0, 0.0, b_x)
    largest = tl.max(b_x, 0)
    # Logits as integers of the same order, below them the expert so that of equal logits the lower one wins.
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_order = tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits)
    b_key = (b_order.to(tl.int64) << 32) | (BLOCK - 1 - o_e).to(tl.int64)
    o_k = tl.arange(0, PLACES)
    b_expert = o_k * 0 + NUM_EXPERTS
    b_weight = o_k.to(tl.float32) * 0.0
    total = 0.0
    for k in tl.static_range(TOP_K):
        best = tl.max(b_key, 0)
        i_e = BLOCK - 1 - (best & 0xFFFFFFFF).to(tl.int32)
        order = (best >> 32).to(tl.int32)
        x = tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)
        weight = tl.exp(x - largest)
        total += weight
        b_expert = tl.where(o_k == k, i_e, b_expert)
        b_weight = tl.where(o_k == k, weight, b_weight)
        b_key = tl.where(o_e == i_e, _TAKEN, b_key)
    shared = tl.load(gates_ptr + i_t * STRIDE + NUM_EXPERTS).to(tl.float32)
    b_weight = tl.where(o_k < TOP_K, b_weight / total, 1.0 / (1.0 + tl.exp(-shared)))
    tl.store(experts_ptr + i_t * CHOICES + o_k, b_expert, mask=o_k < CHOICES)
    tl.store(weights_ptr + i_t * (TOP_K + 1) + o_k, b_weight, mask=o_k <= TOP_K)
