"""What the sampling of a step needs from the host, sent with its forward.

Does not: sample.

Shape letters: N logit rows, or sampled prefill rows where said; P prefill rows, F forks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen
from torch import Tensor

from vtcore.execution.staging import Upload
from vtcore.interfaces.batch import ScheduledBatch


@frozen(eq=False)
class StagedSampling:
    """Indices of a step's logit rows; tensors are int64 on the device, empty where there is nothing.

    Args:
        rows: Table row of each logit row: of the uniform rows' query tokens, the sampled prefill rows, the
            forks.
        num_sampled: Prefill rows that yield a token.
        rows_N: `rows` on the device.
        last_N: Token whose hidden each sampled prefill row reads.
        sampling_N: Index into batch.prefill of each.
        next_P: The known token after each chunk, 0 where the step samples it.
        fork_rows_F, fork_parents_F, fork_logits_F: Table row of each fork, batch row of its parent, the
            parent's logit row.
    """

    rows: list[int]
    num_sampled: int
    rows_N: Tensor
    last_N: Tensor
    sampling_N: Tensor
    next_P: Tensor
    fork_rows_F: Tensor
    fork_parents_F: Tensor
    fork_logits_F: Tensor


def stage_sampling(batch: ScheduledBatch, upload: Upload) -> Callable[[Sequence[Tensor]], StagedSampling]:
    """Add a batch's sampling indices to an upload.

    Returns:
        What takes them from the sent tensors.
    """
    query, uniform = 1 + batch.num_drafts_in, len(batch.uniform)
    rows = [row for row in batch.uniform for _ in range(query)] if query > 1 else list(batch.uniform)
    if not batch.prefill:
        at = upload.add(rows)
        return lambda sent: StagedSampling(rows, 0, sent[at], *[sent[at][:0]] * 6)
    sampling = [i for i, p in enumerate(batch.prefill) if p.sample]
    rows += [batch.prefill[i].row for i in sampling]
    rows += [fork.child for fork in batch.forks]
    ends = uniform * query + np.cumsum([len(p.ids) for p in batch.prefill])
    span_of = {p.row: index for index, p in enumerate(batch.prefill)}
    own = {span: uniform * query + place for place, span in enumerate(sampling)}
    parents = [span_of[fork.parent] for fork in batch.forks]
    arrays = (
        rows,
        ends[sampling] - 1,
        sampling,
        [p.next_id or 0 for p in batch.prefill],
        [fork.child for fork in batch.forks],
        [uniform + span for span in parents],
        [own[span] for span in parents],
    )
    places = [upload.add(array) for array in arrays]
    return lambda sent: StagedSampling(rows, len(sampling), *(sent[place] for place in places))
