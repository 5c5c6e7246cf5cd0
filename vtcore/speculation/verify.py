"""The match rule: a draft is accepted iff it is the token the target itself samples there.

Does not: sample. Because every emitted token is the target's own sample under noise keyed by position, output
does not depend on which drafter proposed, or on any at all.

Source: the rule is exact for any proposal since the target's sample is emitted either way; compare
Leviathan et al. 2023, section 2.3, for the ratio rule it replaces.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accept_matching(sampled_UQ: Tensor, drafts_UK: Tensor, query_lens_U: Tensor) -> Tensor:
    """How many tokens each row emits.

    Args:
        sampled_UQ: [U, Q] int64, the target's sample after each query token.
        drafts_UK: [U, Q - 1] int64, the drafts that were the query's tokens after the first.
        query_lens_U: [U] int64, valid query tokens, 0..Q; samples beyond are ignored.

    Returns:
        [U] int64: 0 where the query is empty, else 1 + the accepted run, at most the query length.
    """
    accepted_U = (sampled_UQ[:, :-1] == drafts_UK).long().cumprod(1).sum(1)
    return torch.minimum(1 + accepted_U, query_lens_U)
