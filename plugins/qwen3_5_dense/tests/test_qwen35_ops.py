"""Each op against its formula, on values where mistakes show; and what a decode step costs in calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from vtcore_qwen3_5_dense.ops.causal_conv1d.naive import causal_conv1d
from vtcore_qwen3_5_dense.ops.gated_delta_rule.naive import gated_delta_rule
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import build_delta_rule_shape
from vtcore_qwen3_5_dense.ops.gated_norm.naive import gated_norm

from vtcore.interfaces.step import PrefillSpan, SlotPool, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.ops.rms_norm.naive import rms_norm


def slot_step(length: int, uniform: bool) -> StepInputs:
    """One row on slot 1, as a verify query or as a prefill chunk."""
    return StepInputs(
        ids=torch.zeros(length, dtype=torch.int64),
        positions=torch.arange(length),
        num_uniform=int(uniform),
        query_len=length if uniform else 1,
        prefill=() if uniform else (PrefillSpan(0, 0, length, 0),),
        computed=torch.tensor([0]),
        query_lens=torch.tensor([length]),
        query_start=torch.tensor([0, length]),
        query_len_min=length if uniform else 1,
        context_max=length,
        pools=(SlotPool(torch.tensor([1]), torch.arange(1, length + 1)[None]),),
    )


def test_a_zero_centred_norm_with_zero_weight_is_the_plain_norm() -> None:
    x = torch.randn(5, 24, dtype=torch.float64)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    zero = build_rms_weight(torch.zeros(24, dtype=torch.float64), 1e-3, zero_centred=True)
    one = build_rms_weight(torch.ones(24, dtype=torch.float64), 1e-3)
    assert torch.allclose(rms_norm(x, zero), wanted, rtol=1e-13, atol=0)
    assert torch.equal(rms_norm(x, zero), rms_norm(x, one))
    assert rms_norm(torch.zeros(1, 24, dtype=torch.float64), one).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_rounds_once_at_its_end(dtype: torch.dtype) -> None:
    x, w = torch.randn(7, 32).to(dtype), torch.randn(32)
    exact = F.rms_norm(x.double(), (32,), w.double(), 1e-6)
    found = rms_norm(x, build_rms_weight(w, 1e-6))
    assert found.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    assert torch.allclose(found.double(), exact, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_the_gated_norm_applies_the_gate_after_the_norm(activation: str) -> None:
    o, z = torch.randn(6, 1, 8, dtype=torch.float64), torch.randn(2, 24, dtype=torch.float64)
    w = torch.randn(8, dtype=torch.float64)
    gate = F.silu(z) if activation == "silu" else z.sigmoid()
    wanted = F.rms_norm(o, (8,), w, 1e-6).view(2, 24) * gate
    assert torch.allclose(gated_norm(o, z, build_rms_weight(w, 1e-6), activation), wanted, rtol=1e-12)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_convolution_equals_conv1d_and_keeps_the_last_inputs(uniform: bool, length: int) -> None:
    x, w = torch.randn(length, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    tail = torch.full((8, 3, 6), float("nan"), dtype=torch.float64)
    past = torch.randn(3, 6, dtype=torch.float64)
    tail[1] = past
    found = causal_conv1d(x, w, tail, slot_step(length, uniform), 0)
    window = torch.cat((past, x))
    wanted = F.silu(F.conv1d(window.t()[None], w.t()[:, None], groups=6)[0].t())
    assert torch.allclose(found, wanted, rtol=1e-12)
    if not uniform:
        assert torch.equal(tail[1], window[-3:])
    else:
        for index in range(length):
            assert torch.equal(tail[1 + index], window[index + 1 : index + 4])


def reference_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence as written, token by token, one head per leading index."""
    out = []
    for t in range(q.shape[1]):
        state = g[:, t].exp()[:, None, None] * state
        delta = beta[:, t, None] * (v[:, t] - torch.einsum("hkv,hk->hv", state, k[:, t]))
        state = state + k[:, t, :, None] * delta[:, None]
        out.append(torch.einsum("hkv,hk->hv", state, q[:, t]))
    return torch.stack(out, 1), state


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("length", [1, 3, 64, 65, 150])
def test_both_forms_of_the_delta_rule_equal_the_recurrence(uniform: bool, length: int) -> None:
    if uniform and length > 3:
        length = 4
    shape = build_delta_rule_shape(
        key_heads=2, value_heads=6, key_width=5, value_width=7, dtype=torch.float64, device="cpu"
    )
    qkv = torch.randn(length, 2 * 10 + 42, dtype=torch.float64)
    g = -torch.rand(length, 6, dtype=torch.float64) * 3
    beta = torch.rand(length, 6, dtype=torch.float64)
    state = torch.full((8, 6, 5, 7), float("nan"), dtype=torch.float64)
    state[1] = torch.randn(6, 5, 7, dtype=torch.float64)
    q, k = qkv[:, :20].view(length, 2, 2, 5).unbind(1)
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(3, 1).transpose(0, 1) for x in (q * 5**-0.5, k))
    v = qkv[:, 20:].view(length, 6, 7).transpose(0, 1)
    wanted, last = reference_rule(q, k, v, g.t(), beta.t(), state[1])
    found = gated_delta_rule(qkv, g, beta, state, shape, slot_step(length, uniform), 0)
    assert torch.allclose(found.view(length, 6, 7).transpose(0, 1), wanted, rtol=1e-9, atol=1e-12)
    assert torch.allclose(state[length if uniform else 1], last, rtol=1e-9, atol=1e-12)


def test_strong_decay_neither_overflows_nor_gives_nan_in_float32() -> None:
    shape = build_delta_rule_shape(
        key_heads=1, value_heads=1, key_width=4, value_width=4, dtype=torch.float32, device="cpu"
    )
    state = torch.zeros(2, 1, 4, 4)
    g = torch.full((128, 1), -50.0)
    out = gated_delta_rule(
        torch.randn(128, 12), g, torch.full((128, 1), 0.9), state, shape, slot_step(128, False), 0
    )
    assert out.isfinite().all()
    assert state[1].isfinite().all()
