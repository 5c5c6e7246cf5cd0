"""Rules carry the version they came in; taking one's place needs a reason; registries hold what is named."""

from __future__ import annotations

from types import ModuleType

import pytest

from vtcore import builtin
from vtcore.hookspecs import HOOK_VERSIONS
from vtcore.testing import arch_kit, kv_cache_kit, policy_kit, toy_plugin
from vtcore.testing.kit import ConformanceKit, failing_rules, overrides, since

KITS = (
    arch_kit.ArchConformance,
    kv_cache_kit.KVCacheSpecConformance,
    policy_kit.SchedulerPolicyConformance,
)


class TwoRules(ConformanceKit):
    hook = "kv_cache_specs"

    @since("0.1")
    def test_old(self) -> None:
        """Of 0.1."""

    @since("0.2")
    def test_new(self) -> None:
        """Of 0.2."""
        raise AssertionError("new is broken")


def plugin(api: str) -> ModuleType:
    module = ModuleType("some_plugin")
    vars(module)["VTCORE_API"] = {"kv_cache_specs": api}
    return module


def test_a_rule_is_skipped_for_a_plugin_written_for_an_older_version_and_says_so() -> None:
    older = type("TestOlder", (TwoRules,), {"plugin": plugin("0.1")})
    assert older.rule("test_old").skipped is None
    assert older.rule("test_new").skipped == (
        "the rule came with kv_cache_specs 0.2, the plugin is written for 0.1"
    )
    for module in (plugin("0.2"), None):
        same = type("TestSame", (TwoRules,), {"plugin": module})
        assert [rule.skipped for rule in same.rules()] == [None, None]


def test_versions_compare_as_numbers() -> None:
    assert type("TestTen", (TwoRules,), {"plugin": plugin("0.10")}).rule("test_new").skipped is None


def test_taking_a_rules_place_without_a_reason_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r'TestBad.test_old takes the place .* write @overrides\("why"\)'):
        type("TestBad", (TwoRules,), {"test_old": lambda self: None})
    with pytest.raises(TypeError, match="test_new takes the place"):
        type("TestBad", (TwoRules,), {"test_new": None})


def test_a_mixin_that_hides_a_rule_is_refused_too() -> None:
    mixin = type("Mixin", (), {"test_old": lambda self: None})
    with pytest.raises(TypeError, match="test_old takes the place"):
        type("TestBad", (mixin, TwoRules), {})


def test_taking_a_rules_place_with_a_reason_is_reported_also_by_a_subclass() -> None:
    class TestGood(TwoRules):
        @overrides("it is new elsewhere")
        def test_new(self) -> None:
            """Another."""

    class TestSubclass(TestGood):
        pass

    for kit in (TestGood, TestSubclass):
        assert kit.rule("test_new").overridden == "it is new elsewhere"
        assert kit.rule("test_new").since == "0.2"
        assert kit.rule("test_old").overridden is None
        assert failing_rules(kit) == {}
    assert failing_rules(TwoRules) == {"test_new": "AssertionError: new is broken"}


def test_an_override_of_no_rule_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="no rule of that name; did you mean 'test_old'"):
        type("TestBad", (TwoRules,), {"test_odl": overrides("because")(lambda self: None)})


def test_an_override_needs_words() -> None:
    with pytest.raises(ValueError, match="gives no reason"):
        overrides("  ")


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.__name__)
def test_every_test_of_a_kit_is_a_rule_with_a_docstring_and_a_served_version(
    kit: type[ConformanceKit],
) -> None:
    rules = {rule.name: rule for rule in kit.rules()}
    assert rules.keys() == {name for name in dir(kit) if name.startswith("test_")}
    for name, rule in rules.items():
        assert getattr(kit, name).__doc__, name
        assert HOOK_VERSIONS[kit.hook].serves(rule.since), name


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.__name__)
def test_the_registry_of_a_kit_holds_the_core_and_the_plugin_alone(kit: type[ConformanceKit]) -> None:
    bare = type("TestBare", (kit,), {"plugin": builtin})
    assert [info.plugin for info in bare.registry().plugins] == ["builtin"]
    one = type("TestOne", (kit,), {"plugin": builtin, "extra_plugins": (toy_plugin,)})
    assert [info.plugin for info in one.registry().plugins] == ["builtin", toy_plugin.__name__]
    assert one.registry() is one.registry()


def test_each_class_makes_things_of_its_own() -> None:
    first, second = (type(name, (TwoRules,), {}) for name in ("TestFirst", "TestSecond"))
    assert first.once("it", list) is first.once("it", list)
    assert first.once("it", list) is not second.once("it", list)
