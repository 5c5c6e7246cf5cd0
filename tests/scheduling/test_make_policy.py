"""How a policy is made of its entry and the user's settings, and what is refused before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import ModuleType
from typing import Any

import attrs
import pytest

from vtcore.errors import ConfigError, PluginError, PluginLoadError
from vtcore.hookspecs import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.planning import make_policy
from vtcore.plugins import build_registry

NAME = f"policy-{Random().getrandbits(64):x}"

MakeOf = Callable[..., SchedulerPolicy]


@attrs.frozen
class Options:
    weights: Mapping[str, float] = attrs.field(factory=dict)
    burst: int = attrs.field(default=4, validator=attrs.validators.ge(1))


class WithOptions(SchedulerPolicy):
    options_class = Options


class AsInVersion01(SchedulerPolicy):
    """Its own __init__ takes nothing, and it does not call the core's."""

    def __init__(self) -> None:
        self.mine = 1


@pytest.fixture
def make_of() -> Iterator[MakeOf]:
    """Makes a policy of a class as the loader does."""
    module = ModuleType(f"module_{Random().getrandbits(64):x}")

    def make(policy: type[SchedulerPolicy], config: Mapping[str, Any], api: str = "0.2") -> SchedulerPolicy:
        def vtcore_register_scheduler_policies() -> list[SchedulerPolicyEntry]:
            return [SchedulerPolicyEntry(name=NAME, implementation=f"{module.__name__}:Policy")]

        module.Policy = policy  # type: ignore[attr-defined]
        module.VTCORE_API = {"scheduler_policies": api}  # type: ignore[attr-defined]
        module.vtcore_register_scheduler_policies = hookimpl(  # type: ignore[attr-defined]
            vtcore_register_scheduler_policies
        )
        sys.modules[module.__name__] = module
        return make_policy(build_registry(extra=(module,), entry_points=False), NAME, config)

    yield make
    del sys.modules[module.__name__]


def test_the_settings_reach_the_policy_as_its_own_class(make_of: MakeOf) -> None:
    assert make_of(WithOptions, {}).options == Options()
    assert make_of(WithOptions, {"weights": {"a": 2}}).options == Options({"a": 2.0})


def test_a_policy_without_options_is_made_without_arguments(make_of: MakeOf) -> None:
    assert make_of(SchedulerPolicy, {}).options is None


@pytest.mark.parametrize("api", ["0.1", "0.2"])
def test_a_policy_with_an_init_of_its_own_goes_on_working(make_of: MakeOf, api: str) -> None:
    policy = make_of(AsInVersion01, {}, api)
    assert policy.mine == 1  # type: ignore[attr-defined]


def test_all_that_is_wrong_with_the_settings_is_said_at_once(make_of: MakeOf) -> None:
    with pytest.raises(ConfigError) as caught:
        make_of(WithOptions, {"wieghts": {}, "weights": {"a": "x"}, "burst": 0})
    assert list(caught.value.problems) == [
        "$.policy_config.wieghts: no such setting; did you mean 'weights'?",
        "$.policy_config.weights['a']: 'x' is not a number",
        "$.policy_config.burst: 0 is refused: 'burst' must be >= 1: 0; "
        "change it, or leave it out for the default",
    ]


@pytest.mark.parametrize("policy", [SchedulerPolicy, AsInVersion01])
def test_settings_for_a_policy_that_has_none_are_refused(
    make_of: MakeOf, policy: type[SchedulerPolicy]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_of(policy, {"weights": {"a": 2}})
    [problem] = caught.value.problems
    assert problem.startswith(f"$.policy_config: scheduler policy {NAME}")
    for part in ("has no settings of its own", "{'weights': {'a': 2}}", "scheduling_policy"):
        assert part in problem


@pytest.mark.parametrize("name", ["fcfs", "priority", "lpm"])
def test_the_built_in_policies_have_no_settings(name: str) -> None:
    registry = build_registry(entry_points=False)
    assert make_policy(registry, name, {}).options is None
    assert registry.policies[name].entry.description
    with pytest.raises(ConfigError, match=rf"scheduler policy {name} \(vtcore"):
        make_policy(registry, name, {"x": 1})


class NoDefault:
    pass


@attrs.define
class NotFrozen:
    x: int = 1


@pytest.mark.parametrize("attribute", ["options_class", "args_class"])
@pytest.mark.parametrize(
    ("cls", "message"), [(NoDefault, "no attrs class"), (NotFrozen, "not frozen"), (3, "no attrs class")]
)
def test_a_class_that_cannot_hold_settings_is_the_plugins_mistake(
    make_of: MakeOf, attribute: str, cls: Any, message: str
) -> None:
    class Odd(SchedulerPolicy):
        pass

    setattr(Odd, attribute, cls)
    with pytest.raises(PluginError) as caught:
        make_of(Odd, {})
    assert f"scheduler policy {NAME}" in str(caught.value)
    assert f"{attribute}" in str(caught.value)
    assert message in str(caught.value)


def test_a_policy_that_forgets_its_options_says_so_at_the_start(make_of: MakeOf) -> None:
    class Forgets(AsInVersion01):
        options_class = Options

    with pytest.raises(PluginLoadError, match="cannot be made: TypeError"):
        make_of(Forgets, {})


def test_a_policy_may_refuse_its_settings_itself(make_of: MakeOf) -> None:
    class Refuses(WithOptions):
        def __init__(self, options: Options) -> None:
            raise ConfigError(f"$.policy_config.burst: {options.burst} is too much on this machine; lower it")

    with pytest.raises(ConfigError, match="9 is too much"):
        make_of(Refuses, {"burst": 9})


@pytest.mark.parametrize(
    ("attribute", "value"), [("window", True), ("window", 2.0), ("static", 0), ("needs_prefix_caching", 1)]
)
def test_attributes_of_a_wrong_type_stop_the_start(make_of: MakeOf, attribute: str, value: Any) -> None:
    class Odd(SchedulerPolicy):
        pass

    setattr(Odd, attribute, value)
    with pytest.raises(PluginLoadError, match=f"{attribute}( is)? {value!r}"):
        make_of(Odd, {})


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("options_class", Options),
        ("args_class", Options),
        ("needs_prefix_caching", True),
        ("is_active", lambda self, ctx: True),
    ],
)
def test_a_member_newer_than_the_declared_version_is_refused(
    make_of: MakeOf, member: str, value: Any
) -> None:
    newer = type("Newer", (SchedulerPolicy,), {member: value})
    assert isinstance(make_of(newer, {}), newer)
    with pytest.raises(PluginLoadError) as caught:
        make_of(newer, {}, "0.1")
    assert str(caught.value).endswith(
        f"uses {member} of version 0.2, and its plugin declares 0.1; write "
        'VTCORE_API = {"scheduler_policies": "0.2"}'
    )
