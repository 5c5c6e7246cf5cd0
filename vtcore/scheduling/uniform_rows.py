"""Decoding rows of a step: who goes on, who grows, and who is preempted for whom.

Does not: handle prompts or admission. The usual step, in which everything fits, runs on arrays; only when the
budget or a pool is short are rows visited one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vtcore.kv_cache.state_checkpoints import grid_points
from vtcore.scheduling.batch_draft import BatchDraft
from vtcore.scheduling.request_state import RequestState

if TYPE_CHECKING:
    from vtcore.scheduling.scheduler import Scheduler


def take_uniform(scheduler: Scheduler, draft: BatchDraft) -> None:
    """Take rows that go on from their own last token, 1 + k_in tokens each, whole or not at all."""
    order = scheduler.ordered_rows()
    if not order.size:
        return
    rows, query = scheduler.rows, 1 + draft.k_in
    last = rows.limit[order] - 1
    # Strictly below the last position that is ever computed: a row whose bound has reached it either
    # ends at the commit of a frame in flight or is launched again after it.
    ready = rows.uniform[order] & (rows.bound[order] < last)
    chosen = order[ready]
    if not chosen.size:
        return
    target = np.minimum(rows.bound[chosen] + query + scheduler.memory.lookahead, last[ready])
    affordable = draft.budget.left // query
    short = np.flatnonzero(target > rows.covered[chosen])
    if short.size:
        owners = [_owner(scheduler, int(chosen[i])) for i in short]
        wants = [
            scheduler.memory.missing(owner, int(target[i])) for owner, i in zip(owners, short, strict=True)
        ]
        if chosen.size > affordable or not scheduler.memory.fits(wants):
            chosen = _grow_in_order(scheduler, draft, chosen, target, affordable)
        else:
            for owner, want in zip(owners, wants, strict=True):
                scheduler.extend(owner, want)
    chosen = chosen[:affordable]
    draft.budget.take(int(chosen.size) * query)
    owners_all = scheduler.rows.owner
    draft.uniform = chosen
    draft.requests += [owner for row in chosen.tolist() if (owner := owners_all[row]) is not None]
    draft.queries += [query] * chosen.size
    draft.emits += [True] * chosen.size
    if chosen.size:
        draft.max_context = int(rows.bound[chosen].max()) + query
        _keep_states(scheduler, draft, chosen, query)


def _keep_states(scheduler: Scheduler, draft: BatchDraft, chosen: NDArray[np.int64], query: int) -> None:
    """Rows that reach a grid point in this step leave their state there, if the step does go so far."""
    grid = scheduler.memory.grid
    if not grid:
        return
    rows = scheduler.rows
    # The last token that is sampled is never computed.
    low, high = rows.least[chosen], np.minimum(rows.bound[chosen] + query, rows.limit[chosen] - 1)
    for index in np.flatnonzero(high // grid > low // grid).tolist():
        request = _owner(scheduler, int(chosen[index]))
        for position in grid_points(int(low[index]), int(high[index]), grid):
            scheduler.keep_state(draft, request, position)


def _grow_in_order(
    scheduler: Scheduler,
    draft: BatchDraft,
    chosen: NDArray[np.int64],
    target: NDArray[np.int64],
    affordable: int,
) -> NDArray[np.int64]:
    """Memory or budget is short: visit rows one by one, preempting later ones for earlier ones."""
    taken: list[int] = []
    for row, upto in zip(chosen.tolist(), target.tolist(), strict=True):
        request = scheduler.rows.owner[row]
        if request is None or len(taken) == affordable:
            continue
        want = scheduler.memory.missing(request, upto)
        if any(want):
            if draft.memory_short:
                continue
            while not scheduler.memory.fits([want]):
                victims = _later(scheduler, request)
                if not _would_fit(scheduler, want, victims):
                    break
                scheduler.preempt(scheduler.policy.victim(victims, scheduler.context(draft.budget.left)))
                draft.preempted = True
            else:
                scheduler.extend(request, want)
                taken.append(row)
                continue
            draft.memory_short = True
            continue
        taken.append(row)
    return np.array(taken, np.int64)


def _later(scheduler: Scheduler, request: RequestState) -> list[RequestState]:
    """Running requests that come after `request` by (key, admission); none of them is in the batch yet."""
    running = scheduler.running
    return running[running.index(request) + 1 :]


def _would_fit(scheduler: Scheduler, want: list[int], victims: list[RequestState]) -> bool:
    if not victims:
        return False
    freeable = scheduler.memory.freeable(victims)
    free = scheduler.memory.num_free
    return all(w <= free[i] + freeable[i] for i, w in enumerate(want))


def _owner(scheduler: Scheduler, row: int) -> RequestState:
    owner = scheduler.rows.owner[row]
    assert owner is not None
    return owner
