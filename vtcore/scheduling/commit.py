"""Judges a step's results: appends tokens, publishes blocks, ends requests.

Does not: choose what runs next. Frames commit in the order they were launched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vtcore.errors import EngineError
from vtcore.interfaces.batch import Checkpoint, RequestUpdate, RowResult, StepResult, TokenLogprobs
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.scheduler import Scheduler


def commit(
    scheduler: Scheduler, frame: Frame, result: StepResult, updates: list[RequestUpdate] | None = None
) -> list[RequestUpdate]:
    """Apply one step's results to the requests they belong to.

    Results of a row whose epoch has risen since the launch are dropped.

    Args:
        updates: Where updates go as soon as their row is committed, so that a failure on a later row loses
            none; None starts a new list.

    Returns:
        `updates`: one more per live row that has news for the front end.

    Raises:
        EngineError: A result contradicts what was launched; the engine is at fault.
    """
    if result.step != frame.step or len(result.rows) != len(frame.requests):
        raise EngineError(f"step {frame.step} got results of step {result.step}, {len(result.rows)} rows")
    updates = [] if updates is None else updates
    rows = scheduler.rows
    # One look at all epochs: a row released while this loop runs is the loop's own row, once.
    is_alive = rows.epoch[frame.rows] == frame.epochs
    rows.inflight[frame.rows[is_alive]] -= 1
    checkpoints = _settle_checkpoints(scheduler, frame, result, is_alive)
    alive, frame_rows, bounds = is_alive.tolist(), frame.rows.tolist(), frame.bounds.tolist()
    for index, (request, row_result) in enumerate(zip(frame.requests, result.rows, strict=True)):
        if not alive[index]:
            scheduler.counters.late_results += 1
            continue
        prefill = index >= frame.num_uniform
        _check(request, row_result, frame_rows[index], bounds[index], frame.queries[index], prefill)
        kept = checkpoints.get(frame_rows[index], ())
        update = _commit_row(scheduler, request, row_result, frame.queries[index], prefill, kept)
        if update is not None:
            updates.append(update)
    return updates


def _settle_checkpoints(
    scheduler: Scheduler, frame: Frame, result: StepResult, is_alive: NDArray[np.bool_]
) -> dict[int, list[Checkpoint]]:
    """Give back what was not written, or whose row has another owner by now; the rest by row."""
    if len(result.checkpoints) != len(frame.batch.checkpoints):
        raise EngineError(
            f"step {frame.step} got {len(result.checkpoints)} checkpoints, not {len(frame.batch.checkpoints)}"
        )
    if not frame.keepers:
        return {}
    alive_rows = set(frame.rows[is_alive].tolist())
    written: dict[int, list[Checkpoint]] = {}
    entries = zip(frame.batch.checkpoints, result.checkpoints, frame.keepers, strict=True)
    for checkpoint, is_written, request in entries:
        if is_written and checkpoint.row in alive_rows and request.may_publish:
            written.setdefault(checkpoint.row, []).append(checkpoint)
        else:
            scheduler.memory.put_checkpoint(checkpoint, None)
    return written


def _check(request: RequestState, result: RowResult, row: int, bound: int, query: int, prefill: bool) -> None:
    emitted = len(result.tokens)
    if (
        result.row != row
        or result.position != request.computed
        or result.position > bound
        or (prefill and result.position != bound)
        or emitted > (1 if prefill else query)
    ):
        raise EngineError(
            f"request {request.id!r}: row {row} at {request.computed} (bound {bound}, query {query}, "
            f"prefill {prefill}) got a result of row {result.row} at {result.position} with {emitted} tokens"
        )


def _commit_row(
    scheduler: Scheduler,
    request: RequestState,
    result: RowResult,
    query: int,
    prefill: bool,
    checkpoints: Sequence[Checkpoint],
) -> RequestUpdate | None:
    emitted = len(result.tokens)
    advanced = query if prefill else emitted
    if not prefill and query > 1:
        scheduler.rows.bound[request.row] -= query - advanced
        scheduler.rows.least[request.row] += advanced - 1
    request.computed = result.position + advanced
    request.home_drafts = result.drafts
    first_new = len(request.tokens)
    next_position = result.position + (query if prefill else 1)
    if emitted and next_position != first_new:
        raise EngineError(
            f"request {request.id!r}: a token for position {next_position} comes, {first_new} is next"
        )
    finish_reason, stop_reason = _append(request, result.tokens)
    request.computed = min(request.computed, len(request.tokens) - 1) if emitted else request.computed
    scheduler.memory.publish(request)
    for checkpoint in checkpoints:
        is_known = checkpoint.position <= request.computed
        kept = scheduler.memory.put_checkpoint(checkpoint, request if is_known else None)
        scheduler.counters.state_checkpoints += kept
    update = _update(request, result, first_new, finish_reason, stop_reason)
    if finish_reason is not None:
        scheduler.finish(request.id)
    else:
        scheduler.queue_deltas(scheduler.memory.drop_behind(request))
    return update


def _append(request: RequestState, tokens: tuple[int, ...]) -> tuple[str | None, int | None]:
    """Append until a stop token, then until the limit; the rest of an accepted run is cut."""
    req = request.req
    known, first_stop = request.tokens, request.num_prompt + req.params.min_tokens
    for token in tokens:
        known.append(token)
        if len(known) >= first_stop:
            if token in req.eos_token_ids:
                return "stop", None
            if token in req.stop_token_ids:
                return "stop", token
        if len(known) >= request.limit:
            return "length", None
    return None, None


def _update(
    request: RequestState,
    result: RowResult,
    first_new: int,
    finish_reason: str | None,
    stop_reason: int | None,
) -> RequestUpdate | None:
    num_new = len(request.tokens) - first_new
    tokens = result.tokens if num_new == len(result.tokens) else result.tokens[:num_new]
    prompt_logprobs = _new_prompt_logprobs(request, result)
    if not tokens and not prompt_logprobs:
        return None
    return RequestUpdate(
        id=request.id,
        tokens=tokens,
        logprobs=result.logprobs[: len(tokens)],
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )


def _new_prompt_logprobs(request: RequestState, result: RowResult) -> tuple[tuple[int, TokenLogprobs], ...]:
    """Those of positions not yet reported; a recompute after preemption makes old ones again."""
    if not result.prompt_logprobs:
        return ()
    news = tuple(
        (position, entry)
        for position, entry in enumerate(result.prompt_logprobs, start=result.position + 1)
        if position >= request.prompt_logprobs_done
    )
    if news:
        request.prompt_logprobs_done = news[-1][0] + 1
    return news
