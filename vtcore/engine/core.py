"""The step: schedule, launch_forward, launch_sample, commit, at depth 1 or 2.

Does not: see text, tokenizers or tensors. One code path; the depth is a number.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import asdict, define, field, frozen

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
        num_tokens: Output tokens kept, as policies are told; None keeps all. The front end cuts.
    """

    id: str
    reason: str
    num_tokens: int | None = None


@frozen
class ResetPrefixCache:
    """Message: nothing that was computed so far is served to a request that is admitted from now on."""


Message = AddRequest | FinishRequest | ResetPrefixCache


@define
class CoreCounters:
    """Events since the start, beside the scheduler's."""

    deferred_samples: int = 0
    commits: int = 0
    finished: Counter[str] = field(factory=Counter)
    """Ended requests by reason."""


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
    failure: BaseException | None = None
    _updates: list[RequestUpdate] = field(factory=list)
    _masks: dict[str, MaskSource] = field(factory=dict)

    def step(self) -> list[RequestUpdate]:
        """Launch what can be launched and commit what must be; messages are taken between the calls.

        If a step raises, what was in flight is dropped and every running request waits again, to be computed
        anew; the exception goes on to the caller, who may end the request at fault and step again.

        Raises:
            EngineError: Nothing can be launched, nothing is in flight and requests are unfinished; or an
                earlier failure could not be recovered from.
        """
        if self.failure is not None:
            raise EngineError(f"the engine failed earlier: {self.failure!r}") from self.failure
        try:
            updates = self._step()
        except BaseException as error:
            self._recover(error)
            raise
        if self.check is not None:
            self.check(self)
        return updates

    def _step(self) -> list[RequestUpdate]:
        self._take_messages()
        frame = self.scheduler.schedule()
        deferred = False
        if frame is not None:
            self.frames.append(frame)
            self.executor.launch_forward(frame.batch)
            self._take_messages()
            deferred = self._must_wait(frame)
            if not deferred:
                self._launch_sample(frame)
        elif not self.frames and self.scheduler.requests:
            query = 1 + max(self.scheduler.limits.captured_k)
            self.scheduler.memory.check_bounded(self.scheduler.running, query)
            raise EngineError(f"stuck: {len(self.scheduler.requests)} requests and nothing can be launched")
        if self.frames and (len(self.frames) >= self.depth or frame is None):
            self._commit()
        self._take_messages()
        if frame is not None and deferred:
            self.counters.deferred_samples += 1
            self._launch_sample(frame)
        # Kept until here, so that a failure after the commit loses no token.
        updates, self._updates = self._updates, []
        return updates

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.requests or self.frames or self.inbox or self._updates)

    def drain(self) -> list[RequestUpdate]:
        """Commit every frame that was sampled; nothing new is launched."""
        while self.frames and self.frames[0].sampled:
            self._commit()
        updates, self._updates = self._updates, []
        return updates

    def _commit(self) -> None:
        frame = self.frames[0]
        result = self.executor.poll(frame.step)
        self.frames.popleft()
        self.counters.commits += 1
        first = len(self._updates)
        for update in commit(self.scheduler, frame, result, self._updates)[first:]:
            if update.finish_reason is not None:
                self._forget(update.id, update.finish_reason)

    def _forget(self, request_id: str, reason: str) -> None:
        self._masks.pop(request_id, None)
        self.counters.finished[reason] += 1

    def _recover(self, error: BaseException) -> None:
        """Drop what is in flight, start all books anew and compute every unfinished request again.

        Rows are initialised whole when a request is admitted, so nothing of the failed step survives on the
        device. If even that fails, the engine stops for good.
        """
        try:
            self.frames.clear()
            self.executor.close()
            self.scheduler.rebuild()
        except Exception:
            self.failure = error

    def _take_messages(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, AddRequest):
                self.scheduler.add(message.request)
                if message.masks is not None:
                    self._masks[message.request.id] = message.masks
            elif isinstance(message, ResetPrefixCache):
                self.scheduler.reset_prefix_cache()
            elif self.scheduler.finish(message.id, message.num_tokens) is not None:
                self._forget(message.id, message.reason)

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
    return {
        **asdict(core.scheduler.counters),
        "deferred_samples": core.counters.deferred_samples,
        "commits": core.counters.commits,
        **{f"finished_{reason}": count for reason, count in core.counters.finished.items()},
    }
