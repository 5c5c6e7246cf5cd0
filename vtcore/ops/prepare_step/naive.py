"""The tensors of one forward from the device tables, in torch: the reference and the CPU path.

Does not: write a table. Lengths and slots of uniform rows are looked up on the device.

Shape letters: T query tokens, B rows of the step, U uniform rows, Q their query length, P prefill tokens, K
drafts in, R table rows, M block table width, S state columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Lengths of all rows, and the query tokens of the uniform ones.

    A uniform row's query is its last token and its drafts; it ends at the first draft that is -1 or no token
    id, and so that no row samples a position at its limit or beyond.

    Args:
        rows_B: [B] int64 table rows, 0 for padding.
        query_start_X: [B + 1] int64, first token of each row.
        drafts_UK: [U, K] int64 drafts under verification.
        last_token_R, computed_R, limit_R: Columns of the tables, int64.

    Returns:
        ids [U * Q], positions [U * Q], computed [B], query_lens [B], number of illegal drafts [], all int64.
        Query tokens past a cut query are token 0 at its last position.
    """
    computed_B = computed_R.index_select(0, rows_B)
    rows_U, computed_U = rows_B[:num_uniform], computed_B[:num_uniform]
    is_real_U = rows_U > 0
    lens_U = is_real_U.long()
    ids_UQ = last_token_R.index_select(0, rows_U).unsqueeze(1)
    positions_UQ = computed_U.unsqueeze(1)
    num_illegal = lens_U.new_zeros(())
    if drafts_UK.shape[1]:
        legal_UK = (drafts_UK >= 0) & (drafts_UK < vocab_size)
        num_illegal = ((drafts_UK >= vocab_size) | (drafts_UK < -1)).sum()
        lens_U = 1 + legal_UK.long().cumprod(1).sum(1)
        lens_U = torch.minimum(lens_U, limit_R.index_select(0, rows_U) - 1 - computed_U) * is_real_U
        ids_UQ = torch.cat((ids_UQ, drafts_UK.where(legal_UK, 0)), 1)
        ahead_Q = torch.arange(1 + drafts_UK.shape[1], device=rows_B.device)
        positions_UQ = positions_UQ + torch.minimum(ahead_Q, (lens_U.unsqueeze(1) - 1).clamp(min=0))
    lens_B = lens_U
    if num_uniform < rows_B.shape[0]:
        lens_B = torch.cat((lens_U, query_start_X.diff()[num_uniform:]))
    return ids_UQ.reshape(-1), positions_UQ.reshape(-1), computed_B, lens_B, num_illegal


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
    """One paged pool's view of the step.

    Args:
        row_of_T: [T] int64, the batch row of each token.

    Returns:
        Block table [B, M] and slot of each token [T], int64; 0 for tokens past a cut query.
    """
    rows_T = rows_B.index_select(0, row_of_T)
    slots_T = table_RM[rows_T, positions_T // block_size] * block_size + positions_T % block_size
    if query_len > 1 and num_uniform:
        index_UQ = torch.arange(query_len, device=rows_B.device) < query_lens_B[:num_uniform].unsqueeze(1)
        slots_T[: num_uniform * query_len] *= index_UQ.reshape(-1)
    return table_RM.index_select(0, rows_B), slots_T


def prepare_slots(rows_B: Tensor, slots_RS: Tensor, cur_slot_R: Tensor) -> tuple[Tensor, Tensor]:
    """One slot pool's view of the step.

    Returns:
        Slots read [B] and written [B, S], int64.
    """
    write_BS = slots_RS.index_select(0, rows_B)
    if write_BS.shape[1] == 1:
        return write_BS[:, 0], write_BS
    current_B = cur_slot_R.index_select(0, rows_B)
    return write_BS.gather(1, current_B.unsqueeze(1)).squeeze(1), write_BS
