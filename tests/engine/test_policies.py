"""Law 8 holds under any scheduler policy: it decides when a request runs, never what comes out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from types import ModuleType

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
from vtcore.testing import toy_plugin
from vtcore.testing.draw_case import draw_case
from vtcore.testing.policy_kit import check_policy
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

    module.VTCORE_API = {"scheduler_policies": "0.1"}  # type: ignore[attr-defined]
    module.vtcore_register_scheduler_policies = hookimpl(vtcore_register_scheduler_policies)  # type: ignore[attr-defined]
    # An entry names its implementation by path, so the module must be importable for as long as tests run.
    sys.modules[MODULE] = module
    return build_registry(extra=(toy_plugin, module), entry_points=False)


REGISTRY = registry_with_policies()


@pytest.mark.parametrize("policy", [ShortestPromptFirst, FirstVictim])
def test_the_policies_keep_their_contract(policy: type[SchedulerPolicy]) -> None:
    check_policy(policy)


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
    outputs = [
        run_schedule(ScheduleCase(requests=requests, policy=name, depth=2), REGISTRY).outputs
        for name in ("fcfs", *POLICIES)
    ]
    assert all(output == outputs[0] for output in outputs)
