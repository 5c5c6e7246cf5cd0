"""The core's kernels compile for sm_90 at the shapes of Qwen3.5, and keep to what a block has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vtcore.interfaces.step import LayerCache, PagedPool, PrefillSpan, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.layers.paged_kv import PagedKV, build_paged_kv
from vtcore.layers.rope import RotaryTable
from vtcore.ops.add_rms_norm.triton import add_rms_norm
from vtcore.ops.launch import Launch, recording
from vtcore.ops.paged_attention.triton import paged_attention, paged_attention_batch_invariant
from vtcore.ops.qk_norm_rope_write.triton import qk_norm_rope_write
from vtcore.ops.rms_norm.triton import rms_norm
from vtcore.ops.silu_mul.triton import silu_mul
from vtcore.testing.kernel_compile import check_compiled

HIDDEN = (1024, 2560, 5120)
HEADS = [(8, 2), (16, 4), (24, 4), (16, 2)]
"""Query and key/value heads of 0.8B and 2B, of 4B and 9B, of 27B, of 35B-A3B."""
WIDTH, ROTATED, BLOCK_SIZE, TABLE = 256, 64, 32, 128
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def meta(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def record(run: Callable[[], object]) -> list[Launch]:
    found: list[Launch] = []
    with recording(found.append):
        run()
    return found


def make_step(uniform: int, query: int, prefill: int, window: int | None = None) -> StepInputs:
    """A step of `uniform` rows and perhaps a prefill row, whose numbers a launch does not depend on."""
    tokens, rows = uniform * query + prefill, uniform + bool(prefill)
    pool = PagedPool(BLOCK_SIZE, window, meta(rows, TABLE), meta(tokens), None)
    return StepInputs(
        ids=meta(tokens),
        positions=meta(tokens),
        num_uniform=uniform,
        query_len=query,
        prefill=(PrefillSpan(uniform, uniform * query, prefill, 0),) if prefill else (),
        computed=meta(rows),
        query_lens=meta(rows),
        query_start=meta(rows + 1),
        query_len_min=query,
        context_max=TABLE * BLOCK_SIZE,
        pools=(pool,),
    )


def make_kv(groups: int, width: int, dtype: torch.dtype) -> PagedKV:
    tensors = {name: meta(4, BLOCK_SIZE, groups, width, dtype=dtype) for name in "kv"}
    return build_paged_kv(LayerCache(0, tensors))


def attend(
    op: Callable[..., Tensor],
    heads: tuple[int, int],
    dtype: torch.dtype,
    step: StepInputs,
    *,
    width: int = WIDTH,
    is_gated: bool = True,
) -> list[Launch]:
    """Launches of an op whose gate lies beside the keys, as a joined projection leaves it."""
    tokens = step.ids.shape[0]
    joined = meta(tokens, (2 * heads[0] + 2 * heads[1]) * width, dtype=dtype)
    gate = joined[:, -heads[0] * width :] if is_gated else None
    q, kv = meta(tokens, heads[0], width, dtype=dtype), make_kv(heads[1], width, dtype)
    pool = step.pools[0]
    return record(lambda: op(q, kv, step, pool, width**-0.5, gate))


def has_wgmma(launch: Launch) -> bool:
    """Prefill on bfloat16; a warpgroup's instructions compute no ieee float32."""
    return launch.kernel.__name__ == "prefill_kernel" and launch.constants["PRECISION"] is None


def is_float32(launch: Launch) -> bool:
    """Products of exact float32 hold whole operands in registers; that dtype is for comparisons only."""
    return launch.constants.get("PRECISION") == "ieee"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_norms_and_gates(dtype: torch.dtype) -> None:
    launches = []
    for hidden in HIDDEN:
        weight = build_rms_weight(meta(hidden, dtype=torch.float32), 1e-6)
        x, apart = meta(3, hidden, dtype=dtype), meta(3, hidden + 64, dtype=dtype)[:, :hidden]
        launches += record(lambda x=x, weight=weight: add_rms_norm(x, x, weight))
        launches += record(lambda x=apart, weight=weight: rms_norm(x, weight))
        wide = meta(3, 7 * hidden, dtype=dtype)
        launches += record(lambda x=wide: silu_mul(x))
    reports = check_compiled(launches)
    assert {report.kernel for report in reports} == {"_rms_norm_kernel", "_silu_mul_kernel"}
    assert len(reports) == 3 * len(HIDDEN)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_heads_before_attention(dtype: torch.dtype) -> None:
    launches = []
    step = make_step(8, 1, 0)
    rotary = RotaryTable(
        theta=1e7, rotary_dim=ROTATED, max_position=TABLE * BLOCK_SIZE, dtype=torch.float32, device="meta"
    )
    for heads, groups in HEADS:
        joined = meta(8, (2 * heads + 2 * groups) * WIDTH, dtype=dtype)
        qk, v, _ = joined.split_with_sizes(((heads + groups) * WIDTH, groups * WIDTH, heads * WIDTH), -1)
        weight = build_rms_weight(meta(heads + groups, WIDTH, dtype=torch.float32), 1e-6)
        args = (qk, v, weight, rotary, make_kv(groups, WIDTH, dtype), step, step.pools[0])
        launches += record(lambda args=args: qk_norm_rope_write(*args))
    assert len(check_compiled(launches)) == len(HEADS)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_of_a_release(heads: tuple[int, int]) -> None:
    launches = []
    for query in (1, 4):
        # One row is cut into the most parts, and so many rows into none.
        for rows in (1, 256):
            launches += attend(paged_attention, heads, torch.bfloat16, make_step(rows, query, 0))
    launches += attend(paged_attention_batch_invariant, heads, torch.bfloat16, make_step(1, 1, 4096))
    reports = check_compiled(launches, wgmma=has_wgmma)
    assert {report.kernel for report in reports} == {"decode_kernel", "combine_kernel", "prefill_kernel"}


OTHERS = {
    "float32": {"dtype": torch.float32},
    "no gate": {"is_gated": False},
    "a window": {"window": 512},
    "narrow heads": {"width": 64},
    "heads of 128": {"width": 128},
    "no power of two": {"width": 96},
}


@pytest.mark.parametrize("name", OTHERS)
def test_attention_of_others(name: str) -> None:
    own = dict(OTHERS[name])
    step = make_step(2, 1, 100, own.pop("window", None))
    launches = attend(paged_attention, HEADS[0], own.pop("dtype", torch.bfloat16), step, **own)
    reports = check_compiled(launches, wgmma=has_wgmma, may_spill=is_float32)
    assert {report.kernel for report in reports} == {"decode_kernel", "combine_kernel", "prefill_kernel"}
