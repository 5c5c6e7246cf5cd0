"""The conformance kit of a scheduler policy: subclass `SchedulerPolicyConformance` in the plugin's tests.

Does not: judge whether an order is good; only whether the core can live with it. In service a policy that
breaks one of these loses its turn and is switched off in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any, ClassVar

import attrs

from vtcore.errors import ConfigError, RequestError, VtcoreError
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.planning import make_policy
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.scheduling.policy_args import check_policy_args, parse_policy_args
from vtcore.scheduling.policy_version import newer_members
from vtcore.testing import toy_plugin
from vtcore.testing.draw_case import draw_case
from vtcore.testing.kit import ConformanceKit, since
from vtcore.testing.kit_modules import plugin_module
from vtcore.testing.policy_calls import ask
from vtcore.testing.policy_run import PolicyRun, run_policy
from vtcore.testing.policy_views import any_context, any_event, any_running_view, any_waiting_view
from vtcore.testing.schedules import run_schedule

MAX_WINDOW = 1024
"""Source: `SchedulerPolicy.window`."""

_NAME = "policy_under_test"
_UNKNOWN_KEY = "no_such_key_in_any_policy"


class SchedulerPolicyConformance(ConformanceKit):
    """The rules of docs/plugins.md, Scheduler policy.

    Attributes:
        policy: The class.
        configs: Values of `policy_config` that are accepted; every rule holds under each.
        bad_configs: Values of `policy_config` that are refused.
        args: Values of a request's `policy_args` that are accepted.
        bad_args: Values of `policy_args` that are refused.
        num_trials: Random situations of each kind.
        num_schedules: Random runs of a toy model under each config.
    """

    hook = "scheduler_policies"
    policy: ClassVar[type[SchedulerPolicy]]
    configs: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    bad_configs: ClassVar[Sequence[Mapping[str, Any]]] = ()
    args: ClassVar[Sequence[Mapping[str, Any]]] = ()
    bad_args: ClassVar[Sequence[Mapping[str, Any]]] = ()
    num_trials: ClassVar[int] = 60
    num_schedules: ClassVar[int] = 12

    @classmethod
    def make(cls, config: Mapping[str, Any]) -> SchedulerPolicy:
        """A policy as the core makes it from `policy_config`."""
        return make_policy(cls.policy_registry(), _NAME, config)

    @classmethod
    def policy_registry(cls) -> PluginRegistry:
        """A registry with the policy and the toy model."""

        def build() -> PluginRegistry:
            module = plugin_module(
                lambda name: [SchedulerPolicyEntry(name=_NAME, implementation=f"{name}:Policy")],
                {"Policy": cls.policy},
            )
            return build_registry(extra=(toy_plugin, *cls.modules(), module), entry_points=False)

        found: PluginRegistry = cls.once("policy_registry", build)
        return found

    @classmethod
    def possible_args(cls) -> list[Any]:
        """What a request's `policy_args` may be: without any, and each of `args`."""
        policy = cls.make(cls.configs[0])
        return [parse_policy_args(policy, ""), *(cls._parsed(policy, args) for args in cls.args)]

    @staticmethod
    def _parsed(policy: SchedulerPolicy, args: Mapping[str, Any]) -> Any:
        return parse_policy_args(policy, check_policy_args(policy, args))

    @since("0.1")
    def test_class_attributes_have_their_types_and_ranges(self) -> None:
        """`window` is an int from 1 to 1024; `static` is a bool, and true only if `order` is inherited."""
        assert isinstance(self.policy, type), "the policy is no class"
        assert issubclass(self.policy, SchedulerPolicy), "the policy is no SchedulerPolicy"
        static, window = self.policy.static, self.policy.window
        assert type(static) is bool, f"static is {static!r}, not a bool"
        assert type(window) is int, f"window is {window!r}, not an int"
        assert 1 <= window <= MAX_WINDOW, f"window is {window}, outside 1..{MAX_WINDOW}"
        if static:
            assert self.policy.order is SchedulerPolicy.order, "static says that `order` is never called"

    @since("0.1")
    def test_members_are_of_the_version_declared(self) -> None:
        """Nothing is used that came after the version in the plugin's `VTCORE_API`."""
        wrong = newer_members(self.policy, self.declared_api())
        assert not wrong, f"{self.policy.__qualname__} {wrong}"

    @since("0.2")
    def test_options_and_args_are_frozen_attrs_classes_with_defaults(self) -> None:
        """`options_class` and `args_class` are frozen attrs classes, every field with a default."""
        for name in ("options_class", "args_class"):
            found = getattr(self.policy, name)
            if found is None:
                continue
            assert isinstance(found, type), f"{name} is {found!r}, no class"
            assert attrs.has(found), f"{name} {found.__name__} is no attrs class"
            made = [one.name for one in attrs.fields(found) if one.init and one.default is attrs.NOTHING]
            assert not made, f"{name} {found.__name__} has fields without a default: {', '.join(made)}"
            assert _is_frozen(found), f"{name} {found.__name__} is not frozen; write @frozen above it"

    @since("0.2")
    def test_good_configs_are_accepted_and_become_options(self) -> None:
        """Each of `configs` makes a policy whose options hold the values given."""
        for config in self.configs:
            # A policy written for 0.1 may have an __init__ of its own that sets none.
            options = getattr(self.make(config), "options", None)
            if self.policy.options_class is None:
                assert options is None, "options are given to a policy that declares no options_class"
                continue
            assert isinstance(options, self.policy.options_class), (
                f"policy_config {config} did not reach the policy: its options are {options!r}; call "
                f"super().__init__(options)"
            )

    @since("0.2")
    def test_bad_configs_are_refused(self) -> None:
        """Each of `bad_configs`, an unknown key, and a value of no fitting type are a ConfigError."""
        for config in (*self.bad_configs, *_unfit(self.policy.options_class)):
            error = _error_of(self.make, config)
            assert isinstance(error, ConfigError), (
                f"policy_config {config} is not refused but gives {error!r}"
            )

    @since("0.2")
    def test_good_args_are_accepted_and_bad_args_refused(self) -> None:
        """Each of `args` gives an `args_class`; `bad_args`, an unknown key, a value of no type do not."""
        policy = self.make(self.configs[0])
        for args in self.args:
            parsed = self._parsed(policy, args)
            assert isinstance(parsed, self.policy.args_class or ()), f"policy_args {args} gives {parsed!r}"
        for args in (*self.bad_args, *_unfit(self.policy.args_class)):
            error = _error_of(self._parsed, policy, args)
            assert isinstance(error, RequestError), f"policy_args {args} is not refused but gives {error!r}"

    @since("0.1")
    def test_keys_are_plain_and_compare(self) -> None:
        """Keys are tuples of plain ints, floats (no NaN) and strings, and any two of one policy compare."""
        for config in self.configs:
            policy, keys, random = self.make(config), [], Random(0)
            for _ in range(self.num_trials):
                key = ask(policy, policy.key, any_waiting_view(random, "r", self.possible_args()))
                assert type(key) is tuple, f"key {key!r} is no tuple"
                for part in key:
                    assert type(part) in (int, float, str), f"key part {part!r} is no plain int, float or str"
                    assert not (isinstance(part, float) and math.isnan(part)), (
                        "a NaN has no place in an order"
                    )
                keys.append(key)
            kinds = {tuple("text" if isinstance(part, str) else "number" for part in key) for key in keys}
            assert len(kinds) == 1, f"keys have different forms, {sorted(kinds)}: they do not compare"

    @since("0.1")
    def test_order_is_a_pure_permutation(self) -> None:
        """`order` is a permutation of plain ints, and pure: asked twice, it answers the same."""
        for config in self.configs:
            self._check_order(self.make(config), (0, 1, 2, self.policy.window))

    @since("0.1")
    def test_victim_is_none_or_a_pure_index(self) -> None:
        """`victim` is None or the index of a running request, and pure: asked twice, it answers the same."""
        for config in self.configs:
            self._check_victim(self.make(config), range(1, 10))

    @since("0.1")
    def test_any_events_in_any_order_leave_the_policy_legal(self) -> None:
        """Events also of requests never seen may come in any order; keys, orders and victims stay legal."""
        for config in self.configs:
            policy, random = self.make(config), Random(0)
            for _ in range(self.num_trials):
                events = [any_event(random, self.possible_args()) for _ in range(random.randrange(6))]
                ask(policy, policy.on_events, tuple(events))
            self._check_order(deepcopy(policy), (1, 3, 5))
            self._check_victim(deepcopy(policy), (1, 2, 3))

    @since("0.1")
    def test_output_does_not_depend_on_the_policy(self) -> None:
        """Law 8: under random schedules every request's output is what it is alone."""
        texts = self._arg_texts()
        for config in self.configs:
            for seed in range(self.num_schedules):
                random = Random(seed)
                case = draw_case(random.choice, policy=_NAME, vocab_sizes=(12,))
                requests = tuple(attrs.evolve(r, policy_args=random.choice(texts)) for r in case.requests)
                case = attrs.evolve(case, requests=requests, policy_config=config)
                run_schedule(case, registry=self.policy_registry())

    @since("0.1")
    def test_every_request_ends(self) -> None:
        """With memory for little more than one request, and preemption, all requests end."""
        for config in self.configs:
            for seed in range(3):
                run = self._run(config, seed)
                assert not run.unfinished, f"seed {seed}: requests that never end: {sorted(run.unfinished)}"

    @since("0.1")
    def test_the_core_never_has_to_step_in(self) -> None:
        """In a run of the real scheduler no answer is refused and no exception caught."""
        for config in self.configs:
            for seed in range(3):
                run = self._run(config, seed)
                assert not run.breaches, (
                    f"seed {seed}: {run.breaches} breaches, the first: {run.first_breach}"
                )

    def _run(self, config: Mapping[str, Any], seed: int) -> PolicyRun:
        found: PolicyRun = self.once(
            f"run {config} {seed}",
            lambda: run_policy(self.policy_registry(), _NAME, config, self._arg_texts(), seed),
        )
        return found

    def _arg_texts(self) -> list[str]:
        policy = self.make(self.configs[0])
        return ["", *(check_policy_args(policy, args) for args in self.args)]

    def _check_order(self, policy: SchedulerPolicy, sizes: Sequence[int]) -> None:
        random = Random(0)
        for trial in range(self.num_trials):
            size, ctx = sizes[trial % len(sizes)], any_context(random)
            window = [any_waiting_view(random, f"r{i}", self.possible_args(), ctx.now_s) for i in range(size)]
            given = list(window)
            order = list(ask(policy, policy.order, window, ctx))
            assert window == given, "order changed the window it was given"
            assert all(type(index) is int for index in order), f"order holds no plain ints: {order[:8]}"
            assert sorted(order) == list(range(size)), (
                f"order is no permutation of range({size}): {order[:8]}"
            )
            assert list(policy.order(window, ctx)) == order, "order is not pure: asked twice, it differs"

    def _check_victim(self, policy: SchedulerPolicy, sizes: Sequence[int]) -> None:
        random = Random(0)
        for trial in range(self.num_trials):
            size, ctx = sizes[trial % len(sizes)], any_context(random)
            running = [
                any_running_view(random, f"r{i}", self.possible_args(), ctx.now_s) for i in range(size)
            ]
            given = list(running)
            choice = ask(policy, policy.victim, running, ctx)
            assert running == given, "victim changed the list it was given"
            if choice is not None:
                assert type(choice) is int, f"victim {choice!r} is no plain int"
                assert 0 <= choice < len(running), f"victim {choice} is outside 0..{len(running) - 1}"
            assert policy.victim(running, ctx) == choice, "victim is not pure: asked twice, it differs"


def _is_frozen(found: type) -> bool:
    made = found()
    for one in attrs.fields(found):
        try:
            setattr(made, one.name, getattr(made, one.name))
        except attrs.exceptions.FrozenInstanceError:
            continue
        return False
    return True


def _unfit(declared: type | None) -> list[dict[str, Any]]:
    """What no policy accepts: an unknown key; in the place of each number, flag or text, a list."""
    unfit: list[dict[str, Any]] = [{_UNKNOWN_KEY: 1}]
    for one in attrs.fields(declared) if declared is not None else ():
        if one.init and type(one.default) in (int, float, str, bool):
            unfit.append({one.alias or one.name: [one.default]})
    return unfit


def _error_of(act: Callable[..., object], *arguments: object) -> object:
    """The error of this project that an act raises, else what it returns."""
    try:
        return act(*arguments)
    except VtcoreError as error:
        return error
