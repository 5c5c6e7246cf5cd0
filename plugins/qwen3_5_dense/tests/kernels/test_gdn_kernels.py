"""Gated DeltaNet as kernels, against the naive op in float64: outputs, states and conv tails."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from attrs import evolve, frozen
from vtcore_qwen3_5_dense.ops.gated_delta_net import naive, plan, triton
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import build_delta_rule_shape

from vtcore.errors import EngineError
from vtcore.interfaces.step import LayerCache, PrefillSpan, SlotPool, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.testing.triton_interpreter import assert_order_free, kernel_device

DEVICE = kernel_device()
SLOTS = 40


@frozen
class Case:
    """One call of the op, in float64 on the CPU."""

    projected: torch.Tensor
    layer: DeltaNetLayer
    conv: torch.Tensor
    state: torch.Tensor
    step: StepInputs


def make_case(
    seed: int,
    *,
    uniform: Sequence[int] = (),
    query: int = 1,
    prefill: Sequence[int] = (),
    padding: int = 0,
    fresh: bool = False,
    heads: tuple[int, int] = (1, 2),
    widths: tuple[int, int] = (16, 32),
    taps: int = 4,
    activation: str = "silu",
    columns: int = 1,
) -> Case:
    """Draw one.

    Args:
        uniform: Valid query tokens of each uniform row, 1 to `query`.
        prefill: Tokens of each prefill row.
        padding: Rows after the uniform ones that name the null row.
        fresh: Whether prefill rows start from slot 0, so without a state.
    """
    random = Random(seed)
    draw = torch.Generator().manual_seed(seed)
    key_heads, value_heads = heads
    key_width, value_width = widths
    channels = 2 * key_heads * key_width + value_heads * value_width
    num_uniform = len(uniform) + padding
    tokens = num_uniform * query + sum(prefill)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    layer = DeltaNetLayer(
        conv_WC=0.5 * normal(taps, channels),
        decay_rate_G=-normal(value_heads).exp(),
        dt_bias_G=normal(value_heads),
        norm=build_rms_weight(1 + 0.3 * normal(value_width), 1e-6),
        shape=build_delta_rule_shape(
            key_heads=key_heads,
            value_heads=value_heads,
            key_width=key_width,
            value_width=value_width,
            dtype=torch.float64,
            device="cpu",
        ),
        split=(channels, value_heads * value_width, value_heads, value_heads),
        activation=activation,
        acc_dtype=torch.float64,
    )
    slots = random.sample(range(1, SLOTS), (len(uniform) + len(prefill)) * columns)
    write = [slots[i * columns : (i + 1) * columns] for i in range(len(uniform) + len(prefill))]
    write = [*write[: len(uniform)], *[[0] * columns] * padding, *write[len(uniform) :]]
    read = [0 if not own[0] else random.choice(own) for own in write]
    lens = [*uniform, *[0] * padding, *prefill]
    starts, spans, offset = [], [], 0
    for index, length in enumerate(lens):
        starts.append(offset)
        if index >= num_uniform:
            spans.append(PrefillSpan(index, offset, length, 0))
            offset += length
            if fresh:
                read[index] = write[index][0]
        else:
            offset += query
    step = StepInputs(
        ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.zeros(tokens, dtype=torch.int64),
        num_uniform=num_uniform,
        query_len=query,
        prefill=tuple(spans),
        computed=torch.zeros(len(lens), dtype=torch.int64),
        query_lens=torch.tensor(lens),
        query_start=torch.tensor([*starts, offset]),
        query_len_min=min([*uniform, *[0] * bool(padding)], default=query),
        context_max=1,
        pools=(SlotPool(torch.tensor(read), torch.tensor(write)),),
    )
    state = 0.5 * normal(SLOTS, value_heads, key_width, value_width)
    conv = normal(SLOTS, taps - 1, channels)
    if fresh:
        for index in range(num_uniform, len(lens)):
            state[read[index]], conv[read[index]] = 0, 0
    return Case(normal(tokens, sum(layer.split)), layer, conv, state, step)


def convert(case: Case, dtype: torch.dtype, acc: torch.dtype, device: str) -> Case:
    """The same numbers in another dtype, elsewhere."""

    def to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)

    layer = evolve(
        case.layer,
        conv_WC=to(case.layer.conv_WC, acc),
        decay_rate_G=to(case.layer.decay_rate_G, acc),
        dt_bias_G=to(case.layer.dt_bias_G, acc),
        norm=evolve(
            case.layer.norm, scale=to(case.layer.norm.scale, acc), floor=to(case.layer.norm.floor, acc)
        ),
        shape=build_delta_rule_shape(
            key_heads=case.layer.shape.key_heads,
            value_heads=case.layer.shape.value_heads,
            key_width=case.layer.shape.key_width,
            value_width=case.layer.shape.value_width,
            dtype=acc,
            device=device,
        ),
        acc_dtype=acc,
    )
    pool = case.step.pools[0]
    assert isinstance(pool, SlotPool)
    step = evolve(
        case.step,
        ids=case.step.ids.to(device),
        positions=case.step.positions.to(device),
        computed=case.step.computed.to(device),
        query_lens=case.step.query_lens.to(device),
        query_start=case.step.query_start.to(device),
        pools=(SlotPool(pool.read_slots.to(device), pool.write_slots.to(device)),),
    )
    return Case(to(case.projected, dtype), layer, to(case.conv, dtype), to(case.state, acc), step)


def run(case: Case, op: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, states and tails after one call."""
    cache = LayerCache(0, {"conv": case.conv, "state": case.state})
    out = op(case.projected, case.layer, cache, case.step)  # type: ignore[operator]
    return out.cpu().double(), case.state.cpu().double(), case.conv.cpu().double()


def check(case: Case, dtype: torch.dtype, slack: float = 4e-3) -> None:
    """Kernels in `dtype` are no further from float64 than that dtype allows, and touch no other slot.

    Args:
        slack: Relative error in bfloat16 beside half as much again as the naive op's, which rounds at the
            ends only.
    """
    rounded = convert(case, dtype, torch.float32, "cpu")
    exact = convert(convert(case, dtype, torch.float32, "cpu"), torch.float64, torch.float64, "cpu")
    wanted = run(exact, naive.gated_delta_net)
    found = run(convert(rounded, dtype, torch.float32, DEVICE), triton.gated_delta_net)
    pool = case.step.pools[0]
    assert isinstance(pool, SlotPool)
    touched = sorted({*pool.write_slots.flatten().tolist()} - {0})
    others = [slot for slot in range(SLOTS) if slot not in touched]
    before = (rounded.state.double(), rounded.conv.double())
    for own, old in zip(found[1:], before, strict=True):
        assert torch.equal(own[others], old[others]), "a slot was touched that no row names"
    valid = torch.zeros(case.projected.shape[0], dtype=torch.bool)
    for start, length in zip(case.step.query_start.tolist(), case.step.query_lens.tolist(), strict=False):
        valid[start : start + length] = True
    pairs = [
        (found[0][valid], wanted[0][valid]),
        (found[1][touched], wanted[1][touched]),
        (found[2][touched], wanted[2][touched]),
    ]
    if dtype == torch.float32:
        for own, right in pairs:
            assert float((own - right).norm() / right.norm().clamp(min=1e-9)) < 5e-6
        return
    naively = run(convert(rounded, dtype, torch.float32, "cpu"), naive.gated_delta_net)
    peers = [naively[0][valid], naively[1][touched], naively[2][touched]]
    for (own, right), peer in zip(pairs, peers, strict=True):
        scale = right.norm().clamp(min=1e-9)
        assert float((own - right).norm() / scale) <= 1.5 * float((peer - right).norm() / scale) + slack


CASES = {
    "decode": {"uniform": [1] * 5},
    "decode with padding": {"uniform": [1, 1, 1], "padding": 3},
    "verify": {"uniform": [3, 1, 2, 3], "query": 3, "columns": 3},
    "verify with padding": {"uniform": [2, 1], "query": 2, "columns": 2, "padding": 2},
    "one token": {"prefill": [1]},
    "a chunk less one": {"prefill": [63]},
    "a chunk": {"prefill": [64]},
    "a chunk and one": {"prefill": [65]},
    "several rows": {"prefill": [5, 130, 1, 64, 17]},
    "without a state": {"prefill": [70, 3], "fresh": True},
    "mixed": {"uniform": [1, 1], "padding": 1, "prefill": [66, 2]},
    "mixed verify": {"uniform": [2, 3], "query": 3, "columns": 3, "prefill": [9, 65]},
    "equal heads": {"uniform": [1, 1], "prefill": [20], "heads": (2, 2), "widths": (32, 32)},
    "three taps": {"uniform": [1, 1], "prefill": [20, 2], "taps": 3},
    "two taps": {"uniform": [2, 1], "query": 2, "columns": 2, "prefill": [20, 1], "taps": 2},
    "sigmoid": {"uniform": [1], "prefill": [30], "activation": "sigmoid"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_states_and_tails_are_the_naive_ops(name: str, dtype: torch.dtype) -> None:
    check(make_case(len(name), **CASES[name]), dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_equal_keys_do_not_blow_up_the_inverse(dtype: torch.dtype) -> None:
    case = make_case(3, prefill=[64], fresh=True, heads=(1, 1))
    # One token over and over, taken in whole and never forgotten: the worst triangle there is.
    projected = case.projected[:1].repeat(64, 1)
    projected[:, -2], projected[:, -1] = 9.0, -20.0
    # Kernels round the triangle's inverse to bfloat16, a unit in the last place of which is 0.8 %.
    check(evolve(case, projected=projected), dtype, slack=8e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["decode", "decode with padding", "mixed", "sigmoid"])
def test_a_state_in_halves(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "step_rule", lambda rows, shape: plan.Tile(shape.value_width // 2))
    check(make_case(len(name), **CASES[name]), dtype)


def test_what_a_chunk_leaves_is_what_the_next_one_reads() -> None:
    whole = convert(make_case(5, prefill=[100]), torch.float32, torch.float32, DEVICE)
    cut = convert(make_case(5, prefill=[100]), torch.float32, torch.float32, DEVICE)
    out, state, conv = run(whole, triton.gated_delta_net)
    parts = []
    for low, high in ((0, 64), (64, 100)):
        step = evolve(
            cut.step,
            prefill=(PrefillSpan(0, 0, high - low, 0),),
            query_lens=torch.tensor([high - low], device=DEVICE),
            query_start=torch.tensor([0, high - low], device=DEVICE),
        )
        part = evolve(cut, projected=cut.projected[low:high], step=step)
        parts.append(run(part, triton.gated_delta_net)[0])
    assert torch.equal(torch.cat(parts), out)
    assert torch.equal(cut.state.cpu().double(), state)
    assert torch.equal(cut.conv.cpu().double(), conv)


def test_any_order_of_programs_gives_the_same() -> None:
    """Programs of one row read the slot that others of it write."""
    case = make_case(6, uniform=[2, 3], query=3, columns=3, padding=1, prefill=[9, 66])
    assert_order_free(
        lambda: run(convert(case, torch.float32, torch.float32, DEVICE), triton.gated_delta_net)
    )


def test_a_row_has_the_same_bits_alone() -> None:
    rows = [5, 70, 130]
    case = convert(make_case(7, prefill=rows), torch.bfloat16, torch.float32, DEVICE)
    pool = case.step.pools[0]
    assert isinstance(pool, SlotPool)
    op = triton.gated_delta_net_batch_invariant
    together, start = run(evolve(case, state=case.state.clone(), conv=case.conv.clone()), op), 0
    for row, length in enumerate(rows):
        step = evolve(
            case.step,
            prefill=(PrefillSpan(0, 0, length, 0),),
            query_lens=torch.tensor([length], device=DEVICE),
            query_start=torch.tensor([0, length], device=DEVICE),
            pools=(SlotPool(pool.read_slots[row : row + 1], pool.write_slots[row : row + 1]),),
        )
        alone = evolve(
            case,
            projected=case.projected[start : start + length],
            state=case.state.clone(),
            conv=case.conv.clone(),
            step=step,
        )
        out, state, conv = run(alone, op)
        slot = int(pool.write_slots[row, 0])
        assert torch.equal(out, together[0][start : start + length])
        assert torch.equal(state[slot], together[1][slot])
        assert torch.equal(conv[slot], together[2][slot])
        start += length


@pytest.mark.parametrize("widths", [(16, 24), (8, 16)])
def test_a_width_that_kernels_do_not_take_is_refused(widths: tuple[int, int]) -> None:
    case = convert(make_case(1, uniform=[1], widths=widths), torch.float32, torch.float32, DEVICE)
    with pytest.raises(EngineError, match=r"power of two of at least 16, not (24|8)"):
        run(case, triton.gated_delta_net)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slots_beyond_the_2_to_the_31st_element(dtype: torch.dtype) -> None:
    case = make_case(9, uniform=[2, 1], query=2, columns=2, padding=1, prefill=[66, 2])
    near = convert(case, dtype, torch.float32, DEVICE)
    pool = near.step.pools[0]
    assert isinstance(pool, SlotPool)
    unused = 2**31 // case.conv[0].numel()

    def behind(values: torch.Tensor) -> torch.Tensor:
        out = torch.full((unused + SLOTS, *values.shape[1:]), 7.0, dtype=values.dtype, device=DEVICE)
        out[unused:] = values
        return out

    def moved(slots: torch.Tensor) -> torch.Tensor:
        return slots + unused * (slots > 0)

    step = evolve(near.step, pools=(SlotPool(moved(pool.read_slots), moved(pool.write_slots)),))
    far = evolve(near, conv=behind(near.conv), state=behind(near.state), step=step)
    outputs = [
        triton.gated_delta_net(
            own.projected, own.layer, LayerCache(0, {"conv": own.conv, "state": own.state}), own.step
        )
        for own in (near, far)
    ]
    assert torch.equal(outputs[1], outputs[0])
    assert torch.equal(far.state[unused:], near.state)
    assert torch.equal(far.conv[unused:], near.conv)
    assert bool((far.state[:unused] == 7).all())
    assert bool((far.conv[:unused] == 7).all())
