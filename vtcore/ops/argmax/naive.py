"""Greedy pick in torch: the reference and the CPU path.

Does not: see sampling parameters.

Shape letters: N logit rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(logits_NV: Tensor, counts: Tensor) -> Tensor:
    """The lowest id of the largest logit; a NaN counts as -inf.

    Args:
        logits_NV: Raw logits in the model's dtype; not changed.
        counts: [2] int64; the number of rows with a NaN is added to the first.

    Returns:
        [N] int64 ids; 0 for a row that holds nothing but -inf and NaN.
    """
    is_nan_NV = logits_NV.isnan()
    counts[0] += is_nan_NV.any(dim=1).sum()
    return logits_NV.masked_fill(is_nan_NV, -torch.inf).max(dim=1).indices
