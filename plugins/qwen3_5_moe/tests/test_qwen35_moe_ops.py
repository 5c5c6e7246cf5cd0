"""Routing and routed experts against their formulas, and mistakes that other engines made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from qwen35_moe_oracle import build_oracle, oracle_logits, tiny_text_config
from torch import Tensor
from torch.nn import functional as F
from vtcore_qwen3_5_moe.arch import Qwen35MoeArch
from vtcore_qwen3_5_moe.ops.sparse_moe import naive
from vtcore_qwen3_5_moe.ops.sparse_moe.naive import weighted_experts

from vtcore.interfaces.model_arch import GroupedLinear
from vtcore.layers.dtypes import acc_dtype
from vtcore.layers.linear import build_grouped_linear
from vtcore.testing.model_harness import Harness, build_model

E, H, I = 6, 16, 10  # noqa: E741 - the letters of the formulas


def products(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, GroupedLinear, GroupedLinear]:
    """gate_up [E, 2I, H], down [E, H, I], and their products."""
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.randn(E, 2 * I, H, generator=generator, dtype=torch.float64).to(dtype) * H**-0.5
    down = torch.randn(E, H, I, generator=generator, dtype=torch.float64).to(dtype) * I**-0.5
    in_proj = build_grouped_linear(gate_up.flatten(0, 1), False, E)
    return gate_up, down, in_proj, build_grouped_linear(down.flatten(0, 1), False, E)


def routed(tokens: int, top_k: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, H, generator=generator, dtype=torch.float64).to(dtype)
    experts = torch.rand(tokens, E, generator=generator).argsort(-1)[:, :top_k]
    weights = torch.rand(tokens, top_k, generator=generator, dtype=torch.float64).to(acc_dtype(dtype))
    return x, experts, weights


def by_formula(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        for e, w in zip(experts[t].tolist(), weights[t].double(), strict=True):
            gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
            out[t] += w * (down[e].double() @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("top_k", [1, 2, E])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_routed_experts_equal_the_sum_over_each_tokens_experts(tokens: int, top_k: int) -> None:
    gate_up, down, in_proj, out_proj = products()
    x, experts, weights = routed(tokens, top_k)
    found = weighted_experts(x, experts, weights, in_proj, out_proj)
    assert torch.allclose(found, by_formula(x, experts, weights, gate_up, down), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_the_sum_over_experts_is_in_the_accumulation_dtype(dtype: torch.dtype, tolerance: float) -> None:
    gate_up, down, in_proj, out_proj = products(dtype)
    x, experts, weights = routed(40, 3, dtype)
    found = weighted_experts(x, experts, weights, in_proj, out_proj)
    assert found.dtype == torch.float32
    wanted = by_formula(x, experts, weights, gate_up, down)
    assert (found - wanted).abs().max() < tolerance * wanted.abs().max()


def test_all_tokens_on_one_expert_and_none_on_the_others() -> None:
    gate_up, down, in_proj, out_proj = products()
    x, _, weights = routed(20, 1)
    experts = torch.full((20, 1), E - 1)
    found = weighted_experts(x, experts, weights, in_proj, out_proj)
    assert torch.allclose(found, by_formula(x, experts, weights, gate_up, down), rtol=1e-12, atol=1e-12)


def test_the_output_of_a_token_does_not_depend_on_its_batch_mates() -> None:
    _, _, in_proj, out_proj = products()
    x, experts, weights = routed(33, 3)
    together = weighted_experts(x, experts, weights, in_proj, out_proj)
    shuffled = torch.randperm(33)
    again = weighted_experts(x[shuffled], experts[shuffled], weights[shuffled], in_proj, out_proj)
    assert torch.allclose(again, together[shuffled], rtol=0, atol=1e-13)
    for t in range(33):
        alone = weighted_experts(x[t : t + 1], experts[t : t + 1], weights[t : t + 1], in_proj, out_proj)
        assert torch.allclose(alone[0], together[t], rtol=0, atol=1e-13)


def test_a_token_of_nan_spoils_no_other() -> None:
    _, _, in_proj, out_proj = products()
    x, experts, weights = routed(9, 2)
    clean = weighted_experts(x, experts, weights, in_proj, out_proj)
    x[4] = float("nan")
    found = weighted_experts(x, experts, weights, in_proj, out_proj)
    assert found[4].isnan().all()
    others = [t for t in range(9) if t != 4]
    assert torch.allclose(found[others], clean[others], rtol=0, atol=1e-13)


def test_routing_is_a_softmax_over_all_experts_renormalised_over_the_chosen() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]], dtype=torch.float64)
    experts, weights = naive.route(logits, 2)
    assert experts.tolist() == [[1, 3]]
    assert torch.allclose(weights, torch.tensor([[3.0, 2.0]], dtype=torch.float64).softmax(-1), rtol=1e-14)
    assert weights.sum().item() == pytest.approx(1, abs=1e-15)


def logits_with(mistake: Callable[[Any], None] | None = None) -> tuple[Tensor, Tensor]:
    """The model's and transformers' logits, after `mistake` changed each layer's experts."""
    config = tiny_text_config()
    oracle = build_oracle(config)
    arch = Qwen35MoeArch(config)
    model: Any = build_model(arch, oracle.state_dict(), torch.float64)
    for layer in model._layers:
        if mistake is not None:
            mistake(layer.feed_forward)
    ids = [(7 * i) % 96 for i in range(20)]
    return Harness(arch, model, torch.float64).run_sequence(ids, [12]), oracle_logits(oracle, ids)


def drop_the_shared_expert(block: Any) -> None:
    block._shared = torch.zeros_like


def forget_the_shared_gate(block: Any) -> None:
    gates = block._gates
    # sigmoid(50) is 1.
    block._gates = lambda x: torch.cat((gates(x)[:, :-1], torch.full_like(x[:, :1], 50.0)), -1)


def leave_one_expert_out(block: Any) -> None:
    products = list(block._out_proj._products)
    products[3] = lambda x: torch.zeros(x.shape[0], 40, dtype=x.dtype)
    block._out_proj._products = tuple(products)


def without_renormalisation(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    weights, experts = logits.softmax(-1).topk(top_k, -1)
    return experts, weights


def in_bfloat16(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    weights, experts = logits.bfloat16().softmax(-1).topk(top_k, -1)
    return experts, (weights / weights.sum(-1, keepdim=True)).to(logits.dtype)


def assert_seen(found: Tensor, wanted: Tensor) -> None:
    assert (found - wanted).abs().max() > 1e-4 * wanted.abs().max()


def test_without_a_mistake_the_logits_are_transformers() -> None:
    found, wanted = logits_with()
    assert (found - wanted).abs().max() < 1e-8 * wanted.abs().max()


@pytest.mark.parametrize("mistake", [drop_the_shared_expert, forget_the_shared_gate, leave_one_expert_out])
def test_a_term_that_other_engines_left_out_would_be_seen(mistake: Callable[[Any], None]) -> None:
    assert_seen(*logits_with(mistake))


@pytest.mark.parametrize("mistake", [without_renormalisation, in_bfloat16])
def test_a_router_that_other_engines_had_would_be_seen(
    mistake: Callable[[Tensor, int], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naive, "route", mistake)
    assert_seen(*logits_with())


def test_routing_weights_of_a_bfloat16_model_are_not_rounded_to_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_text_config()
    arch = Qwen35MoeArch(config)
    model: Any = build_model(arch, build_oracle(config).state_dict(), torch.bfloat16)
    seen: list[Tensor] = []

    def record(x: Tensor, experts: Tensor, weights: Tensor, *products: GroupedLinear) -> Tensor:
        seen.append(weights)
        return weighted_experts(x, experts, weights, *products)

    monkeypatch.setattr(naive, "weighted_experts", record)
    Harness(arch, model, torch.bfloat16).run_sequence(list(range(12)), [12])
    weights = seen[0]
    assert weights.dtype == torch.float32
    assert (weights.sum(-1) - 1).abs().max() < 1e-6
    assert not torch.equal(weights, weights.bfloat16().to(weights.dtype))
