"""Calls a scheduler policy and checks what it says: the seam at which plugin output is untrusted.

Does not: admit or preempt. A breach (exception, wrong type, no permutation, repeated slowness) costs the
policy its turn: first come, first served for that step, and a counter; the first few are logged, and so is
the one that ends it, `MAX_BREACHES`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from vtcore.interfaces.scheduler_policy import Event, PolicyContext, SchedulerPolicy, WaitingView
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.policy_frames import line_in_policy
from vtcore.scheduling.policy_views import PolicyViews
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.waiting import WaitingQueue

log = logging.getLogger(__name__)

MAX_BREACHES = 100
LOGGED_BREACHES = 3
"""Breaches that are logged one by one; the next line is that the policy is off."""
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
        name: The policy's, as registered; "" shows its class alone.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        clock: Callable[[], float],
        memory: RequestMemory,
        time_limit_s: float | None = 0.005,
        starvation_s: float = 30.0,
        name: str = "",
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._views = PolicyViews(policy, memory)
        self._time_limit_s = time_limit_s
        self._starvation_s = starvation_s
        self._name = name
        self._slow = 0
        self.breaches = 0
        # What is not overridden is not called, and no view is made for it.
        own = type(policy)
        self.wants_events = own.on_events is not SchedulerPolicy.on_events
        self._own_victim = own.victim is not SchedulerPolicy.victim
        self._own_key = own.key is not SchedulerPolicy.key
        self._own_is_active = own.is_active is not SchedulerPolicy.is_active
        self._window = min(max(policy.window, 1), MAX_WINDOW)
        if warning := prefix_caching_warning(policy, memory.prefix_caching):
            log.warning("%s", warning)

    @property
    def is_off(self) -> bool:
        """Whether the policy has breached its contract too often to be asked again."""
        return self.breaches >= MAX_BREACHES

    @property
    def is_static(self) -> bool:
        """Whether admission follows the keys alone, in every step."""
        return self._policy.static or self.is_off

    def view_of_arrival(self, request: RequestState) -> WaitingView:
        """An arriving request as `key` sees it."""
        return self._views.arriving(request, self._clock())

    def order_key(self, request: RequestState) -> tuple[object, ...]:
        """(policy key..., arrival, id) of an arriving request; a bad key counts as a breach and as ().

        What the request brings for the policy is read here too; if it does not fit, that is a breach, and the
        policy sees its defaults.
        """
        key: tuple[int | float | str, ...] = ()
        if self.is_off:
            return ((), request.req.arrival_s, request.id)
        if request.req.policy_args:
            try:
                self._views.read_args(request)
            except (Exception, SystemExit) as error:
                self._breach("args_class", error)
        if self._own_key and not self.is_off:
            try:
                key = tuple(self._policy.key(self.view_of_arrival(request)))
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

    def candidates(self, waiting: WaitingQueue, ctx: PolicyContext) -> Iterator[RequestState]:
        """Waiting requests in the order of admission: the starving ones, then as the policy says.

        Whoever takes one either removes it from `waiting` or stops.
        """
        while (oldest := waiting.oldest()) and ctx.now_s - oldest.waits_since > self._starvation_s:
            yield oldest
        order = None if self.is_static else self._ordered(waiting, ctx)
        if order is None:
            while first := waiting.first():
                yield first
        else:
            yield from order

    def victim(self, running: Sequence[RequestState], ctx: PolicyContext) -> RequestState:
        """Which of `running` (in visiting order, not empty) is preempted."""
        if self._own_victim and not self.is_off:
            try:
                choice = self._policy.victim([self._views.running(r, ctx.now_s) for r in running], ctx)
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
        self._views.forget(request)

    def _ordered(self, waiting: WaitingQueue, ctx: PolicyContext) -> list[RequestState] | None:
        """A window of waiting requests as the policy orders them; None if it leaves this step to the keys."""
        is_active: object = True
        if self._own_is_active:
            try:
                is_active = self._policy.is_active(ctx)
                if type(is_active) is not bool:
                    raise TypeError(f"is_active is {is_active!r}, not a bool")
            except (Exception, SystemExit) as error:
                self._breach("is_active", error)
                return _first_come(waiting.smallest(self._window))
        return self._order(waiting.smallest(self._window), ctx) if is_active else None

    def _order(self, window: list[RequestState], ctx: PolicyContext) -> list[RequestState]:
        views = [self._views.waiting(request, ctx.now_s, ctx.cache_generation) for request in window]
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
        return [window[index] for index in order]

    def _breach(self, where: str, error: BaseException) -> None:
        self.breaches += 1
        if self.breaches > LOGGED_BREACHES and not self.is_off:
            return
        state = "is off from now on" if self.is_off else "loses its turn"
        own = type(self._policy)
        path = f"{own.__module__}:{own.__qualname__}"
        policy = f"{self._name} ({path})" if self._name else path
        cause = f"{where}: {type(error).__name__}: {error}{line_in_policy(own, error)}"
        # The conformance kit shows with what the policy was called; handlers of users have no need of it.
        caught = {"policy_error": error}
        log.warning("policy %s %s: %s (breach %d)", policy, state, cause, self.breaches, extra=caught)


def prefix_caching_warning(policy: SchedulerPolicy, is_on: bool) -> str:
    """What to tell a user whose policy orders by a prefix cache that is off; "" if there is nothing to tell.

    Args:
        is_on: Whether prefix caching is.
    """
    if is_on or not policy.needs_prefix_caching:
        return ""
    return (
        f"scheduler policy {type(policy).__qualname__} orders by what the prefix cache holds, and prefix "
        f"caching is off: set enable_prefix_caching (--enable-prefix-caching), or choose "
        f"another scheduling_policy"
    )


def _first_come(window: Sequence[RequestState]) -> list[RequestState]:
    """The window in order of arrival."""
    return sorted(window, key=lambda request: (request.req.arrival_s, request.id))
