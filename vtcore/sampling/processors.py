"""What changes logits before a token is picked: masks, bans, bias and penalties.

Does not: know rows without the feature; each function gets the logits of those that use it and changes
them in place.

Shape letters: N logit rows, V vocabulary, P (logit row, id) pairs, L positions, W tokens of a bad word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vtcore.errors import EngineError


def unpack_masks(masks: Sequence[bytes], vocab_size: int, device: torch.device) -> Tensor:
    """Bool [N, V], True where allowed, from packed bits: id i is bit i % 8 of byte i // 8.

    Raises:
        EngineError: A mask has another length than ceil(vocab_size / 8) bytes.
    """
    size = -(-vocab_size // 8)
    for mask in masks:
        if len(mask) != size:
            raise EngineError(
                f"a host mask has {len(mask)} bytes; a vocabulary of {vocab_size} ids needs exactly {size}"
            )
    packed = torch.from_numpy(np.frombuffer(b"".join(masks), np.uint8).reshape(len(masks), size, 1).copy())
    bits = torch.arange(8, dtype=torch.uint8, device=device)
    spread = packed.to(device).bitwise_right_shift(bits).bitwise_and_(1)
    return spread.reshape(len(masks), size * 8)[:, :vocab_size].to(torch.bool)


def ban(logits_NV: Tensor, index_P: Tensor, ids_P: Tensor, active_P: Tensor) -> None:
    """Set (index, id) to -inf where active; pairs may repeat."""
    zero = torch.zeros((), dtype=logits_NV.dtype, device=logits_NV.device)
    logits_NV.index_put_((index_P, ids_P), torch.where(active_P, -torch.inf, zero), accumulate=True)


def add_bias(logits_NV: Tensor, index_P: Tensor, ids_P: Tensor, bias_P: Tensor) -> None:
    """Add bias[p] at (index, id)."""
    logits_NV.index_put_((index_P, ids_P), bias_P.to(logits_NV.dtype), accumulate=True)


def ban_bad_words(
    logits_NV: Tensor,
    words: Sequence[tuple[int, tuple[int, ...]]],
    rows_N: Tensor,
    positions_N: Tensor,
    history_RL: Tensor,
) -> None:
    """Ban the last token of each word whose other tokens stand right before the position drawn.

    Prompt tokens take part: a word begun by the prompt is not completed either.

    Args:
        words: (logit row, token ids) pairs; ids are inside the vocabulary.
        rows_N: [N] int64, table rows of the logit rows.
        positions_N: [N] int64, positions drawn.
        history_RL: Tokens by table row and position, valid below the position drawn.
    """
    device = logits_NV.device
    width = max(len(word) for _, word in words) - 1
    table = np.full((len(words), width + 2), -1, np.int64)
    for i, (index, word) in enumerate(words):
        table[i, width + 1 - len(word) :] = (*word, index)
    table_P = torch.from_numpy(table).to(device)
    prefix_PW, last_P, index_P = table_P[:, :width], table_P[:, width], table_P[:, width + 1]
    where_PW = positions_N[index_P].unsqueeze(1) + torch.arange(-width, 0, device=device)
    tokens_PW = history_RL[rows_N[index_P].unsqueeze(1), where_PW.clamp(min=0)]
    matches_PW = (prefix_PW < 0) | ((tokens_PW == prefix_PW) & (where_PW >= 0))
    ban(logits_NV, index_P, last_P, matches_PW.all(dim=1))


def token_counts(
    history_NL: Tensor, first_N: Tensor, end_N: Tensor, vocab_size: int, dtype: torch.dtype
) -> Tensor:
    """How often each id stands at positions first <= p < end: [N, V] of `dtype`."""
    where_L = torch.arange(history_NL.shape[1], device=history_NL.device)
    is_counted = (where_L >= first_N.unsqueeze(1)) & (where_L < end_N.unsqueeze(1))
    is_counted &= (history_NL >= 0) & (history_NL < vocab_size)
    ids_NL = torch.where(is_counted, history_NL, vocab_size).to(torch.int64)
    counts = torch.zeros(history_NL.shape[0], vocab_size + 1, dtype=dtype, device=history_NL.device)
    one = torch.ones((), dtype=dtype, device=history_NL.device).expand(ids_NL.shape)
    return counts.scatter_add_(1, ids_NL, one)[:, :vocab_size]


def penalize_repetition(logits_NV: Tensor, counts_NV: Tensor, penalty_N1: Tensor) -> None:
    """Divide positive and multiply other logits of ids that occur in prompt or output.

    Source: Keskar et al., CTRL (2019), section 4.1, in the sign-aware form of transformers and vLLM.
    """
    penalty = penalty_N1.to(logits_NV.dtype)
    scaled = torch.where(logits_NV > 0, logits_NV / penalty, logits_NV * penalty)
    scaled.clamp_(max=torch.finfo(logits_NV.dtype).max)
    logits_NV.copy_(torch.where(counts_NV > 0, scaled, logits_NV))


def penalize_output(logits_NV: Tensor, counts_NV: Tensor, frequency_N1: Tensor, presence_N1: Tensor) -> None:
    """Subtract frequency * count + presence * (count > 0), counts over the output only.

    Source: OpenAI API reference, frequency and presence penalties.
    """
    logits_NV.sub_(counts_NV * frequency_N1.to(logits_NV.dtype))
    logits_NV.sub_((counts_NV > 0).to(logits_NV.dtype) * presence_N1.to(logits_NV.dtype))


def fallback_logits(raw_NV: Tensor, allowed: Sequence[NDArray[np.int64] | None]) -> Tensor:
    """Logits for rows of which the processors left nothing: raw, restricted to the allowed ids alone.

    Args:
        raw_NV: Logits without NaN.
        allowed: Each row's allowed ids; None allows all.

    Returns:
        [N, V], with at least one finite value per row.
    """
    out_NV = raw_NV.clamp(min=torch.finfo(raw_NV.dtype).min)
    for i, ids in enumerate(allowed):
        if ids is not None:
            restrict_row(out_NV[i], ids)
    return out_NV


def restrict_row(logits_V: Tensor, ids: NDArray[np.int64]) -> None:
    """Set every id but the given ones to -inf."""
    ids_K = torch.from_numpy(ids).to(logits_V.device)
    kept_K = logits_V[ids_K]
    logits_V.fill_(-torch.inf)
    logits_V[ids_K] = kept_K
