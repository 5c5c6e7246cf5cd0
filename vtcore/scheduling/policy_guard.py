"""Calls a scheduler policy and checks what it says: the seam at which plugin output is untrusted.

Does not: admit or preempt. A breach (exception, no permutation, repeated slowness) costs the policy its turn:
first come, first served for that step, a counter and one log line; after `MAX_BREACHES` the policy is off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from vtcore.interfaces.scheduler_policy import (
    Event,
    PolicyContext,
    RunningView,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.waiting import WaitingQueue

log = logging.getLogger(__name__)

MAX_BREACHES = 100
MAX_WINDOW = 1024
SLOW_STEPS = 3
"""Consecutive slow `order` calls that make a breach."""


class PolicyGuard:
    """One policy as the scheduler may use it.

    Args:
        policy: The plugin's object.
        clock: Seconds, real or simulated.
        memory: For cached lengths and freeable units shown to the policy.
        time_limit_s: Longest `order` may take; None is no limit.
        starvation_s: A request that waits longer goes first whatever the policy says.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        clock: Callable[[], float],
        memory: RequestMemory,
        time_limit_s: float | None = 0.005,
        starvation_s: float = 30.0,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._memory = memory
        self._time_limit_s = time_limit_s
        self._starvation_s = starvation_s
        self._slow = 0
        self._cached: dict[str, tuple[int, int]] = {}
        self.breaches = 0
        self.wants_events = type(policy).on_events is not SchedulerPolicy.on_events
        self._own_victim = type(policy).victim is not SchedulerPolicy.victim
        self._window = min(max(policy.window, 1), MAX_WINDOW)

    @property
    def is_off(self) -> bool:
        """Whether the policy has breached its contract too often to be asked again."""
        return self.breaches >= MAX_BREACHES

    @property
    def is_static(self) -> bool:
        """Whether admission follows the keys alone; else `candidates` is asked once per step."""
        return self._policy.static or self.is_off

    def order_key(self, request: RequestState) -> tuple[object, ...]:
        """(policy key..., arrival, id) of an arriving request; a bad key counts as a breach and as ()."""
        key: tuple[int | float | str, ...] = ()
        if not self.is_off:
            try:
                key = tuple(self._policy.key(self._waiting_view(request, self._clock(), 0)))
                if not all(type(part) in (int, float, str) for part in key):
                    raise TypeError(f"key {key!r} holds something other than int, float or str")
                if any(part != part for part in key):
                    raise ValueError(f"key {key!r} holds a NaN, which has no place in an order")
            except (Exception, SystemExit) as error:
                self._breach("key", error)
                key = ()
        # Parts are wrapped by type so that keys of mixed types still compare.
        ranked = tuple((0, part) if not isinstance(part, str) else (1, part) for part in key)
        return (ranked, request.req.arrival_s, request.id)

    def candidates(self, waiting: WaitingQueue, ctx: PolicyContext) -> list[RequestState]:
        """Waiting requests in the order of admission, a window of them; a starving request is first."""
        if self.is_static:
            first = waiting.first()
            ordered = [] if first is None else [first]
        else:
            window = waiting.smallest(self._window)
            ordered = [window[i] for i in self._order(window, ctx)]
        oldest = waiting.oldest()
        if oldest is not None and ctx.now_s - oldest.req.arrival_s > self._starvation_s:
            ordered = [oldest, *(r for r in ordered if r is not oldest)]
        return ordered

    def victim(self, running: Sequence[RequestState], ctx: PolicyContext) -> RequestState:
        """Which of `running` (in visiting order, not empty) is preempted."""
        if self._own_victim and not self.is_off:
            try:
                choice = self._policy.victim([self._running_view(r, ctx.now_s) for r in running], ctx)
                if choice is not None:
                    if type(choice) is not int or not 0 <= choice < len(running):
                        raise ValueError(f"victim {choice!r} is outside 0..{len(running) - 1}")
                    return running[choice]
            except (Exception, SystemExit) as error:
                self._breach("victim", error)
        return running[-1]

    def tell(self, events: Sequence[Event]) -> None:
        """Hand a step's events over."""
        if self.is_off or not events:
            return
        try:
            self._policy.on_events(events)
        except (Exception, SystemExit) as error:
            self._breach("on_events", error)

    def forget(self, request: RequestState) -> None:
        """Drop what is remembered of a request that ended."""
        self._cached.pop(request.id, None)

    def _order(self, window: list[RequestState], ctx: PolicyContext) -> Sequence[int]:
        views = [
            self._waiting_view(r, ctx.now_s, self._cached_tokens(r, ctx.cache_generation)) for r in window
        ]
        start = self._clock()
        try:
            order = list(self._policy.order(views, ctx))
            # True, 1.0 and 1 compare equal, and only the last is an index.
            if not all(type(index) is int for index in order) or sorted(order) != list(range(len(window))):
                raise ValueError(f"order is no permutation of range({len(window)}): {order[:8]}")
        except (Exception, SystemExit) as error:
            self._breach("order", error)
            return _first_come(window)
        slow = self._time_limit_s is not None and self._clock() - start > self._time_limit_s
        self._slow = self._slow + 1 if slow else 0
        if self._slow >= SLOW_STEPS:
            self._slow = 0
            self._breach("order", TimeoutError(f"slower than {self._time_limit_s} s in {SLOW_STEPS} steps"))
            return _first_come(window)
        return order

    def _cached_tokens(self, request: RequestState, generation: int) -> int:
        known = self._cached.get(request.id)
        if known is None or known[0] != generation:
            hit = self._memory.find_hit(request).num_blocks * self._memory.block_size
            known = self._cached[request.id] = (generation, hit)
        return known[1]

    def _waiting_view(self, request: RequestState, now_s: float, cached_tokens: int) -> WaitingView:
        req = request.req
        full_blocks = request.num_prompt // self._memory.block_size
        return WaitingView(
            id=req.id,
            arrival_s=req.arrival_s,
            age_s=now_s - req.arrival_s,
            priority=req.priority,
            tenant=req.tenant,
            num_prompt_tokens=request.num_prompt,
            max_tokens=req.max_tokens,
            num_preemptions=request.num_preemptions,
            cached_tokens=cached_tokens,
            block_hashes=tuple(request.hashes[:full_blocks]),
        )

    def _running_view(self, request: RequestState, now_s: float) -> RunningView:
        req = request.req
        return RunningView(
            id=req.id,
            arrival_s=req.arrival_s,
            age_s=now_s - req.arrival_s,
            priority=req.priority,
            tenant=req.tenant,
            num_prompt_tokens=request.num_prompt,
            max_tokens=req.max_tokens,
            num_preemptions=request.num_preemptions,
            num_computed_tokens=request.computed,
            num_freeable=self._memory.freeable([request]),
            admitted_step=request.admitted_step,
        )

    def _breach(self, where: str, error: BaseException) -> None:
        self.breaches += 1
        state = "is off from now on" if self.is_off else "loses its turn"
        name = type(self._policy).__qualname__
        log.warning("policy %s %s: %s: %s (breach %d)", name, state, where, error, self.breaches)


def _first_come(window: Sequence[RequestState]) -> list[int]:
    """The window in order of arrival."""
    return sorted(range(len(window)), key=lambda i: (window[i].req.arrival_s, window[i].id))
