"""Moves the device-owned columns on after a step, as one Triton kernel.

Does not: touch drafts or history.

Shape letters: as in `naive`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vtcore.ops.launch import launch

_BLOCK = 128


@triton.jit(do_not_specialize=["num_rows", "num_uniform"])
def _commit_kernel(
    rows_ptr,
    computed_ptr,
    num_new_ptr,
    next_token_ptr,
    computed_table_ptr,
    last_token_table_ptr,
    cur_slot_table_ptr,
    num_rows,
    num_uniform,
    HAS_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o_b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_row = tl.load(rows_ptr + o_b, mask=o_b < num_rows, other=0)
    m_b = b_row > 0
    b_new = tl.load(num_new_ptr + o_b, mask=m_b, other=0)
    b_computed = tl.load(computed_ptr + o_b, mask=m_b, other=0)
    tl.store(computed_table_ptr + b_row, b_computed + b_new, mask=m_b)
    tl.store(last_token_table_ptr + b_row, tl.load(next_token_ptr + o_b, mask=m_b, other=0), mask=m_b)
    if HAS_COLUMNS:
        tl.store(cur_slot_table_ptr + b_row, tl.where(o_b < num_uniform, b_new - 1, 0), mask=m_b)


def commit_step(
    rows_B: Tensor,
    computed_B: Tensor,
    num_new_B: Tensor,
    next_token_B: Tensor,
    computed_R: Tensor,
    last_token_R: Tensor,
    cur_slot_R: Tensor | None,
    num_uniform: int,
) -> None:
    """See `naive.commit_step`."""
    num_rows = rows_B.shape[0]
    launch(
        _commit_kernel,
        (triton.cdiv(num_rows, _BLOCK),),
        rows_B,
        computed_B,
        num_new_B,
        next_token_B,
        computed_R,
        last_token_R,
        # Not read without columns; a pointer must be given all the same.
        computed_R if cur_slot_R is None else cur_slot_R,
        num_rows,
        num_uniform,
        HAS_COLUMNS=cur_slot_R is not None,
        BLOCK=_BLOCK,
    )
