"""The tensors of one forward from the device tables, as Triton kernels.

Does not: write a table.

Shape letters: as in `naive`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vtcore.ops.launch import launch

_TOKENS = 128
_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_rows", "num_uniform"])
def _rows_kernel(
    rows_ptr,
    query_start_ptr,
    drafts_ptr,
    last_token_ptr,
    computed_ptr,
    limit_ptr,
    ids_ptr,
    positions_ptr,
    computed_out_ptr,
    lens_ptr,
    illegal_ptr,
    num_rows,
    num_uniform,
    K: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o_b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_b = o_b < num_rows
    m_u = o_b < num_uniform
    b_row = tl.load(rows_ptr + o_b, mask=m_b, other=0)
    b_computed = tl.load(computed_ptr + b_row, mask=m_b, other=0)
    tl.store(computed_out_ptr + o_b, b_computed, mask=m_b)
    b_first = tl.load(query_start_ptr + o_b, mask=m_b, other=0)
    b_end = tl.load(query_start_ptr + o_b + 1, mask=m_b, other=0)
    b_real = (b_row > 0).to(tl.int64)
    b_len = b_real
    b_token = tl.load(last_token_ptr + b_row, mask=m_u, other=0)
    o_t = o_b.to(tl.int64) * (K + 1)
    if K > 0:
        # Every draft before the first that is -1 or no token id is legal.
        b_open = b_real
        b_bad = b_real * 0
        for k in tl.static_range(K):
            b_draft = tl.load(drafts_ptr + o_b.to(tl.int64) * K + k, mask=m_u, other=-1)
            b_legal = ((b_draft >= 0) & (b_draft < VOCAB)).to(tl.int64)
            b_bad += ((b_draft >= VOCAB) | (b_draft < -1)).to(tl.int64)
            b_open = b_open * b_legal
            b_len += b_open
            tl.store(ids_ptr + o_t + k + 1, b_draft * b_legal, mask=m_u)
        tl.atomic_add(illegal_ptr, tl.sum(tl.where(m_u, b_bad, 0), 0))
        b_limit = tl.load(limit_ptr + b_row, mask=m_u, other=0)
        b_len = tl.minimum(b_len, b_limit - 1 - b_computed) * b_real
    tl.store(ids_ptr + o_t, b_token, mask=m_u)
    for k in tl.static_range(K + 1):
        b_ahead = tl.maximum(tl.minimum(b_len - 1, k), 0)
        tl.store(positions_ptr + o_t + k, b_computed + b_ahead, mask=m_u)
    tl.store(lens_ptr + o_b, tl.where(m_u, b_len, b_end - b_first), mask=m_b)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "num_uniform", "num_token_programs", "table_width"])
def _blocks_kernel(
    rows_ptr,
    row_of_ptr,
    positions_ptr,
    computed_ptr,
    lens_ptr,
    table_ptr,
    table_out_ptr,
    slots_ptr,
    num_rows,
    num_tokens,
    num_uniform,
    num_token_programs,
    table_width,
    Q: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    i_p = tl.program_id(0)
    if i_p < num_token_programs:
        o_t = i_p * TOKENS + tl.arange(0, TOKENS)
        m_t = o_t < num_tokens
        b_index = tl.load(row_of_ptr + o_t, mask=m_t, other=0)
        b_row = tl.load(rows_ptr + b_index, mask=m_t, other=0)
        b_position = tl.load(positions_ptr + o_t, mask=m_t, other=0)
        b_block = tl.load(table_ptr + b_row * table_width + b_position // BLOCK_SIZE, mask=m_t, other=0)
        b_slot = b_block * BLOCK_SIZE + b_position % BLOCK_SIZE
        b_len = tl.load(lens_ptr + b_index, mask=m_t, other=0)
        m_valid = (o_t >= num_uniform * Q) | (o_t % Q < b_len)
        tl.store(slots_ptr + o_t, tl.where(m_valid, b_slot, 0), mask=m_t)
    else:
        i_c = i_p - num_token_programs
        i_b = (i_c % num_rows).to(tl.int64)
        o_m = (i_c // num_rows) * COLUMNS + tl.arange(0, COLUMNS)
        row = tl.load(rows_ptr + i_b)
        used = (tl.load(computed_ptr + i_b) + tl.load(lens_ptr + i_b) + BLOCK_SIZE - 1) // BLOCK_SIZE
        b_id = tl.load(table_ptr + row * table_width + o_m, mask=(o_m < used) & (o_m < table_width), other=0)
        tl.store(table_out_ptr + i_b * table_width + o_m, b_id, mask=o_m < table_width)


@triton.jit(do_not_specialize=["num_rows"])
def _slots_kernel(
    rows_ptr, slots_ptr, cur_slot_ptr, read_ptr, write_ptr, num_rows, S: tl.constexpr, BLOCK: tl.constexpr
):
    o_b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_b = o_b < num_rows
    b_row = tl.load(rows_ptr + o_b, mask=m_b, other=0)
    b_column = tl.load(cur_slot_ptr + b_row, mask=m_b, other=0)
    tl.store(read_ptr + o_b, tl.load(slots_ptr + b_row * S + b_column, mask=m_b, other=0), mask=m_b)
    for s in tl.static_range(S):
        b_slot = tl.load(slots_ptr + b_row * S + s, mask=m_b, other=0)
        tl.store(write_ptr + o_b.to(tl.int64) * S + s, b_slot, mask=m_b)


def prepare_rows(
    rows_B: Tensor,
    query_start_X: Tensor,
    num_uniform: int,
    drafts_UK: Tensor,
    vocab_size: int,
    last_token_R: Tensor,
    computed_R: Tensor,
    limit_R: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `naive.prepare_rows`."""
    num_rows, num_drafts = rows_B.shape[0], drafts_UK.shape[1]
    drafts_UK = drafts_UK.contiguous()
    ids_T = rows_B.new_empty(num_uniform * (1 + num_drafts))
    positions_T = torch.empty_like(ids_T)
    computed_B, lens_B = torch.empty_like(rows_B), torch.empty_like(rows_B)
    num_illegal = rows_B.new_zeros(())
    launch(
        _rows_kernel,
        (triton.cdiv(num_rows, _TOKENS),),
        rows_B,
        query_start_X,
        drafts_UK,
        last_token_R,
        computed_R,
        limit_R,
        ids_T,
        positions_T,
        computed_B,
        lens_B,
        num_illegal,
        num_rows,
        num_uniform,
        K=num_drafts,
        VOCAB=vocab_size,
        BLOCK=_TOKENS,
    )
    return ids_T, positions_T, computed_B, lens_B, num_illegal


def prepare_blocks(
    rows_B: Tensor,
    row_of_T: Tensor,
    positions_T: Tensor,
    computed_B: Tensor,
    query_lens_B: Tensor,
    num_uniform: int,
    query_len: int,
    table_RM: Tensor,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """See `naive.prepare_blocks`."""
    num_rows, num_tokens, width = rows_B.shape[0], positions_T.shape[0], table_RM.shape[1]
    table_BM = rows_B.new_empty((num_rows, width))
    slots_T = torch.empty_like(positions_T)
    token_programs = triton.cdiv(num_tokens, _TOKENS)
    launch(
        _blocks_kernel,
        (token_programs + num_rows * triton.cdiv(width, _COLUMNS),),
        rows_B,
        row_of_T,
        positions_T,
        computed_B,
        query_lens_B,
        table_RM,
        table_BM,
        slots_T,
        num_rows,
        num_tokens,
        num_uniform,
        token_programs,
        width,
        Q=query_len,
        BLOCK_SIZE=block_size,
        TOKENS=_TOKENS,
        COLUMNS=_COLUMNS,
    )
    return table_BM, slots_T


def prepare_slots(rows_B: Tensor, slots_RS: Tensor, cur_slot_R: Tensor) -> tuple[Tensor, Tensor]:
    """See `naive.prepare_slots`."""
    num_rows, columns = rows_B.shape[0], slots_RS.shape[1]
    read_B, write_BS = torch.empty_like(rows_B), rows_B.new_empty((num_rows, columns))
    launch(
        _slots_kernel,
        (triton.cdiv(num_rows, _TOKENS),),
        rows_B,
        slots_RS,
        cur_slot_R,
        read_B,
        write_BS,
        num_rows,
        S=columns,
        BLOCK=_TOKENS,
    )
    return read_B, write_BS
