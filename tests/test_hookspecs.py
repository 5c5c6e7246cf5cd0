"""The hooks' signatures and versions are a promise: a change here is a change of `HOOK_VERSIONS`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import vtcore
from vtcore import hookspecs
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS, PROJECT
from vtcore.interfaces.registry_entries import (
    ArchEntry,
    CheckpointSourceEntry,
    KVCacheSpecEntry,
    SchedulerPolicyEntry,
)

SNAPSHOT = {
    "vtcore_register_archs": "() -> 'Iterable[ArchEntry]'",
    "vtcore_register_kv_cache_specs": "() -> 'Iterable[KVCacheSpecEntry]'",
    "vtcore_register_scheduler_policies": "() -> 'Iterable[SchedulerPolicyEntry]'",
    "vtcore_register_checkpoint_sources": "() -> 'Iterable[CheckpointSourceEntry]'",
}


def specs() -> dict[str, Any]:
    mark = f"{PROJECT}_spec"
    return {name: value for name, value in vars(hookspecs).items() if getattr(value, mark, None)}


def test_signatures_are_as_promised() -> None:
    assert {name: str(inspect.signature(spec)) for name, spec in specs().items()} == SNAPSHOT


def test_every_hook_has_a_point_and_a_version() -> None:
    assert [point.hook for point in HOOK_POINTS] == list(specs())
    assert [point.api for point in HOOK_POINTS] == list(HOOK_VERSIONS)


def test_no_hook_is_first_result_or_historic() -> None:
    for name, spec in specs().items():
        options = getattr(spec, f"{PROJECT}_spec")
        assert not options["firstresult"], name
        assert not options["historic"], name


def test_every_hook_says_when_it_is_called_and_since_when() -> None:
    for name, spec in specs().items():
        assert "Called once while the registry is built" in spec.__doc__, name
        assert "New in " in spec.__doc__, name


def test_hookimpl_is_public() -> None:
    assert vtcore.hookimpl is hookspecs.hookimpl


def test_unknown_public_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vtcore.nothing


@pytest.mark.parametrize("cls", [ArchEntry, KVCacheSpecEntry, SchedulerPolicyEntry, CheckpointSourceEntry])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a:b"}, "name is 'a:b', not a word"),
        ({"name": ""}, "name is '', not a word"),
        ({"name": 3}, "name is 3, not a word"),
        ({"implementation": "pkg.Class"}, "implementation is 'pkg.Class', not a dotted path"),
        ({"implementation": "pkg:Class()"}, r"implementation is 'pkg:Class\(\)', not a dotted path"),
        ({"description": None}, "description is None, not a text"),
    ],
)
def test_entries_check_their_fields(cls: type, change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"name": "a-b.c_1", "implementation": "pkg.mod:Class"}
    if cls is ArchEntry:
        good["model_types"] = ["a"]
    assert cls(**good).description == ""
    with pytest.raises(ValueError, match=message):
        cls(**{**good, **change})


def test_lists_in_an_entry_become_tuples() -> None:
    entry = ArchEntry(name="a", architectures=["ForA"], model_types=["a"], implementation="m:C")
    assert (entry.architectures, entry.model_types) == (("ForA",), ("a",))


@pytest.mark.parametrize("value", ["ForA", [1], ["two words"], 5])
def test_an_arch_matches_lists_of_names_only(value: Any) -> None:
    with pytest.raises(ValueError, match="not a sequence of names"):
        ArchEntry(name="a", architectures=value, implementation="m:C")


def test_an_arch_that_could_match_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="both empty"):
        ArchEntry(name="a", implementation="m:C")


@pytest.mark.parametrize("value", [1, "yes", None])
def test_whether_a_source_serves_bare_ids_is_a_bool(value: Any) -> None:
    with pytest.raises(ValueError, match=f"serves_bare_ids is {value!r}, not True or False"):
        CheckpointSourceEntry(name="a", implementation="m:C", serves_bare_ids=value)
