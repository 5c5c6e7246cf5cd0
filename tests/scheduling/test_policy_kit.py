"""The kit accepts policies that keep the contract, and each of its checks catches one that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from vtcore.interfaces.scheduler_policy import (
    Event,
    PolicyContext,
    RunningView,
    Scheduled,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.scheduling.policies.fcfs import FcfsPolicy
from vtcore.testing import policy_kit
from vtcore.testing.policy_kit import check_policy


class ShortestPromptFirst(SchedulerPolicy):
    """Shortest remaining work first, and who has computed least is preempted."""

    window = 7
    static = False

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return sorted(range(len(window)), key=lambda i: window[i].num_prompt_tokens - window[i].cached_tokens)

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return min(range(len(running)), key=lambda i: running[i].num_computed_tokens)


class FairShare(SchedulerPolicy):
    """Counts tokens of each request, and prefers who got least; keys by priority and tenant."""

    static = False

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.priority, view.tenant, view.arrival_s)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return sorted(range(len(window)), key=lambda i: self.tokens.get(window[i].id, 0))

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Scheduled):
                self.tokens[event.id] = self.tokens.get(event.id, 0) + event.tokens


@pytest.mark.parametrize("policy", [FcfsPolicy, SchedulerPolicy, ShortestPromptFirst, FairShare])
def test_a_policy_that_keeps_the_contract_passes(policy: type[SchedulerPolicy]) -> None:
    check_policy(policy)


class Dynamic(SchedulerPolicy):
    static = False


class HugeWindow(SchedulerPolicy):
    window = 1025


class StaticWithAnOrder(SchedulerPolicy):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return range(len(window))


class StaticByNumber(SchedulerPolicy):
    static = 1  # type: ignore[assignment]


class NoSubclass:
    pass


class KeyOfBool(SchedulerPolicy):
    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.priority > 0,)


class KeyOfNone(SchedulerPolicy):
    def key(self, view: WaitingView) -> Any:
        return (None,)


class KeyOfNan(SchedulerPolicy):
    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (float("nan"),)


class KeyInAList(SchedulerPolicy):
    def key(self, view: WaitingView) -> Any:
        return [view.priority]


class KeyOfManyForms(SchedulerPolicy):
    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.tenant,) if view.priority else (0,)


class OrderDropsOne(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return range(len(window) - 1)


class OrderRepeats(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return [0] * len(window)


class OrderOfBools(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return [bool(i) if i < 2 else i for i in range(len(window))]


class OrderOfFloats(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Any:
        return [float(i) for i in range(len(window))]


class OrderOfNumpy(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Any:
        numpy = pytest.importorskip("numpy")
        return list(numpy.arange(len(window)))


class OrderByChance(Dynamic):
    def __init__(self) -> None:
        self.random = Random(3)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return self.random.sample(range(len(window)), len(window))


class OrderThatSortsItsArgument(Dynamic):
    def order(self, window: Any, ctx: PolicyContext) -> Sequence[int]:
        window.sort(key=lambda view: view.num_prompt_tokens)
        return range(len(window))


class VictimOutside(SchedulerPolicy):
    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return len(running)


class VictimFromTheEnd(SchedulerPolicy):
    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return -1


class VictimByName(SchedulerPolicy):
    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> Any:
        return running[0].id


class VictimInTurn(SchedulerPolicy):
    def __init__(self) -> None:
        self.turn = 0

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        self.turn += 1
        return self.turn % len(running)


class VictimThatRemoves(SchedulerPolicy):
    def victim(self, running: Any, ctx: PolicyContext) -> int | None:
        running.pop()
        return 0


class OrderSpoiledByEvents(Dynamic):
    def __init__(self) -> None:
        self.count = 0

    def on_events(self, events: Sequence[Event]) -> None:
        self.count += len(events)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return range(len(window)) if self.count < 5 else range(1, len(window) + 1)


class VictimSpoiledByEvents(SchedulerPolicy):
    def __init__(self) -> None:
        self.count = 0

    def on_events(self, events: Sequence[Event]) -> None:
        self.count += len(events)

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return self.count


FAULTS: list[tuple[Any, str, str]] = [
    (NoSubclass, "check_class", "no SchedulerPolicy"),
    (HugeWindow, "check_class", "outside 1..1024"),
    (StaticWithAnOrder, "check_class", "never called"),
    (StaticByNumber, "check_class", "not a bool"),
    (KeyOfBool, "check_key", "no plain int"),
    (KeyOfNone, "check_key", "no plain int"),
    (KeyOfNan, "check_key", "NaN"),
    (KeyInAList, "check_key", "no tuple"),
    (KeyOfManyForms, "check_key", "do not compare"),
    (OrderDropsOne, "check_order", "no permutation"),
    (OrderRepeats, "check_order", "no permutation"),
    (OrderOfBools, "check_order", "no plain ints"),
    (OrderOfFloats, "check_order", "no plain ints"),
    (OrderOfNumpy, "check_order", "no plain ints"),
    (OrderByChance, "check_order", "not pure"),
    (OrderThatSortsItsArgument, "check_order", "changed the window"),
    (VictimOutside, "check_victim", "outside 0"),
    (VictimFromTheEnd, "check_victim", "outside 0"),
    (VictimByName, "check_victim", "no plain int"),
    (VictimInTurn, "check_victim", "not pure"),
    (VictimThatRemoves, "check_victim", "changed the list"),
    (OrderSpoiledByEvents, "check_events", "no permutation"),
    (VictimSpoiledByEvents, "check_events", "outside 0"),
]


@pytest.mark.parametrize(("policy", "check", "message"), FAULTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_planted_fault_is_caught_by_its_check(policy: Any, check: str, message: str) -> None:
    run = getattr(policy_kit, check)
    with pytest.raises(AssertionError, match=message):
        run(policy) if check == "check_class" else run(policy, Random(0))


@pytest.mark.parametrize("policy", [fault for fault, _, _ in FAULTS])
def test_check_policy_catches_every_planted_fault(policy: Any) -> None:
    with pytest.raises(AssertionError):
        check_policy(policy)
