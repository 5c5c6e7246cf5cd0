"""The mixture of experts as kernels, against the naive op in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor
from vtcore_qwen3_5_moe.ops.sparse_moe import naive, plan, triton

from vtcore.layers.linear import StackedLinear
from vtcore.ops.launch import launch
from vtcore.testing.triton_interpreter import assert_order_free, is_interpreting, kernel_device, poisoned

DEVICE = kernel_device()
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
"""In bfloat16 an expert's inner row, its result and their sum are rounded; each by 2^-9 of itself at most."""
SIZES = {"odd": (40, 24, 8, 3, True), "even": (64, 32, 16, 2, False), "few": (48, 32, 3, 3, True)}
"""Hidden size, inner width, experts, experts per token, whether the shared expert is one group more."""
OPS = {"fast": triton.sparse_moe, "invariant": triton.sparse_moe_batch_invariant}
GUARD = 64
"""Numbers before and after each tensor that a guarded launch sees; a multiple of 16 bytes."""
PLANS: dict[str, plan.Plan] = {
    "by row": plan.ByRow(plan._ROW, plan._ROW),
    "by row in steps": plan.ByRow(plan.RowTile(columns=16, depth=16), plan.RowTile(columns=32, depth=16)),
    "invariant": plan.invariant_plan("bfloat16"),
    **{f"by tile from {first} tokens": plan.ByTile(tile, tile) for first, tile in plan._TILES},
}


@frozen
class Case:
    """Arguments of the op."""

    x: Tensor
    gates: Tensor
    weight_in: Tensor
    weight_out: Tensor
    top_k: int
    shared: Tensor | None


def make_case(tokens: int, size: str, dtype: torch.dtype, *, swaps_shared: bool = False) -> Case:
    hidden, inner, experts, top_k, has_shared = SIZES[size]
    has_shared = has_shared != swaps_shared
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    groups = experts + has_shared
    return Case(
        normal(tokens, hidden),
        normal(tokens, experts + 1),
        normal(groups, 2 * inner, hidden) / hidden**0.5,
        normal(groups, hidden, inner) / inner**0.5,
        top_k,
        None if has_shared else normal(tokens, hidden),
    )


def run(op: Callable[..., Tensor], case: Case, dtype: torch.dtype, device: str) -> Tensor:
    def to(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype)

    return op(
        to(case.x),
        to(case.gates),
        StackedLinear(to(case.weight_in)),
        StackedLinear(to(case.weight_out)),
        case.top_k,
        None if case.shared is None else to(case.shared),
    )


def by(own: plan.Plan) -> Callable[..., Tensor]:
    """The op by that plan."""

    def op(
        x: Tensor, gates: Tensor, in_proj: Any, out_proj: Any, top_k: int, shared: Tensor | None
    ) -> Tensor:
        experts, weights = triton.route(gates, top_k, shared is None)
        return triton.run_experts(x, experts, weights, in_proj, out_proj, shared, own)

    return op


def check(op: Callable[..., Tensor], case: Case, dtype: torch.dtype) -> None:
    wanted = run(naive.sparse_moe, case, torch.float64, "cpu")
    found = run(op, case, dtype, DEVICE).cpu().double()
    assert float((found - wanted).norm() / wanted.norm()) < BOUNDS[dtype]


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Launches see copies of their tensors between guards that no kernel may write, and NaN if it reads
    them; the names of the kernels that ran come back."""
    names: list[str] = []

    def guarded_launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        held = []
        for arg in args:
            if isinstance(arg, Tensor) and arg.is_contiguous():
                around = poisoned((arg.numel() + 2 * GUARD,), arg.dtype).to(arg.device)
                around[GUARD:-GUARD] = arg.flatten()
                held.append((arg, around, around.clone()))
        inner = iter(around[GUARD:-GUARD] for _, around, _ in held)
        launch(kernel, grid, *(next(inner) if isinstance(arg, Tensor) else arg for arg in args), **constants)
        for arg, around, before in held:
            for side in (slice(None, GUARD), slice(-GUARD, None)):
                assert torch.equal(around[side].isnan(), before[side].isnan()), kernel
                assert torch.equal(around[side].nan_to_num(), before[side].nan_to_num()), kernel
            arg.copy_(around[GUARD:-GUARD].view(arg.shape))
        names.append(kernel.__name__)

    monkeypatch.setattr(triton, "launch", guarded_launch)
    return names


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(
    ("tokens", "size"), [*product((1, 2, 5, 17), SIZES), (64, "few"), (64, "even"), (130, "odd")]
)
def test_results_are_the_naive_ops(
    tokens: int, size: str, dtype: torch.dtype, name: str, guarded: list[str]
) -> None:
    check(OPS[name], make_case(tokens, size, dtype), dtype)
    assert guarded[0] == "route_kernel"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", [1, 17])
def test_the_shared_expert_may_be_a_group_or_apart(tokens: int, size: str) -> None:
    case = make_case(tokens, size, torch.float32, swaps_shared=True)
    for op in OPS.values():
        check(op, case, torch.float32)


@pytest.mark.parametrize("swaps_shared", [False, True], ids=["shared as group", "shared apart"])
@pytest.mark.parametrize("name", PLANS)
def test_each_plan_is_right(name: str, swaps_shared: bool) -> None:
    check(by(PLANS[name]), make_case(19, "odd", torch.bfloat16, swaps_shared=swaps_shared), torch.bfloat16)


def test_more_rows_than_one_program_orders(guarded: list[str]) -> None:
    tile = plan.Tile(rows=32, columns=32, depth=64)
    check(by(plan.ByTile(tile, tile)), make_case(190, "odd", torch.float32), torch.float32)
    assert "count_kernel" in guarded


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("tokens", [1, 70])
def test_all_tokens_may_go_to_the_same_experts(tokens: int, name: str) -> None:
    case = make_case(tokens, "even", torch.float32)
    case.gates[:, 3], case.gates[:, 11] = 50.0, 49.0
    check(OPS[name], case, torch.float32)


@pytest.mark.parametrize("name", PLANS)
def test_a_row_of_nan_spoils_no_other(name: str) -> None:
    case = make_case(5, "odd", torch.float32)
    clean = run(by(PLANS[name]), case, torch.float32, DEVICE)
    spoiled = evolve(case, x=case.x.clone(), gates=case.gates.clone())
    spoiled.x[2], spoiled.gates[2] = float("nan"), float("nan")
    found = run(by(PLANS[name]), spoiled, torch.float32, DEVICE)
    others = [0, 1, 3, 4]
    assert found[2].isnan().all()
    assert torch.allclose(found[others], clean[others], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 5), (8, 3), (40, 8), (256, 8)])
def test_of_equal_logits_the_lower_experts_are_taken(experts: int, top_k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(experts)
    gates = torch.randint(-3, 4, (12, experts + 1), generator=generator).to(dtype)
    gates[0] = 0
    gates[1, ::2], gates[1, 1::2] = -0.0, 0.0
    gates[2, : experts - top_k] = float("-inf")
    gates[3] = -gates[3].abs()
    wanted, weights = naive.route(gates[:, :-1].to(torch.float64), top_k)
    for has_shared in (False, True):
        found, found_weights = triton.route(gates.to(DEVICE), top_k, has_shared)
        assert torch.equal(found[:, :top_k].cpu().long(), wanted)
        assert (found[:, top_k:] == experts).all()
        assert torch.allclose(found_weights[:, :top_k].cpu().double(), weights, rtol=1e-6)
        assert torch.allclose(found_weights[:, top_k].cpu(), gates[:, -1].float().sigmoid(), rtol=1e-6)


def test_logits_may_lie_among_others() -> None:
    apart = poisoned((6, 32), torch.float32)
    apart[:, :9] = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    apart = apart.to(DEVICE)
    for one, other in zip(
        triton.route(apart[:, :9], 3, True), triton.route(apart[:, :9].contiguous(), 3, True), strict=True
    ):
        assert torch.equal(one, other)


def routings() -> Iterator[tuple[str, Tensor, int, int]]:
    """Name, experts [T, C] int32, routed choices, groups."""
    generator = torch.Generator().manual_seed(3)
    for tokens in (1, 2, 17, 64, 171, 300, 700):
        drawn = torch.rand(tokens, 12, generator=generator).argsort(-1)
        yield f"{tokens} rows", drawn[:, :3], 3, 12
        shared = torch.full((tokens, 1), 12)
        yield f"{tokens} rows and a shared expert", torch.cat((drawn[:, :3], shared), 1), 3, 13
        yield f"{tokens} rows to the last experts", drawn[:, :3] % 3 + 9, 3, 12
    yield "all to one", torch.zeros(700, 1, dtype=torch.int64), 1, 12


@pytest.mark.parametrize("case", list(routings()), ids=lambda case: case[0])
@pytest.mark.parametrize("rows", [16, 64])
def test_rows_are_ordered_by_expert_and_tiles_cover_them(
    case: tuple[str, Tensor, int, int], rows: int, guarded: list[str]
) -> None:
    _, experts, top_k, groups = case
    order, tiles = triton._order_rows(experts.int().to(DEVICE).contiguous(), top_k, groups, rows)
    # A choice of a token is one pair; pairs are numbered token by token.
    assert torch.equal(order.cpu().long(), experts.flatten().argsort(stable=True))
    counts = torch.bincount(experts.flatten(), minlength=groups).tolist()
    wanted, start = [], 0
    for group, count in enumerate(counts):
        wanted += [
            [group, first, min(first + rows, start + count)] for first in range(start, start + count, rows)
        ]
        start += count
    if experts.shape[1] > top_k:
        wanted.sort(key=lambda tile: tile[0] != groups - 1)
    found = tiles.cpu().tolist()
    assert found[: len(wanted)] == wanted
    assert all(tile[0] == -1 for tile in found[len(wanted) :])


@pytest.mark.skipif(not is_interpreting(), reason="a GPU chooses its own order")
@pytest.mark.parametrize("name", ["by row", "by row in steps", "by tile from 0 tokens"])
def test_programs_may_run_in_any_order(name: str) -> None:
    case = make_case(3, "few", torch.bfloat16)
    assert_order_free(lambda: [run(by(PLANS[name]), case, torch.bfloat16, DEVICE)])


@pytest.mark.skipif(not is_interpreting(), reason="a GPU chooses its own order")
def test_ordering_programs_may_run_in_any_order() -> None:
    generator = torch.Generator().manual_seed(4)
    experts = torch.rand(400, 12, generator=generator).argsort(-1)[:, :3].int().contiguous()
    assert_order_free(lambda: triton._order_rows(experts, 3, 12, 16))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_batch_invariant_sums_come_in_one_order(dtype: torch.dtype) -> None:
    """Sums of each step of 128 are exact, so that the order of steps alone decides the bits."""
    hidden, inner, experts, tokens = 512, 16, 4, 70
    generator = torch.Generator().manual_seed(5)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-7, 8, shape, generator=generator).float()

    scales = torch.tensor([2.0**-19, 2.0**-6, 2.0**3, 3 * 2.0**-15]).repeat_interleave(128)
    # A row of the second matrices takes one inner number.
    weight_out = torch.eye(inner).repeat(experts, hidden // inner, 1)
    gates = torch.randn(tokens, experts + 1, generator=generator)
    case = Case(
        whole(tokens, hidden) * scales,
        gates.bfloat16().float(),
        whole(experts, 2 * inner, hidden),
        weight_out,
        2,
        whole(tokens, hidden),
    )

    def part(first: int, last: int) -> Case:
        assert case.shared is not None
        return evolve(
            case, x=case.x[first:last], gates=case.gates[first:last], shared=case.shared[first:last]
        )

    together = run(triton.sparse_moe_batch_invariant, case, dtype, DEVICE)
    for first, last in ((0, 1), (15, 17), (33, 70), (69, 70)):
        found = run(triton.sparse_moe_batch_invariant, part(first, last), dtype, DEVICE)
        assert torch.equal(found, together[first:last])
    if dtype == torch.float32:
        # Another order gives other bits, so the comparison above can fail.
        other = by(plan.ByRow(plan._ROW, plan._ROW))
        assert not torch.equal(run(other, part(0, 4), dtype, DEVICE), together[:4])


@pytest.mark.skipif(is_interpreting(), reason="numpy's own products choose an order by place")
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_batch_invariant_bits_do_not_depend_on_the_other_tokens(dtype: torch.dtype) -> None:
    case = make_case(130, "few", dtype)
    together = run(triton.sparse_moe_batch_invariant, case, dtype, DEVICE)
    for token in (0, 64, 129):
        alone = evolve(case, x=case.x[token : token + 1], gates=case.gates[token : token + 1])
        assert torch.equal(run(triton.sparse_moe_batch_invariant, alone, dtype, DEVICE)[0], together[token])


@pytest.mark.parametrize("name", OPS)
def test_no_rows_are_no_work(name: str) -> None:
    assert run(OPS[name], make_case(0, "odd", torch.bfloat16), torch.bfloat16, DEVICE).shape == (0, 40)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PLANS)
def test_experts_beyond_the_2_to_the_31st_element(name: str) -> None:
    """The same experts as the last of many: the same bits."""
    unused, own, hidden, inner = 508, 4, 2048, 2048
    draw = torch.Generator(DEVICE).manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=DEVICE, dtype=torch.bfloat16) / 45

    near = (normal(own, 2 * inner, hidden), normal(own, hidden, inner))
    far = [
        torch.full((unused + own, *matrix.shape[1:]), float("nan"), dtype=matrix.dtype, device=DEVICE)
        for matrix in near
    ]
    for matrix, small in zip(far, near, strict=True):
        matrix[unused:] = small
    x, shared = 45 * normal(5, hidden), normal(5, hidden)
    experts, weights = triton.route(normal(5, own + 1), 2, False)
    found = [
        triton.run_experts(x, chosen, weights, *map(StackedLinear, matrices), shared, PLANS[name])
        for chosen, matrices in ((experts, near), (experts + unused, far))
    ]
    assert torch.equal(found[1], found[0])
    assert found[0].isfinite().all()
