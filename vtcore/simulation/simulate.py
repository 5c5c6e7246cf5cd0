"""One policy over one trace: the real core in virtual time, on an executor without a device.

Does not: know how requests were made or what is reported of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from attrs import asdict, frozen

from vtcore.engine.build import build_core
from vtcore.engine.core import AddRequest, EngineCore
from vtcore.errors import RequestError
from vtcore.interfaces.batch import EngineRequest, RequestUpdate, RowParams
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.planning import make_policy
from vtcore.scheduling.policy_args import check_policy_args
from vtcore.simulation.clock import VirtualClock
from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.executor import SimulatedExecutor
from vtcore.simulation.geometry import Geometry
from vtcore.simulation.recorder import Recorder
from vtcore.simulation.tokens import key_of
from vtcore.simulation.trace import TraceRequest, raise_problems


@frozen(eq=False)
class PolicyRun:
    """A policy and what it made of the trace.

    Args:
        breaches: How often the policy broke its contract.
        counters: The scheduler's, by name.
    """

    name: str
    record: Recorder
    breaches: int
    counters: Mapping[str, int]


@frozen
class NamedPolicy:
    """A policy of the comparison; `args` are its requests' arguments, checked, as JSON in trace order."""

    name: str
    make: Callable[[], SchedulerPolicy]
    args: tuple[str, ...]


def prepare_policies(
    geometry: Geometry,
    configs: Mapping[str, Mapping[str, Any]],
    requests: Sequence[TraceRequest],
) -> tuple[NamedPolicy, ...]:
    """Find the policies and check what they are given, before anything runs.

    A policy that takes no `policy_args` is compared without them, if another one of the comparison takes any.

    Args:
        configs: Name -> the policy's own settings.

    Raises:
        ConfigError: There is no such policy, or it refuses its settings or a request's `policy_args`.
        PluginError: It cannot be made.
    """
    registry = geometry.registry
    made = {name: make_policy(registry, name, config) for name, config in configs.items()}
    takers = {name: policy for name, policy in made.items() if policy.args_class is not None}
    args = {name: [""] * len(requests) for name in made}
    problems = []
    for index, request in enumerate(requests):
        if request.policy_args and not takers:
            problems.append(
                f"{request.place}: policy_args are given, and {' and '.join(made)} of the comparison "
                f"{'takes' if len(made) == 1 else 'take'} none; leave them out, or compare a policy that "
                f"takes them"
            )
            continue
        for name, policy in takers.items() if request.policy_args else ():
            try:
                args[name][index] = check_policy_args(policy, request.policy_args)
            except RequestError as error:
                problems.append(f"{request.place}: policy {name}: {str(error).replace('$.', '')}")
    raise_problems(problems, "policy_args are wrong")
    return tuple(
        NamedPolicy(name, partial(make_policy, registry, name, config), tuple(args[name]))
        for name, config in configs.items()
    )


def simulate(
    geometry: Geometry,
    policy: NamedPolicy,
    requests: Sequence[TraceRequest],
    cost: CostModel,
    *,
    depth: int = 1,
    check: Callable[[EngineCore], None] | None = None,
) -> PolicyRun:
    """Run a trace to its end.

    Args:
        requests: As `check_trace_fits` found them to fit.
        depth: Frames in flight at most, 1 or 2.
        check: Called after every step of the core.
    """
    clock = VirtualClock()
    record = Recorder(requests, geometry.config.scheduler.max_num_seqs)
    core = _build_core(geometry, policy.make(), cost, clock, record, depth, check)
    coming = _Arrivals(requests, policy.args, geometry.vocab_size)
    while coming or core.has_work:
        for index, request in coming.until(clock.now_s):
            core.inbox.append(AddRequest(request))
            record.arrived(index, request.arrival_s, len(request.prompt_token_ids))
        if not core.has_work:
            clock.advance_to(coming.next_s)
            continue
        updates = core.step()
        record.updated(updates, clock.now_s)
        if coming.is_followed:
            coming.note(updates, clock.now_s)
    return PolicyRun(
        policy.name,
        record,
        core.scheduler.policy.breaches,
        asdict(core.scheduler.counters),
    )


def _build_core(
    geometry: Geometry,
    policy: SchedulerPolicy,
    cost: CostModel,
    clock: VirtualClock,
    record: Recorder,
    depth: int,
    check: Callable[[EngineCore], None] | None,
) -> EngineCore:
    executor = SimulatedExecutor(
        cost,
        clock,
        vocab_size=geometry.vocab_size,
        num_rows=geometry.config.scheduler.max_num_seqs,
        on_launch=lambda *about: record.launched(core.scheduler, *about),
    )
    # Real time is no part of a simulation, so the policy's time limit is off.
    core = build_core(
        geometry.config,
        geometry.plan,
        policy,
        executor,
        depth=depth,
        is_policy_timed=False,
        clock=clock,
        check=check,
    )
    return core


class _Arrivals:
    """Requests that have not come yet; those that follow others wait for their ends.

    Ids of a prompt are made when its request comes, and kept no longer than somebody follows it.
    """

    def __init__(self, requests: Sequence[TraceRequest], args: Sequence[str], vocab_size: int) -> None:
        self._requests = requests
        self._args = args
        self._vocab_size = vocab_size
        index_of = {request.id: index for index, request in enumerate(requests)}
        self._followers: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            if request.follows:
                self._followers.setdefault(index_of[request.follows], []).append(index)
        self._known: dict[int, list[int]] = {}
        """Index -> ids so far, of requests that are followed."""
        self._before: dict[int, list[int]] = {}
        """Index -> ids of the whole request that it follows."""
        self._heap = [(r.arrival_s, index) for index, r in enumerate(requests) if not r.follows]
        heapify(self._heap)
        self._num_coming = len(requests)

    def __bool__(self) -> bool:
        return self._num_coming > 0

    @property
    def next_s(self) -> float:
        """When the next one comes; something must be known to come."""
        return self._heap[0][0]

    def until(self, now_s: float) -> list[tuple[int, EngineRequest]]:
        """Requests that have come by `now_s`, in order of arrival, with their indices; each once."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            arrival_s, index = heappop(self._heap)
            self._num_coming -= 1
            found.append((index, self._make(index, arrival_s)))
        return found

    @property
    def is_followed(self) -> bool:
        """Whether a request that has come is followed by one that has not."""
        return bool(self._known)

    def note(self, updates: Sequence[RequestUpdate], now_s: float) -> None:
        """Requests have new tokens, and may have ended."""
        for update in updates:
            index = int(update.id)
            if index not in self._known:
                continue
            self._known[index] += update.tokens
            if update.finish_reason is not None:
                ids = self._known.pop(index)
                for follower in self._followers[index]:
                    request = self._requests[follower]
                    self._before[follower] = ids
                    heappush(self._heap, (max(request.arrival_s, now_s + request.after_s), follower))

    def _make(self, index: int, arrival_s: float) -> EngineRequest:
        request = self._requests[index]
        ids = [*self._before.pop(index, ()), *request.new_ids(self._vocab_size)]
        if index in self._followers:
            self._known[index] = ids
        return EngineRequest(
            # Equal arrivals are ordered by id, so ids sort as the trace does.
            id=f"{index:010d}",
            prompt_token_ids=tuple(ids),
            params=RowParams(temperature=0.0, seed=key_of(f"answer/{request.id}")),
            max_tokens=request.output_tokens,
            arrival_s=arrival_s,
            priority=request.priority,
            tenant=request.tenant,
            policy_args=self._args[index],
            cache_salt=request.cache_salt,
        )
