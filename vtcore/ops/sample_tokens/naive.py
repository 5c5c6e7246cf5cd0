"""One token per logit row by temperature, min-p, top-k and top-p, in torch and without host reads.

Does not: mask, ban, bias or penalize logits.

Shape letters: N logit rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.layers.dtypes import acc_dtype
from vtcore.sampling.device_params import DeviceParams
from vtcore.sampling.noise import Purpose, gumbel
from vtcore.sampling.params_table import GREEDY_BELOW


def sample_tokens(
    logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, params: DeviceParams, counts: Tensor
) -> Tensor:
    """Draw each row's token: what `Sampler.sample` draws for the same parameters.

    Order: raw-logit argmax below GREEDY_BELOW, else temperature, min-p, top-k with ties kept, top-p with the
    lower of equal ids first, and the argmax of what is left plus Gumbel noise keyed by (seed, position, id).

    Args:
        logits_NV: Raw logits in the model's dtype; not changed. A NaN counts as -inf.
        rows_N: [N] int64 table rows; row 0, padding, is greedy.
        positions_N: [N] int64, absolute position of the token drawn.
        counts: [2] int64; rows with a NaN are added to the first, random rows without a logit above -inf to
            the second. Padding rows are not counted. Such a row draws from all ids alike.

    Returns:
        [N] int64 ids, always below V.
    """
    temperature_N, min_p_N, top_p_N, seed_N, top_k_N = params.columns(rows_N)
    vocab_size, is_real_N = logits_NV.shape[1], rows_N > 0
    is_random_N = temperature_N >= GREEDY_BELOW
    is_nan_NV = logits_NV.isnan()
    counts[0] += (is_nan_NV.any(dim=1) & is_real_N).sum()
    clean_NV = logits_NV.masked_fill(is_nan_NV, -torch.inf)
    greedy_N = clean_NV.max(dim=1).indices

    acc = acc_dtype(logits_NV.dtype)
    x_NV = clean_NV.to(acc).clamp_(max=torch.finfo(acc).max)
    is_empty_N = x_NV.amax(dim=1) == -torch.inf
    counts[1] += (is_empty_N & is_random_N & is_real_N).sum()
    x_NV.masked_fill_(is_empty_N.unsqueeze(1), 0.0)
    temperature_N1 = torch.where(is_random_N, temperature_N, 1.0).unsqueeze(1).to(acc)
    # The largest is subtracted before the division: a tiny temperature then cannot overflow.
    z_NV = (x_NV - x_NV.amax(dim=1, keepdim=True)) / temperature_N1
    z_NV.masked_fill_(z_NV < min_p_N.log().to(acc).unsqueeze(1), -torch.inf)
    sorted_NV, order_NV = z_NV.sort(dim=1, descending=True, stable=True)
    cuts_k_N = (top_k_N > 0) & (top_k_N < vocab_size)
    last_N1 = torch.where(cuts_k_N, top_k_N - 1, vocab_size - 1).unsqueeze(1)
    threshold_N1 = sorted_NV.gather(1, last_N1)
    sorted_NV.masked_fill_(sorted_NV < threshold_N1, -torch.inf)
    mass_NV = sorted_NV.softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    limit_N1 = torch.where(top_p_N < 1.0, top_p_N, torch.inf).unsqueeze(1)
    sorted_NV[:, 1:].masked_fill_(mass_NV[:, :-1] >= limit_N1, -torch.inf)
    kept_NV = torch.empty_like(z_NV).scatter_(1, order_NV, sorted_NV)

    ids_V = torch.arange(vocab_size, device=logits_NV.device)
    drawn_N = gumbel(seed_N, positions_N, ids_V, Purpose.TARGET).add_(kept_NV).argmax(dim=1)
    return torch.where(is_random_N, drawn_N, greedy_N)
