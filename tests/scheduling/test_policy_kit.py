"""The kit accepts policies that keep the contract; each planted fault fails exactly the rule meant for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import define, field, frozen, validators

from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import (
    Event,
    PolicyContext,
    RunningView,
    Scheduled,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.request_state import RequestState
from vtcore.testing import policy_run
from vtcore.testing.kit import failing_rules
from vtcore.testing.kit_modules import plugin_module
from vtcore.testing.policy_kit import SchedulerPolicyConformance


class ShortestPromptFirst(SchedulerPolicy):
    """Shortest remaining work first, and who has computed least is preempted."""

    window = 7
    static = False

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return sorted(range(len(window)), key=lambda i: window[i].num_prompt_tokens - window[i].cached_tokens)

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return min(range(len(running)), key=lambda i: running[i].num_computed_tokens)


def _positive(settings: object, attribute: Any, value: dict[str, float]) -> None:
    if any(weight <= 0 for weight in value.values()):
        raise ValueError("a weight is not positive")


@frozen
class Weights:
    weights: dict[str, float] = field(factory=dict, validator=_positive)
    bonus: int = field(default=1, validator=validators.ge(0))


@frozen
class Deadline:
    deadline_s: float = 0.0


class FairShare(SchedulerPolicy):
    """Counts tokens of each tenant by weight, and prefers who got least; keys by deadline and tenant."""

    static = False
    options_class = Weights
    args_class = Deadline

    def __init__(self, options: Weights) -> None:
        super().__init__(options)
        self.tokens: dict[str, float] = {}
        self.tenant: dict[str, str] = {}

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (view.policy_args.deadline_s, view.tenant, view.arrival_s)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return sorted(range(len(window)), key=lambda i: self.tokens.get(window[i].tenant, 0.0))

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Scheduled):
                self.tokens[event.id] = self.tokens.get(event.id, 0) + event.tokens


class TestShortestPromptFirst(SchedulerPolicyConformance):
    policy = ShortestPromptFirst
    num_schedules = 1


class TestDefaults(SchedulerPolicyConformance):
    policy = SchedulerPolicy
    num_schedules = 1


class TestFairShare(SchedulerPolicyConformance):
    policy = FairShare
    configs = ({}, {"weights": {"a": 2.0}, "bonus": 3})
    bad_configs = ({"weights": {"a": -1.0}}, {"bonus": -1}, {"weights": 3})
    args = ({"deadline_s": 1.5},)
    bad_args = ({"deadline_s": "soon"},)
    num_schedules = 1


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


@define
class Loose:
    weight: float = 1.0


@frozen
class Needy:
    weight: float


class OptionsNotFrozen(SchedulerPolicy):
    options_class = Loose


class ArgsWithoutDefault(SchedulerPolicy):
    args_class = Needy


class OptionsForgotten(SchedulerPolicy):
    options_class = Weights

    def __init__(self, options: Weights) -> None:
        super().__init__()


class AcceptsAnyBonus(SchedulerPolicy):
    options_class = Weights


class AcceptsAnyDeadline(SchedulerPolicy):
    args_class = Deadline


class KeyOfOddTenant(SchedulerPolicy):
    def key(self, view: WaitingView) -> Any:
        return (view.tenant.isprintable(),) if len(view.tenant) > 1 else (1,)


class OrderOfFullWindow(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        return range(len(window) - (len(window) == self.window))


class VictimOfNine(SchedulerPolicy):
    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        return 9 if len(running) == 9 else None


def requests_of_caller() -> list[RequestState]:
    """What is in one process can be reached: the core's own requests behind the views."""
    caller = sys._getframe(2)
    return caller.f_locals["window"] if isinstance(caller.f_locals.get("self"), PolicyGuard) else []


class ChangesAPrompt(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        for request in requests_of_caller():
            request.tokens[0] = 0
        return range(len(window))


class HidesWhoWaits(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        size = len(window)
        if waiting := requests_of_caller():
            waiting.clear()
            size = 0
        return range(size)


class FailsOnFour(Dynamic):
    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        if len(window) == 4:
            raise KeyError("four")
        return range(len(window))


def kit(policy: Any, **attributes: Any) -> type[SchedulerPolicyConformance]:
    return type(
        "TestFault", (SchedulerPolicyConformance,), {"policy": policy, "num_schedules": 2, **attributes}
    )


def older_plugin() -> ModuleType:
    """A plugin that says it was written for 0.1."""
    fcfs = SchedulerPolicyEntry(name="older", implementation="vtcore.scheduling.policies.fcfs:FcfsPolicy")
    module = plugin_module(lambda name: [fcfs], {})
    vars(module)["VTCORE_API"] = {"scheduler_policies": "0.1"}
    return module


CLASS = "test_class_attributes_have_their_types_and_ranges"
VERSION = "test_members_are_of_the_version_declared"
SETTINGS = "test_options_and_args_are_frozen_attrs_classes_with_defaults"
CONFIGS = "test_good_configs_are_accepted_and_become_options"
BAD_CONFIGS = "test_bad_configs_are_refused"
ARGS = "test_good_args_are_accepted_and_bad_args_refused"
KEYS = "test_keys_are_plain_and_compare"
ORDER = "test_order_is_a_pure_permutation"
VICTIM = "test_victim_is_none_or_a_pure_index"
EVENTS = "test_any_events_in_any_order_leave_the_policy_legal"
NEUTRAL = "test_output_does_not_depend_on_the_policy"
ENDS = "test_every_request_ends"
SERVED = "test_the_core_never_has_to_step_in"

MAKING = frozenset({CONFIGS, BAD_CONFIGS, ARGS, KEYS, ORDER, VICTIM, EVENTS, NEUTRAL, ENDS, SERVED})
"""Without fit settings no policy is made, so what needs one fails too."""
NONE: frozenset[str] = frozenset()

FAULTS: list[tuple[type[SchedulerPolicyConformance], str, str, frozenset[str]]] = [
    (kit(HugeWindow), CLASS, "outside 1..1024", NONE),
    (kit(StaticWithAnOrder), CLASS, "never called", NONE),
    (kit(AcceptsAnyBonus, plugin=older_plugin()), VERSION, "options_class of version 0.2", NONE),
    (kit(OptionsNotFrozen), SETTINGS, "not frozen", MAKING),
    (kit(ArgsWithoutDefault), SETTINGS, "without a default", MAKING),
    (kit(OptionsForgotten), CONFIGS, "did not reach the policy", NONE),
    (kit(AcceptsAnyBonus, bad_configs=({"bonus": 99},)), BAD_CONFIGS, "not refused", NONE),
    (kit(AcceptsAnyDeadline, bad_args=({"deadline_s": -1.0},)), ARGS, "not refused", NONE),
    (kit(KeyOfOddTenant), KEYS, "no plain int", NONE),
    (kit(OrderOfFullWindow), ORDER, "no permutation", NONE),
    (kit(VictimOfNine), VICTIM, "outside 0", NONE),
    (kit(OrderSpoiledByEvents), EVENTS, "no permutation", frozenset({SERVED})),
    (kit(VictimSpoiledByEvents), EVENTS, "outside 0", frozenset({SERVED})),
    (kit(ChangesAPrompt), NEUTRAL, "", NONE),
    (kit(HidesWhoWaits), ENDS, "nothing can be launched", frozenset({NEUTRAL, SERVED})),
    (kit(FailsOnFour), SERVED, "four", NONE),
]

MORE_FAULTS: list[tuple[Any, str, str]] = [
    (NoSubclass, CLASS, "no SchedulerPolicy"),
    (StaticByNumber, CLASS, "not a bool"),
    (KeyOfBool, KEYS, "no plain int"),
    (KeyOfNone, KEYS, "no plain int"),
    (KeyOfNan, KEYS, "NaN"),
    (KeyInAList, KEYS, "no tuple"),
    (KeyOfManyForms, KEYS, "do not compare"),
    (OrderDropsOne, ORDER, "no permutation"),
    (OrderRepeats, ORDER, "no permutation"),
    (OrderOfBools, ORDER, "no plain ints"),
    (OrderOfFloats, ORDER, "no plain ints"),
    (OrderOfNumpy, ORDER, "no plain ints"),
    (OrderByChance, ORDER, "not pure"),
    (OrderThatSortsItsArgument, ORDER, "changed the window"),
    (VictimOutside, VICTIM, "outside 0"),
    (VictimFromTheEnd, VICTIM, "outside 0"),
    (VictimByName, VICTIM, "no plain int"),
    (VictimInTurn, VICTIM, "not pure"),
    (VictimThatRemoves, VICTIM, "changed the list"),
]


@pytest.mark.parametrize(
    ("fault", "meant", "message", "also"),
    FAULTS,
    ids=lambda v: v.policy.__name__ if isinstance(v, type) else "",
)
def test_a_planted_fault_fails_the_rule_meant_for_it(
    fault: type[SchedulerPolicyConformance], meant: str, message: str, also: frozenset[str]
) -> None:
    failed = failing_rules(fault)
    assert failed.keys() == {meant} | also
    assert message in failed[meant]


def test_every_rule_of_the_kit_has_a_planted_fault() -> None:
    rules = {rule.name for rule in SchedulerPolicyConformance.rules()}
    assert {meant for _, meant, _, _ in FAULTS} == rules


@pytest.mark.parametrize(("policy", "rule", "message"), MORE_FAULTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_rule_catches_every_form_of_its_fault(policy: Any, rule: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(kit(policy)(), rule)()


def test_requests_that_have_not_ended_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_run, "_MAX_STEPS", 3)
    with pytest.raises(AssertionError, match=r"never end: .*'r0'"):
        getattr(kit(SchedulerPolicy)(), ENDS)()


class RefusesWhatIsNotYet(Dynamic):
    """Sound as long as no request is from the future."""

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return (self._age(view.age_s),)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        for view in window:
            self._age(view.age_s)
            self._age(ctx.now_s - view.arrival_s)
        return range(len(window))

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        for view in running:
            self._age(view.age_s)
            self._age(ctx.now_s - view.arrival_s)
        return None

    @staticmethod
    def _age(age_s: float) -> float:
        if age_s < 0:
            raise ValueError(f"{age_s} s old")
        return age_s


def test_no_request_of_the_kit_is_from_the_future() -> None:
    assert failing_rules(kit(RefusesWhatIsNotYet)) == {}


class LooksUpATenant(SchedulerPolicy):
    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        return ({"": 0}[view.tenant],)


def test_an_exception_shows_the_line_and_the_view() -> None:
    line = LooksUpATenant.key.__code__.co_firstlineno + 1
    with pytest.raises(KeyError) as caught:
        getattr(kit(LooksUpATenant)(), KEYS)()
    [note] = caught.value.__notes__
    assert f"LooksUpATenant at {__file__}:{line}; called with WaitingView(id='r'" in note
    with pytest.raises(AssertionError, match="breaches, the first: ") as refused:
        getattr(kit(LooksUpATenant)(), SERVED)()
    shown = str(refused.value)
    assert f"{__file__}:{line} (breach 1); called with WaitingView(id='r" in shown
    assert "policy policy_under_test (" in shown
