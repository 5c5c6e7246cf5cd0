"""The step: schedule, launch_forward, launch_sample, commit, at depth 1 or 2.

Does not: see text, tokenizers or tensors. One code path; the depth is a number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen

from vtcore.errors import EngineError
from vtcore.execution.executor import Executor
from vtcore.interfaces.batch import EngineRequest, RequestUpdate, RowMasks
from vtcore.scheduling.commit import commit
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.scheduler import Scheduler


class MaskSource(Protocol):
    """Host state that sampling one request depends on (a grammar)."""

    def mask(self, tokens: Sequence[int]) -> bytes | None:
        """Allowed next ids after `tokens` as packed little-endian bits; None allows all."""


@frozen
class AddRequest:
    """Message: a checked request arrives; `masks` is given iff `request.needs_mask`."""

    request: EngineRequest
    masks: MaskSource | None = None


@frozen
class FinishRequest:
    """Message: a request ends now; idempotent, legal in every state and for an unknown id.

    Args:
        reason: "abort", or "stop" when a stop string matched.
        num_tokens: Output tokens kept; None keeps all. The front end cuts; the core only stops.
    """

    id: str
    reason: str
    num_tokens: int | None = None


Message = AddRequest | FinishRequest


@define
class CoreCounters:
    """Events since the start, beside the scheduler's."""

    deferred_samples: int = 0
    commits: int = 0


@define(eq=False)
class EngineCore:
    """Drives one scheduler and one executor.

    Args:
        depth: Frames that may be uncommitted while the next forward is launched, plus one: 1 or 2.
        check: Called after every step; tests hang the invariants of the step on it.
    """

    scheduler: Scheduler
    executor: Executor
    depth: int = 1
    check: Callable[[EngineCore], None] | None = None
    inbox: deque[Message] = field(factory=deque)
    frames: deque[Frame] = field(factory=deque)
    counters: CoreCounters = field(factory=CoreCounters)
    _masks: dict[str, MaskSource] = field(factory=dict)

    def step(self) -> list[RequestUpdate]:
        """Launch what can be launched and commit what must be; messages are taken between the calls.

        Raises:
            EngineError: Nothing can be launched, nothing is in flight and requests are unfinished.
        """
        self._take_messages()
        frame = self.scheduler.schedule()
        deferred = False
        if frame is not None:
            self.executor.launch_forward(frame.batch)
            self.frames.append(frame)
            self._take_messages()
            deferred = self._must_wait(frame)
            if not deferred:
                self._launch_sample(frame)
        elif not self.frames and self.scheduler.requests:
            raise EngineError(f"stuck: {len(self.scheduler.requests)} requests and nothing can be launched")
        updates: list[RequestUpdate] = []
        if self.frames and (len(self.frames) >= self.depth or frame is None):
            updates = self._commit(self.frames.popleft())
        self._take_messages()
        if frame is not None and deferred:
            self.counters.deferred_samples += 1
            self._launch_sample(frame)
        if self.check is not None:
            self.check(self)
        return updates

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.requests or self.frames or self.inbox)

    def drain(self) -> list[RequestUpdate]:
        """Commit every launched frame; nothing new is launched."""
        updates = []
        while self.frames:
            updates += self._commit(self.frames.popleft())
        return updates

    def _commit(self, frame: Frame) -> list[RequestUpdate]:
        self.counters.commits += 1
        updates = commit(self.scheduler, frame, self.executor.poll(frame.step))
        for update in updates:
            if update.finish_reason is not None:
                self._masks.pop(update.id, None)
        return updates

    def _take_messages(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, AddRequest):
                self.scheduler.add(message.request)
                if message.masks is not None:
                    self._masks[message.request.id] = message.masks
            else:
                self.scheduler.finish(message.id)
                self._masks.pop(message.id, None)

    def _must_wait(self, frame: Frame) -> bool:
        """Whether a live row of `frame` needs for sampling what an uncommitted older frame will emit."""
        if not self._masks or len(self.frames) < 2:
            return False
        rows, pending = self.scheduler.rows, self._pending(frame)
        return any(
            emits and rows.needs_mask[row] and rows.epoch[row] == epoch and (row, epoch) in pending
            for row, epoch, emits in zip(frame.rows.tolist(), frame.epochs.tolist(), frame.emits, strict=True)
        )

    def _pending(self, frame: Frame) -> set[tuple[int, int]]:
        """(row, epoch) of everything that uncommitted frames older than `frame` emit."""
        pending: set[tuple[int, int]] = set()
        for older in self.frames:
            if older.step < frame.step:
                entries = zip(older.rows.tolist(), older.epochs.tolist(), older.emits, strict=True)
                pending.update((row, epoch) for row, epoch, emits in entries if emits)
        return pending

    def _launch_sample(self, frame: Frame) -> None:
        frame.sampled = True
        self.executor.launch_sample(frame.step, self._row_masks(frame))

    def _row_masks(self, frame: Frame) -> tuple[RowMasks, ...]:
        """Masks of live rows that emit, one per query row: after known tokens and the drafts before it."""
        if not self._masks:
            return ()
        rows, pending = self.scheduler.rows, self._pending(frame)
        masks = []
        for index, request in enumerate(frame.requests):
            source = self._masks.get(request.id)
            row = int(frame.rows[index])
            if source is None or not frame.emits[index] or rows.epoch[row] != frame.epochs[index]:
                continue
            if (row, int(frame.epochs[index])) in pending:
                raise EngineError(
                    f"step {frame.step}: a mask of row {row} is made before its last token is known"
                )
            tokens = list(request.tokens)
            own = [source.mask(tokens)]
            if index < frame.num_uniform:
                for draft in request.home_drafts[: frame.batch.num_drafts_in]:
                    if draft < 0:
                        break
                    tokens.append(draft)
                    own.append(source.mask(tokens))
                own += [None] * (1 + frame.batch.num_drafts_in - len(own))
            masks.append(RowMasks(row, tuple(own)))
        return tuple(masks)


def counters_of(core: EngineCore) -> Mapping[str, int]:
    """Every counter of the core and its scheduler by name."""
    scheduler = core.scheduler.counters
    return {
        "steps": scheduler.steps,
        "preemptions": scheduler.preemptions,
        "hits": scheduler.hits,
        "hit_tokens": scheduler.hit_tokens,
        "late_results": scheduler.late_results,
        "stalls": scheduler.stalls,
        "deferred_samples": core.counters.deferred_samples,
        "commits": core.counters.commits,
    }
