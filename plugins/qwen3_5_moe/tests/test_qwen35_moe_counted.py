"""The forms of the op for benchmarks: what they count, and that counting changes no result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from vtcore_qwen3_5_moe.arch import MOE_OPS
from vtcore_qwen3_5_moe.ops.sparse_moe import counted, naive

from vtcore.interfaces.model_arch import GroupedLinear
from vtcore.layers.linear import build_grouped_linear

E, H, I, K, T = 6, 16, 10, 2, 5  # noqa: E741 - the letters of the formulas


@pytest.fixture(autouse=True)
def _fresh_tally() -> Iterator[None]:
    counted.take_tally()
    yield
    counted.take_tally()


def case(gates_TX: Tensor) -> tuple[Tensor, Tensor, GroupedLinear, GroupedLinear, int, None]:
    """The op's arguments; the shared expert is the last group."""
    generator = torch.Generator().manual_seed(1)
    x_TH = torch.randn(gates_TX.shape[0], H, generator=generator)
    weights = [
        torch.randn((E + 1) * rows, width, generator=generator) for rows, width in ((2 * I, H), (H, I))
    ]
    in_proj, out_proj = (build_grouped_linear(weight, False, E + 1) for weight in weights)
    return x_TH, gates_TX, in_proj, out_proj, K, None


def gates_for(*experts: tuple[int, int]) -> Tensor:
    """Logits [T, E + 1] by which the tokens choose so."""
    gates = torch.zeros(len(experts), E + 1)
    for row, (first, second) in enumerate(experts):
        gates[row, first], gates[row, second] = 9, 8
    # Of the shared expert, however large, no choice.
    gates[:, E] = 20
    return gates


def test_counts_are_of_distinct_routed_experts_and_of_the_fullest() -> None:
    first, second = gates_for((0, 1), (0, 2), (0, 1)), gates_for((5, 4))
    for gates in (first, second):
        arguments = case(gates)
        assert torch.equal(counted.sparse_moe_counted(*arguments), naive.sparse_moe(*arguments))
    assert counted.take_tally() == (2, 3 + 2, 3 + 1)
    assert counted.take_tally() == (0, 0, 0), "a look forgets"


def test_the_tally_of_a_step_can_be_taken_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        counted.sparse_moe_counted(*case(gates_for((0, 1))))
    assert counted.take_tally() == (1, 2, 1)


def test_skewed_an_expert_counts_as_its_probability_divided_by_its_number() -> None:
    gates = torch.randn(T, E + 1, generator=torch.Generator().manual_seed(2))
    arguments = case(gates)
    divided = gates.clone()
    divided[:, :E] = (gates[:, :E].softmax(-1) / torch.arange(1, E + 1)).log()
    found = counted.sparse_moe_skewed(*arguments)
    assert torch.allclose(found, naive.sparse_moe(*case(divided)), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, naive.sparse_moe(*arguments), rtol=1e-2, atol=1e-2)
    assert torch.equal(counted.sparse_moe_skewed_counted(*arguments), found)
    assert counted.take_tally()[0] == 1, "only the counting form counts"


def test_where_all_logits_are_equal_the_skew_fills_the_first_experts() -> None:
    counted.sparse_moe_skewed_counted(*case(torch.zeros(T, E + 1)))
    assert counted.take_tally() == (1, K, T)


def test_the_arch_names_the_forms_that_benchmarks_look_for() -> None:
    for form in ("counted", "skewed", "skewed_counted"):
        module, _, function = MOE_OPS["sparse_moe"][form].partition(":")
        assert module == counted.__name__
        assert callable(getattr(counted, function))
