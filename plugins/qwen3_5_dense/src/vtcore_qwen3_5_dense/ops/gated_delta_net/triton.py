"""From a gated DeltaNet layer's input projection to its output projection, as Triton kernels.

Does not: project.

Shape letters: T query tokens, X width of the projection, B rows of the step, U uniform rows.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.step import LayerCache, SlotPool, StepInputs
from vtcore.ops.launch import launch
from vtcore.ops.tuned import device_name
from vtcore_qwen3_5_dense.ops.gated_delta_net import chunk_kernels, step_kernel
from vtcore_qwen3_5_dense.ops.gated_delta_net.layer import DeltaNetLayer
from vtcore_qwen3_5_dense.ops.gated_delta_net.plan import (
    Shape,
    Tile,
    choose_scan,
    choose_step,
    invariant_scan,
    invariant_step,
)
from vtcore_qwen3_5_dense.ops.gated_delta_rule.chunk import CHUNK
from vtcore_qwen3_5_dense.ops.gated_delta_rule.shape import L2_EPS

_TAIL_BLOCK = 256
"""Channels: with 8 of 2 bytes per thread, one warp holds all taps of a channel in one thread."""
_LEAST_WIDTH = 16
"""Of a head; matrix instructions take no fewer columns. Source: triton 3.6, tl.dot."""


def gated_delta_net(
    projected_TX: Tensor, layer: DeltaNetLayer, cache: LayerCache, step: StepInputs
) -> Tensor:
    """See `naive.gated_delta_net`; rows that name slot 0 touch no state, and give zeros if uniform.

    Raises:
        EngineError: A head's width is no power of two of at least 16, or the bound pool is not one of slots.
    """
    own, device = _shape_of(projected_TX, layer), device_name()
    step_tile = choose_step(device, step.num_uniform, step.query_len, own)
    scan_tile = choose_scan(device, len(step.prefill), own)
    return run(projected_TX, layer, cache, step, step_tile, scan_tile)


def gated_delta_net_batch_invariant(
    projected_TX: Tensor, layer: DeltaNetLayer, cache: LayerCache, step: StepInputs
) -> Tensor:
    """As `gated_delta_net`, each row's result the same bits among any other rows."""
    own = _shape_of(projected_TX, layer)
    return run(projected_TX, layer, cache, step, invariant_step(own), invariant_scan(own))


def run(
    projected_TX: Tensor,
    layer: DeltaNetLayer,
    cache: LayerCache,
    step: StepInputs,
    step_tile: Tile,
    scan_tile: Tile,
) -> Tensor:
    """The op by given tiles: of uniform rows' recurrent step, and of the pass over prefill rows' chunks.

    Raises:
        EngineError: As for `gated_delta_net`.
    """
    pool = step.pools[cache.pool]
    if not isinstance(pool, SlotPool):
        raise EngineError(f"pool {cache.pool} holds blocks, but a recurrent layer was bound to it")
    shape = layer.shape
    for width in (shape.key_width, shape.value_width):
        if width < _LEAST_WIDTH or width & (width - 1):
            raise EngineError(
                f"the kernels of gated_delta_net take heads whose width is a power of two of at least "
                f'{_LEAST_WIDTH}, not {width}; set op_overrides to {{"gated_delta_net": "naive"}}, without '
                f"batch_invariant"
            )
    num_tokens = projected_TX.shape[0]
    out_TX = projected_TX.new_empty((num_tokens, shape.value_heads * shape.value_width))
    if step.num_uniform:
        _uniform(projected_TX, layer, cache, step, pool, out_TX, step_tile)
    if step.prefill:
        _prefill(projected_TX, layer, cache, step, pool, out_TX, scan_tile)
    width, channels = layer.conv_WC.shape
    launch(
        step_kernel.tail_kernel,
        (step.query_lens.shape[0], triton.cdiv(channels, _TAIL_BLOCK)),
        projected_TX,
        cache["conv"],
        pool.read_slots,
        pool.write_slots,
        step.query_lens,
        step.query_start,
        step.num_uniform,
        S=pool.write_slots.shape[1],
        X=projected_TX.stride(0),
        C=channels,
        W=width,
        BLOCK=_TAIL_BLOCK,
        num_warps=1,
    )
    return out_TX


def _uniform(
    projected_TX: Tensor,
    layer: DeltaNetLayer,
    cache: LayerCache,
    step: StepInputs,
    pool: SlotPool,
    out_TX: Tensor,
    tile: Tile,
) -> None:
    shape = layer.shape
    width, channels = layer.conv_WC.shape
    launch(
        step_kernel.step_kernel,
        (step.num_uniform * shape.value_heads,),
        projected_TX,
        layer.conv_WC,
        layer.decay_rate_G,
        layer.dt_bias_G,
        layer.norm.scale,
        layer.norm.floor,
        cache["conv"],
        cache["state"],
        pool.read_slots,
        pool.write_slots,
        step.query_lens,
        out_TX,
        shape.scale,
        L2_EPS,
        Q=step.query_len,
        S=pool.write_slots.shape[1],
        X=projected_TX.stride(0),
        C=channels,
        W=width,
        HK=shape.key_heads,
        HV=shape.value_heads,
        K=shape.key_width,
        V=shape.value_width,
        BV=tile.columns,
        IS_SILU=layer.activation == "silu",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _prefill(
    projected_TX: Tensor,
    layer: DeltaNetLayer,
    cache: LayerCache,
    step: StepInputs,
    pool: SlotPool,
    out_TX: Tensor,
    tile: Tile,
) -> None:
    shape, device, dtype = layer.shape, projected_TX.device, projected_TX.dtype
    key_heads, heads, key_width = shape.key_heads, shape.value_heads, shape.key_width
    width, channels = layer.conv_WC.shape
    uniform, uniform_tokens = step.num_uniform, step.num_uniform_tokens
    num_tokens, num_rows = projected_TX.shape[0] - uniform_tokens, step.query_lens.shape[0]
    num_prefill = num_rows - uniform
    num_chunks = num_tokens // CHUNK + num_prefill
    qk = torch.empty((num_tokens, 2 * key_heads, key_width), dtype=dtype, device=device)
    v = torch.empty((num_tokens, heads, shape.value_width), dtype=dtype, device=device)
    g = torch.empty((num_tokens, heads), dtype=torch.float32, device=device)
    beta = torch.empty_like(g)
    w = torch.empty((num_tokens, heads, key_width), dtype=dtype, device=device)
    u = torch.empty_like(v)
    h = torch.empty((num_chunks, heads, key_width, shape.value_width), dtype=dtype, device=device)
    # On float32 the tensor cores would round to 10 bits.
    precision = "ieee" if dtype == torch.float32 else None
    sizes = {"HK": key_heads, "HV": heads, "K": key_width, "V": shape.value_width, "B": CHUNK}
    stride = projected_TX.stride(0)
    launch(
        chunk_kernels.prepare_kernel,
        (num_chunks, 2 * key_heads + heads),
        projected_TX,
        layer.conv_WC,
        layer.decay_rate_G,
        layer.dt_bias_G,
        cache["conv"],
        pool.read_slots,
        step.query_start,
        qk,
        v,
        g,
        beta,
        uniform,
        num_rows,
        uniform_tokens,
        shape.scale,
        L2_EPS,
        X=stride,
        C=channels,
        W=width,
        **sizes,
        num_warps=8,
    )
    launch(
        chunk_kernels.solve_kernel,
        (num_chunks, heads),
        qk,
        v,
        g,
        beta,
        step.query_start,
        w,
        u,
        uniform,
        num_rows,
        uniform_tokens,
        **sizes,
        PRECISION=precision,
        num_warps=2,
        num_stages=1,
    )
    launch(
        chunk_kernels.scan_kernel,
        (triton.cdiv(shape.value_width, tile.columns), heads, num_prefill),
        qk,
        w,
        u,
        g,
        cache["state"],
        pool.read_slots,
        pool.write_slots,
        step.query_start,
        h,
        uniform,
        uniform_tokens,
        S=pool.write_slots.shape[1],
        BV=tile.columns,
        **sizes,
        PRECISION=precision,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    launch(
        chunk_kernels.output_kernel,
        (num_chunks, heads),
        projected_TX,
        qk,
        u,
        g,
        h,
        layer.norm.scale,
        layer.norm.floor,
        step.query_start,
        out_TX,
        uniform,
        num_rows,
        uniform_tokens,
        X=stride,
        C=channels,
        **sizes,
        IS_SILU=layer.activation == "silu",
        PRECISION=precision,
        num_warps=4,
        num_stages=1,
    )


def _shape_of(projected_TX: Tensor, layer: DeltaNetLayer) -> Shape:
    own = layer.shape
    return _shape(projected_TX.dtype, own.key_heads, own.value_heads, own.key_width, own.value_width)


@cache
def _shape(dtype: torch.dtype, key_heads: int, value_heads: int, key_width: int, value_width: int) -> Shape:
    return Shape(str(dtype).removeprefix("torch."), key_heads, value_heads, key_width, value_width)
