"""Law 8 holds under any scheduler policy: it decides when a request runs, never what comes out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from types import ModuleType

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.hookspecs import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import (
    Event,
    Finished,
    PolicyContext,
    Preempted,
    RunningView,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.scheduling.policies.lpm import LpmPolicy
from vtcore.testing import toy_plugin
from vtcore.testing.draw_case import draw_case
from vtcore.testing.policy_kit import SchedulerPolicyConformance
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import run_schedule

NAME = f"policy-{Random().getrandbits(64):x}"
MODULE = f"module_{Random().getrandbits(64):x}"
HEARD: Counter[str] = Counter()


class ShortestPromptFirst(SchedulerPolicy):
    """By priority, then shortest prompt first; whoever frees most is preempted."""

    window = 3
    static = False

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.priority,)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        HEARD["orders"] += len(window) > 1
        return sorted(range(len(window)), key=lambda i: window[i].num_prompt_tokens - window[i].cached_tokens)

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        HEARD["victims"] += 1
        return max(range(len(running)), key=lambda i: running[i].num_freeable)

    def on_events(self, events: Sequence[Event]) -> None:
        HEARD["preempted"] += sum(isinstance(event, Preempted) for event in events)
        HEARD["finished"] += sum(isinstance(event, Finished) for event in events)


@attrs.frozen
class ShareOptions:
    """Of each tenant, how much it may have; absent ones have `default`."""

    shares: Mapping[str, float] = attrs.field(factory=dict)
    default: float = attrs.field(default=1.0, validator=attrs.validators.gt(0.0))


@attrs.frozen
class ShareArgs:
    """What a request says of itself."""

    urgency: int = attrs.field(default=0, validator=attrs.validators.ge(-9))


class ShareByUrgency(SchedulerPolicy):
    """Most urgent first, then by share; active in every second step at most, by what waits."""

    static = False
    window = 5
    options_class = ShareOptions
    args_class = ShareArgs

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        HEARD["urgent"] += view.policy_args.urgency != 0
        return (-view.policy_args.urgency, -self.options.shares.get(view.tenant, self.options.default))

    def is_active(self, ctx: PolicyContext) -> bool:
        HEARD["inactive"] += ctx.num_waiting % 2
        return ctx.num_waiting % 2 == 0

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return sorted(range(len(window)), key=lambda i: (window[i].policy_args.urgency, -window[i].age_s))

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return min(range(len(running)), key=lambda i: running[i].policy_args.urgency)


class FirstVictim(SchedulerPolicy):
    """Late arrivals first, and the earliest of those that may go is preempted: the opposite of the core."""

    static = False

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return range(len(window) - 1, -1, -1)

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return 0


class Vandal(SchedulerPolicy):
    """Breaks every rule that it can, by turns."""

    static = False

    def __init__(self) -> None:
        self.random = Random(1)

    def is_active(self, ctx: PolicyContext) -> bool:
        if self.random.random() < 0.1:
            raise RuntimeError("is_active")
        return self.random.choice((True, True, False, None))  # type: ignore[return-value]

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        if self.random.random() < 0.3:
            raise RuntimeError("order")
        return [self.random.randrange(-1, len(window) + 1) for _ in window]

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return self.random.choice((None, -1, len(running), True, 0))

    def on_events(self, events: Sequence[Event]) -> None:
        if self.random.random() < 0.3:
            raise RuntimeError("on_events")


POLICIES: dict[str, type[SchedulerPolicy]] = {
    NAME: ShortestPromptFirst,
    f"{NAME}-first": FirstVictim,
    f"{NAME}-vandal": Vandal,
    f"{NAME}-share": ShareByUrgency,
}


def registry_with_policies() -> PluginRegistry:
    """The toy, and the policies above under names that no source text knows."""
    module = ModuleType(MODULE)
    for policy in POLICIES.values():
        setattr(module, policy.__name__, policy)

    def vtcore_register_scheduler_policies() -> list[SchedulerPolicyEntry]:
        return [
            SchedulerPolicyEntry(name=name, implementation=f"{MODULE}:{policy.__name__}")
            for name, policy in POLICIES.items()
        ]

    module.VTCORE_API = {"scheduler_policies": "0.2"}  # type: ignore[attr-defined]
    module.vtcore_register_scheduler_policies = hookimpl(vtcore_register_scheduler_policies)  # type: ignore[attr-defined]
    # An entry names its implementation by path, so the module must be importable for as long as tests run.
    sys.modules[MODULE] = module
    return build_registry(extra=(toy_plugin, module), entry_points=False)


REGISTRY = registry_with_policies()


def with_args(case: ScheduleCase) -> ScheduleCase:
    """The same case in which each request says how urgent it is, and the policy has settings."""
    requests = tuple(
        attrs.evolve(request, policy_args=f'{{"urgency":{(7 * index) % 5 - 2}}}' if index % 3 else "")
        for index, request in enumerate(case.requests)
    )
    config = {"shares": {"": 0.5}, "default": 2}
    return attrs.evolve(case, requests=requests, policy=f"{NAME}-share", policy_config=config)


def with_long_beginnings(case: ScheduleCase) -> ScheduleCase:
    """The same case with prompts that share more than the 32 tokens below which lpm compares nothing."""
    requests = tuple(
        attrs.evolve(request, prompt=(index % 2,) * 36 + request.prompt)
        for index, request in enumerate(case.requests)
    )
    return attrs.evolve(case, requests=requests, prefix_caching=True)


class TestShareByUrgency(SchedulerPolicyConformance):
    policy = ShareByUrgency
    configs = ({"shares": {"a": 2}},)
    bad_configs = ({"default": 0}, {"shares": ["a"]})
    args = ({}, {"urgency": 3})
    bad_args = ({"urgency": -10}, {"urgency": 1.5})
    num_schedules = 1


@settings(max_examples=12)
@given(st.sampled_from(["priority", "lpm"]), st.data())
def test_any_schedule_gives_the_same_output_under_the_policies_that_come_with_the_core(
    name: str, data: st.DataObject
) -> None:
    case = draw_case(lambda options: data.draw(st.sampled_from(options)), policy=name)
    run_schedule(case, REGISTRY)


@pytest.mark.parametrize("name", ["priority", "lpm"])
def test_the_cores_policies_order_and_hit_and_change_no_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    inner = LpmPolicy.order

    def order(self: LpmPolicy, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        result = inner(self, window, ctx)
        asked["orders"] += 1
        asked["changed"] += list(result) != list(range(len(window)))
        return result

    monkeypatch.setattr(LpmPolicy, "order", order)
    seen: Counter[str] = Counter()
    for seed in range(8):
        case = draw_case(Random(seed).choice, policy=name, drafters=(None, "oracle"))
        seen += run_schedule(with_long_beginnings(case), REGISTRY).counters
    assert seen["hits"] > 0
    assert bool(asked["orders"]) is (name == "lpm")
    assert bool(asked["changed"]) is (name == "lpm")


def test_any_schedule_gives_the_same_output_under_a_policy_with_options_and_args() -> None:
    HEARD.clear()
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += run_schedule(with_args(draw_case(Random(seed).choice)), REGISTRY).counters
    for what in ("urgent", "inactive"):
        assert HEARD[what] > 0, f"{what} never happened"


@settings(max_examples=40)
@given(st.data())
def test_any_schedule_gives_the_same_output_under_a_policy_with_order_and_victim(data: st.DataObject) -> None:
    case = draw_case(lambda options: data.draw(st.sampled_from(options)), policy=NAME)
    run_schedule(case, REGISTRY)


@pytest.mark.parametrize("name", [f"{NAME}-first", f"{NAME}-vandal"], ids=["first", "vandal"])
def test_any_schedule_gives_the_same_output_under_an_unkind_policy(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    seen: Counter[str] = Counter()
    for seed in range(25):
        seen += run_schedule(draw_case(Random(seed).choice, policy=name), REGISTRY).counters
    assert seen["preemptions"] > 0
    assert seen["hits"] > 0


def test_the_policy_is_asked_and_told_in_random_schedules() -> None:
    HEARD.clear()
    seen: Counter[str] = Counter()
    for seed in range(25):
        seen += run_schedule(draw_case(Random(seed).choice, policy=NAME), REGISTRY).counters
    for what in ("orders", "victims", "preempted", "finished"):
        assert HEARD[what] > 0, f"{what} never happened"
    assert HEARD["victims"] == seen["preemptions"]


def test_outputs_do_not_depend_on_the_policy() -> None:
    requests = tuple(
        CaseRequest(prompt=tuple(range(1 + (3 * i) % 7)), max_tokens=5 + i % 3, priority=i % 2)
        for i in range(7)
    )
    plain = ScheduleCase(requests=requests, depth=2, prefix_caching=True)
    cases = [attrs.evolve(plain, policy=name) for name in ("fcfs", "priority", "lpm", *POLICIES)]
    outcomes = [run_schedule(case, REGISTRY) for case in (*cases, with_args(plain))]
    for outcome in outcomes:
        assert outcome.outputs == outcomes[0].outputs
        assert outcome.counters["preemptions"] > 0
