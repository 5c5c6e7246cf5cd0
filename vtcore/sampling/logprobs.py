"""Log probabilities of known tokens, with the most likely ids beside them, from raw logits.

Does not: see processors; reported values never depend on sampling parameters.

Shape letters: N logit rows, V vocabulary, K most likely ids, T query tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.batch import TokenLogprobs
from vtcore.layers.dtypes import acc_dtype

_SCRATCH_BYTES = 18
"""Bytes per logit that ordering needs beside the logits and their two accumulation copies: two int64, two
bool."""


@frozen(eq=False)
class DeviceLogprobs:
    """Log probabilities of N tokens, still on the device.

    Args:
        ids_N, ranks_N: [N] int64. logprobs_N: [N].
        top_ids_NK, top_logprobs_NK: [N, K], most likely first.
    """

    ids_N: Tensor
    logprobs_N: Tensor
    ranks_N: Tensor
    top_ids_NK: Tensor
    top_logprobs_NK: Tensor

    def to_host(self) -> list[TokenLogprobs]:
        """Copy to the host; waits for the device."""
        columns = zip(
            self.ids_N.tolist(),
            self.logprobs_N.tolist(),
            self.ranks_N.tolist(),
            self.top_ids_NK.tolist(),
            self.top_logprobs_NK.tolist(),
            strict=True,
        )
        return [
            TokenLogprobs(
                token_id=token_id,
                logprob=logprob,
                rank=rank,
                top_ids=tuple(top_ids),
                top_logprobs=tuple(top_logprobs),
            )
            for token_id, logprob, rank, top_ids, top_logprobs in columns
        ]


def device_logprobs(logits_NV: Tensor, ids_N: Tensor, num_top: int) -> DeviceLogprobs:
    """Log probability and rank of one id per row, and the row's most likely ids.

    A rank is 1 + the number of ids with a strictly larger log probability, so all ids tied for the most
    likely have rank 1, the one that greedy sampling picks among them. (vLLM counts "at least as large", which
    ranks a tied argmax 2 or worse.) NaN logits count as -inf.

    Args:
        logits_NV: Raw logits in the model's dtype.
        ids_N: [N] int64, 0 <= id < V.
        num_top: How many most likely ids, clipped to V; -1 is all.
    """
    raw_NV = logits_NV.to(acc_dtype(logits_NV.dtype)).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    logprobs_NV = raw_NV.log_softmax(dim=1).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
    chosen_N1 = logprobs_NV.gather(1, ids_N.unsqueeze(1))
    top_ids_NK, top_logprobs_NK = _most_likely(logprobs_NV, num_top)
    return DeviceLogprobs(
        ids_N,
        chosen_N1.squeeze(1),
        (logprobs_NV > chosen_N1).sum(dim=1) + 1,
        top_ids_NK,
        top_logprobs_NK,
    )


def logprobs_of(logits_NV: Tensor, target_ids_N: Tensor, num_top: int) -> list[TokenLogprobs]:
    """`device_logprobs` on the host: one entry per row."""
    return device_logprobs(logits_NV, target_ids_N, num_top).to_host()


def prompt_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_TH: Tensor,
    targets_T: Tensor,
    num_top: int,
    max_bytes: int = 64 << 20,
) -> list[TokenLogprobs]:
    """Log probabilities of the known token after each position, the head run in slices.

    Args:
        head: [N, H] -> [N, V] raw logits.
        hidden_TH: Hidden states after the final norm.
        targets_T: [T] int64, the token that follows each position.
        num_top: As in `device_logprobs`.
        max_bytes: Memory that logits and everything made from them may take at once; one row is always run.
            The first row is run alone, to learn V.

    Raises:
        EngineError: Targets and hidden states differ in number.
    """
    if len(targets_T) != len(hidden_TH):
        raise EngineError(f"{len(targets_T)} targets came with {len(hidden_TH)} hidden states")
    found: list[TokenLogprobs] = []
    num_rows = 1
    while len(found) < len(targets_T):
        part = slice(len(found), len(found) + num_rows)
        logits_NV = head(hidden_TH[part])
        found += logprobs_of(logits_NV, targets_T[part], num_top)
        per_logit = logits_NV.element_size() + 2 * acc_dtype(logits_NV.dtype).itemsize + _SCRATCH_BYTES
        num_rows = max(1, max_bytes // (logits_NV.shape[1] * per_logit))
    return found


def _most_likely(logprobs_NV: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """Ids and values of the `num_top` largest, in order (value descending, id ascending)."""
    vocab_size = logprobs_NV.shape[1]
    if num_top == 0:
        empty = logprobs_NV[:, :0]
        return empty.to(torch.int64), empty
    if num_top < 0 or num_top >= vocab_size:
        values_NK, ids_NK = logprobs_NV.sort(dim=1, descending=True, stable=True)
        return ids_NK, values_NK
    # topk chooses freely among values equal to the last one: take the lowest ids of those instead.
    last_N1 = logprobs_NV.topk(num_top, dim=1).values[:, -1:]
    larger_NV = logprobs_NV > last_N1
    equal_NV = logprobs_NV == last_N1
    num_equal_N1 = num_top - larger_NV.sum(dim=1, keepdim=True)
    kept_NV = larger_NV.logical_or_(equal_NV & (equal_NV.cumsum(dim=1) <= num_equal_N1))
    ids_V = torch.arange(vocab_size, device=logprobs_NV.device)
    ids_NK = torch.where(kept_NV, ids_V, vocab_size).topk(num_top, dim=1, largest=False, sorted=True).values
    values_NK, order_NK = logprobs_NV.gather(1, ids_NK).sort(dim=1, descending=True, stable=True)
    return ids_NK.gather(1, order_NK), values_NK
