"""Chooses what the next step computes: running requests first, then waiting ones, out of one token budget.

Does not: run anything or judge results (commit.py). The rules are numbered in docs/architecture.md, The step.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vtcore.errors import EngineError
from vtcore.interfaces.batch import (
    CopyOp,
    EngineRequest,
    Fork,
    PrefillRow,
    RowInit,
    ScheduledBatch,
    TableDelta,
)
from vtcore.interfaces.scheduler_policy import Arrived, Event, Finished, PolicyContext, Preempted, Scheduled
from vtcore.kv_cache.prefix_hit import PrefixHit
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.batch_draft import BatchDraft
from vtcore.scheduling.chunk_end import chunk_end
from vtcore.scheduling.forks import follow, has_same_prompt, pass_on, stop_following
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.limits import SchedulerCounters, SchedulerLimits
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.request_state import RequestState, Status
from vtcore.scheduling.rows import RowTable
from vtcore.scheduling.token_budget import StepBudget
from vtcore.scheduling.uniform_rows import take_uniform
from vtcore.scheduling.waiting import WaitingQueue


class Scheduler:
    """The queues, the rows and the pools of one engine.

    Args:
        choose_k: Number of sampled rows -> drafts to propose for each, one of `captured_k`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        memory: RequestMemory,
        policy: PolicyGuard,
        clock: Callable[[], float],
        choose_k: Callable[[int], int] = lambda num_rows: 0,
    ) -> None:
        self.limits = limits
        self.memory = memory
        self.policy = policy
        self.rows = RowTable(limits.max_num_seqs)
        self.waiting = WaitingQueue()
        self.running: list[RequestState] = []
        self.requests: dict[str, RequestState] = {}
        self.counters = SchedulerCounters()
        self._clock = clock
        self._choose_k = choose_k
        self._order_rows: NDArray[np.int64] | None = None
        self._deltas: list[TableDelta] = []
        self._before: list[CopyOp] = []
        self._events: list[Event] = []
        self._last_k_out = 0
        self._step = 0
        self._admissions = 0

    def now_s(self) -> float:
        """The core's clock, in seconds."""
        return self._clock()

    # Messages.

    def add(self, req: EngineRequest) -> RequestState:
        """Queue a checked request.

        Raises:
            EngineError: The id is in use.
        """
        if req.id in self.requests:
            raise EngineError(f"request id {req.id!r} is in use")
        limit = min(len(req.prompt_token_ids) + req.max_tokens, self.limits.max_model_len)
        request = RequestState(req, list(req.prompt_token_ids), limit)
        leader = self.requests.get(req.fork_of) if req.fork_of else None
        if leader is not None and has_same_prompt(request, leader):
            request.hashes = leader.hashes[: request.num_prompt // self.memory.block_size]
        self.memory.update_hashes(request)
        request.order_key = self.policy.order_key(request)
        self.requests[req.id] = request
        if not follow(request, leader, self.rows):
            self.waiting.push(request)
        if self.policy.wants_events:
            self._events.append(Arrived(req.id, self.policy.view_of_arrival(request)))
        return request

    def finish(self, request_id: str, num_tokens: int | None = None) -> RequestState | None:
        """End a request in whatever state it is; idempotent, and legal for an unknown id.

        Args:
            num_tokens: Output tokens kept; None keeps all that are known.
        """
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        waited = request.status is Status.WAITING
        if request.status is Status.RUNNING:
            self._release(request)
        stop_following(request)
        pass_on(request, self.waiting)
        request.status = Status.FINISHED
        if waited:
            self.waiting.discard(request)
        self.policy.forget(request)
        self._note(Finished, request_id, request.num_output if num_tokens is None else num_tokens)
        return request

    def reset_prefix_cache(self) -> None:
        """Nothing computed so far will serve a later request; running ones go on with what they hold."""
        self.memory.forget_all()
        for request in self.running:
            request.may_publish = False
            pass_on(request, self.waiting)

    # One step.

    def schedule(self) -> Frame | None:
        """Build the next frame, or None when nothing can be launched now."""
        draft = self._begin()
        take_uniform(self, draft)
        self._continue_prefill(draft)
        if self.policy.wants_events:
            # Before admission, so that an order rests on everything that has happened.
            self.policy.tell(self._events)
            self._events = []
        if not draft.preempted and not draft.memory_short:
            self._admit(draft)
        if not draft.requests:
            if self.running:
                self.counters.stalls += 1
            return None
        return self._launch(draft)

    def _begin(self) -> BatchDraft:
        budget = StepBudget(self.limits.max_num_batched_tokens)
        most = min(self._last_k_out, budget.left - 1)
        return BatchDraft(budget, max(k for k in self.limits.captured_k if k <= most))

    def _continue_prefill(self, draft: BatchDraft) -> None:
        for request in [r for r in self.running if not self.rows.uniform[r.row]]:
            if not draft.budget.left:
                return
            self._prefill_chunk(draft, request)

    def _admit(self, draft: BatchDraft) -> None:
        while len(self.waiting) and self.rows.num_free and draft.budget.left:
            for request in self.policy.candidates(self.waiting, self.context(draft.budget.left)):
                if not self.rows.num_free or not draft.budget.left or not self._admit_one(draft, request):
                    return
            if not self.policy.is_static:
                return

    def _admit_one(self, draft: BatchDraft, request: RequestState) -> bool:
        self.memory.update_hashes(request)
        hit = self.memory.find_hit(request)
        computed = hit.num_blocks * self.memory.block_size
        if chunk_end(computed, len(request.tokens), draft.budget.left, (), self.memory.chunk) == computed:
            return False
        copies = self.memory.admit(request, hit)
        if copies is None:
            return False
        self._note_hit(request, hit)
        request.may_publish = True
        request.checkpoints = self.memory.checkpoint_positions(request, hit)
        cuts = self.memory.cuts(computed, len(request.tokens))
        request.cuts = tuple(sorted({*cuts, *request.checkpoints}))
        self.waiting.discard(self._start(request, computed))
        self._before += copies
        self._prefill_chunk(draft, request)
        draft.inits.append(self._row_init(request))
        return True

    def _row_init(self, request: RequestState) -> RowInit:
        needs_tokens = self.limits.history_always or request.req.params.needs_history
        return RowInit(
            row=request.row,
            computed=request.computed,
            tokens=tuple(request.tokens) if needs_tokens else (),
            tables=tuple(tuple(ids) for ids in request.blocks),
            slots=tuple(tuple(ids) for ids in request.slots),
            params=request.req.params,
            prompt_len=request.num_prompt,
            limit=request.limit,
        )

    def _start(self, request: RequestState, computed: int) -> RequestState:
        request.status = Status.RUNNING
        request.row = self.rows.take(request, computed)
        request.computed = computed
        request.home_drafts = ()
        request.admitted_step = self._step
        request.admission = self._admissions
        self._admissions += 1
        insort(self.running, request, key=lambda r: (r.order_key, r.admission))
        self._order_rows = None
        self.rows.covered[request.row] = self.memory.covered(request)
        return request

    def _prefill_chunk(self, draft: BatchDraft, request: RequestState) -> None:
        row, known = request.row, len(request.tokens)
        start = int(self.rows.bound[row])
        end = chunk_end(start, known, draft.budget.left, request.cuts, self.memory.chunk)
        if end == start:
            return
        upto = min(end + self.memory.lookahead, request.limit - 1)
        if upto > self.rows.covered[row]:
            self.extend(request, self.memory.missing(request, upto))
        sample = end == known
        prompt_logprobs = request.req.prompt_logprobs
        targets: tuple[int, ...] = ()
        if prompt_logprobs is not None:
            targets = request.req.prompt_token_ids[start + 1 : end + 1]
        draft.budget.take(end - start)
        draft.prefill.append(
            PrefillRow(
                row,
                start,
                tuple(request.tokens[start:end]),
                sample,
                prompt_logprobs,
                targets,
                None if sample else request.tokens[end],
            )
        )
        draft.requests.append(request)
        draft.queries.append(end - start)
        draft.emits.append(sample)
        self.counters.prefilled_tokens += end - start
        grid = self.memory.grid
        if grid and (end in request.checkpoints or (sample and end % grid == 0)):
            self.keep_state(draft, request, end)
        if sample and request.followers:
            self._fork(draft, request, start)

    def keep_state(self, draft: BatchDraft, request: RequestState, position: int) -> None:
        """Have the request's state after `position` tokens kept, if this step reaches it."""
        if not self.memory.wants_state(request, position):
            return
        checkpoint = self.memory.take_checkpoint(request, position)
        if checkpoint is None:
            self.counters.state_checkpoints_skipped += 1
        else:
            draft.keep(checkpoint, request)

    def _fork(self, draft: BatchDraft, leader: RequestState, start: int) -> None:
        """Let those who wait for `leader`'s prompt go on from its end, as far as rows and memory allow.

        The others wait like anyone, and find the prompt's blocks in the cache if there is one.
        """
        followers, leader.followers = leader.followers, []
        for child in followers:
            child.leader = None
            can_start = self.rows.num_free and not draft.preempted and not draft.memory_short
            copies = self.memory.fork(leader, child) if can_start else None
            if copies is None:
                child.status = Status.WAITING
                self.waiting.push(child)
                continue
            child.num_cached_tokens = max(leader.num_cached_tokens, 0)
            self._start(child, start)
            draft.forks.append(Fork(leader.row, child.row))
            draft.inits.append(self._row_init(child))
            draft.after += copies
            draft.children.append((child, len(leader.tokens) - start))
            self.counters.forks += 1

    def _launch(self, draft: BatchDraft) -> Frame:
        requests, queries, emits = draft.requests, draft.queries, draft.emits
        if self.policy.wants_events:
            self._events += [Scheduled(r.id, q) for r, q in zip(requests, queries, strict=True)]
            self._events += [Scheduled(child.id, 0) for child, _ in draft.children]
        for child, query in draft.children:
            requests.append(child)
            queries.append(query)
            emits.append(True)
        self.memory.end_schedule()
        rows = np.array([r.row for r in requests], np.int64)
        advance = np.array(queries, np.int64)
        bounds = self.rows.bound[rows]
        self.rows.bound[rows] = bounds + advance
        advance[: draft.uniform.size] = 1
        self.rows.least[rows] += advance
        self.rows.inflight[rows] += 1
        sampled = sum(emits)
        k_out = self._choose_k(sampled) if sampled else self._last_k_out
        batch = ScheduledBatch(
            step=self._step,
            num_drafts_in=draft.k_in,
            num_drafts_out=k_out,
            max_context=draft.max_context,
            deltas=tuple(self._deltas),
            inits=tuple(draft.inits),
            before=tuple(self._before),
            uniform=tuple(draft.uniform.tolist()),
            prefill=tuple(draft.prefill),
            forks=tuple(draft.forks),
            after=tuple(draft.after),
            checkpoints=tuple(draft.checkpoints),
        )
        frame = Frame(batch, requests, rows, self.rows.epoch[rows], bounds, queries, emits, draft.keepers)
        self.rows.uniform[rows] |= np.array(emits, np.bool_)
        self._deltas, self._before = [], []
        self._last_k_out = k_out
        self._step += 1
        self.counters.steps += 1
        return frame

    # Memory and order.

    def extend(self, request: RequestState, want: list[int]) -> None:
        """Grow tables; entries of a row admitted in this batch travel in its RowInit instead."""
        deltas = self.memory.extend(request, want)
        if request.admitted_step != self._step:
            self._deltas += deltas
        self.rows.covered[request.row] = self.memory.covered(request)

    def preempt(self, request: RequestState) -> None:
        """Take everything from a running request; it waits again, with its old key."""
        self._release(request)
        request.status = Status.WAITING
        request.computed = 0
        request.num_preemptions += 1
        request.waits_since = self._clock()
        self.counters.preemptions += 1
        self.waiting.push(request)
        self._note(Preempted, request.id)

    def rebuild(self) -> None:
        """After a failed step: new books; every unfinished request waits, to be computed from its tokens."""
        self.rows.reset()
        self.memory.reset()
        self.running, self.waiting = [], WaitingQueue()
        self._order_rows = None
        self._deltas, self._before = [], []
        for request in self.requests.values():
            if request.status is Status.RUNNING:
                self._note(Preempted, request.id)
            request.status, request.row, request.computed = Status.WAITING, 0, 0
            request.blocks, request.slots, request.first_needed = [], [], []
            request.published, request.home_drafts = 0, ()
            request.leader, request.followers = None, []
            request.num_preemptions += 1
            self.waiting.push(request)

    def _release(self, request: RequestState) -> None:
        """Take row, blocks and slots back; the one way out for finish, abort and preemption."""
        self.rows.release(request.row)
        self.running.remove(request)
        self._order_rows = None
        self.memory.release(request)
        request.row = 0
        request.home_drafts = ()

    def ordered_rows(self) -> NDArray[np.int64]:
        """Rows of the running requests in visiting order: by key, then admission."""
        if self._order_rows is None:
            self._order_rows = np.array([r.row for r in self.running], np.int64)
        return self._order_rows

    def context(self, budget: int) -> PolicyContext:
        """The situation as a policy sees it, with `budget` tokens left in the step."""
        return PolicyContext(
            now_s=self._clock(),
            free_blocks=self.memory.num_free,
            budget=budget,
            block_size=self.memory.block_size,
            prefix_caching=self.memory.prefix_caching,
            num_waiting=len(self.waiting),
            cache_generation=self.memory.generation,
        )

    def _note_hit(self, request: RequestState, hit: PrefixHit) -> None:
        tokens, is_first = hit.num_blocks * self.memory.block_size, request.num_cached_tokens < 0
        queried = len(request.tokens) if self.memory.prefix_caching and request.reads_cache else 0
        self.counters.note_admission(tokens, queried, is_first)
        if is_first:
            request.num_cached_tokens = tokens

    def _note(self, kind: Callable[..., Event], *args: object) -> None:
        if self.policy.wants_events:
            self._events.append(kind(*args))

    def queue_deltas(self, deltas: list[TableDelta]) -> None:
        """Table changes that arise at commit; they travel in the next launched batch."""
        self._deltas += deltas
