"""Moves the device-owned columns on after a step, in torch: the reference and the CPU path.

Does not: touch drafts or history.

Shape letters: B rows of the step, R table rows.
"""

from __future__ import annotations

from torch import Tensor


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
    """Write lengths, last tokens and, where there are several columns, the state column.

    Args:
        rows_B: [B] int64 table rows; row 0, padding, stays zero.
        num_new_B: Query tokens of each row that are committed.
        next_token_B: The token after them.
        cur_slot_R: None where there is one state column. Uniform rows, the first `num_uniform`, end in column
            num_new - 1, others in column 0.

    All int64; the columns [R] are written.
    """
    is_real_B = rows_B > 0
    computed_R.index_copy_(0, rows_B, (computed_B + num_new_B) * is_real_B)
    last_token_R.index_copy_(0, rows_B, next_token_B * is_real_B)
    if cur_slot_R is not None:
        column_B = (num_new_B - 1) * is_real_B
        column_B[num_uniform:] = 0
        cur_slot_R.index_copy_(0, rows_B, column_B)
