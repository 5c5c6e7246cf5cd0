"""A plugin works with every vtcore that serves the hook versions it was written for, and with no other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from plugin_sources import Install, policy_source, registry_of

import vtcore
from vtcore import builtin
from vtcore.cli.main import main
from vtcore.errors import (
    PluginApiError,
)
from vtcore.hookspecs import HOOK_VERSIONS, HookVersion
from vtcore.planning import make_policy
from vtcore.plugins import build_registry


@pytest.mark.parametrize(
    ("api", "remedy"),
    [
        ("0.3", "upgrade vtcore: {pip} vtcore"),
        ("7.0", "upgrade vtcore: {pip} vtcore"),
        ("0.0", "upgrade the plugin: {pip} old-dist"),
    ],
)
def test_a_plugin_for_another_hook_version_is_told_what_to_upgrade(
    install: Install, api: str, remedy: str
) -> None:
    install("old-dist", policy_source("fair", api=api))
    with pytest.raises(PluginApiError) as caught:
        build_registry(allow=["old-dist"])
    remedy = remedy.format(pip=f"{sys.executable} -m pip install -U")
    assert str(caught.value) == (
        f"plugin 'old-dist' of old-dist 1.0: it was written for version {api} of the hook "
        f"vtcore_register_scheduler_policies, this vtcore {vtcore.__version__} serves 0.1 to 0.2; {remedy}"
    )


@pytest.mark.parametrize(
    "line", ["", "VTCORE_API = {}", "VTCORE_API = '0.1'", "VTCORE_API = {'archs': '0.1'}"]
)
def test_a_plugin_must_say_for_which_version_it_was_written(line: str) -> None:
    source = policy_source("fair").replace('VTCORE_API = {"scheduler_policies": "0.1"}', line)
    with pytest.raises(PluginApiError, match=r'add VTCORE_API = \{"scheduler_policies": "0.2"\}'):
        registry_of(source)


def test_a_hook_version_that_is_no_version_is_refused() -> None:
    with pytest.raises(PluginApiError, match=r"'one' is not \"MAJOR\.MINOR\""):
        registry_of(policy_source("fair", api="one"))


def test_a_registered_plugin_says_for_which_hook_versions_it_was_written() -> None:
    [builtin, mine] = registry_of(policy_source("fair")).plugins
    assert mine.api == {"scheduler_policies": "0.1"}
    assert builtin.api["kv_cache_specs"]


OLD_POLICY = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

VTCORE_API = {"scheduler_policies": "0.1"}

class Policy(SchedulerPolicy):
    def __init__(self):
        self.seen = []

    def on_events(self, events):
        self.seen += [event.id for event in events]

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="old", implementation=f"{__name__}:Policy")]
"""
"""As written before policies had options: its `__init__` takes none."""


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_a_policy_of_each_served_version_is_made(version: str, install: Install) -> None:
    install("old-dist", OLD_POLICY.replace('"0.1"', f'"{version}"'), names=("old",))
    policy = make_policy(build_registry(allow=["old"]), "old", {})
    assert policy.seen == []  # type: ignore[attr-defined]


def test_a_file_that_is_too_old_is_to_be_ported(tmp_path: Path) -> None:
    file = tmp_path / "ancient.py"
    file.write_text(policy_source("fair", api="0.0"))
    with pytest.raises(PluginApiError) as caught:
        build_registry(entry_points=False, files=[file])
    assert str(caught.value) == (
        f"plugin 'ancient' of {file}: it was written for version 0.0 of the hook "
        f"vtcore_register_scheduler_policies, this vtcore {vtcore.__version__} serves 0.1 to 0.2; "
        f"port {file} to 0.2 (docs/plugins.md)"
    )


def test_the_doctor_and_the_list_say_what_is_served(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("old-dist", OLD_POLICY, names=("old",))
    monkeypatch.setenv("VTCORE_PLUGINS", "old")
    assert main(["plugins", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "hook versions served: archs 0.1, kv_cache_specs 0.1 to 0.2, scheduler_policies 0.1 to 0.2, "
        "checkpoint_sources 0.1"
    )
    assert main(["plugins", "doctor", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["checks"] if "old" in row["name"]]
    assert [(row["status"], row["message"]) for row in rows] == [
        ("ok", "of old-dist 1.0, written for scheduler_policies 0.1; the current version is 0.2")
    ]


@pytest.mark.parametrize(
    ("served", "version", "fits"),
    [
        (("0.2", "0.1"), "0.1", True),
        (("0.2", "0.1"), "0.3", False),
        (("0.2", "0.1"), "0.0", False),
        (("0.12", "0.9"), "0.10", True),
        (("0.12", "0.9"), "0.1", False),
        (("1.3", "1.0"), "0.9", False),
        (("1.3", "1.0"), "2.0", False),
        (("1.3", "1.3"), "1.3", True),
    ],
)
def test_from_the_oldest_to_the_current_minor_of_one_major(
    served: tuple[str, str], version: str, fits: bool
) -> None:
    assert HookVersion(current=served[0], oldest=served[1]).serves(version) is fits


@pytest.mark.parametrize(
    ("current", "oldest"), [("0.1", "0.2"), ("1.0", "0.9"), ("1", "1"), ("0.1", "0.x"), ("0.1", "-1.0")]
)
def test_versions_that_make_no_range_are_refused(current: str, oldest: str) -> None:
    with pytest.raises(ValueError, match=r"span no minors|is not \"MAJOR\.MINOR\""):
        HookVersion(current=current, oldest=oldest)


def test_every_hook_serves_its_own_current_version_and_the_core_uses_it() -> None:
    for hook, served in HOOK_VERSIONS.items():
        assert served.serves(served.current)
        assert builtin.VTCORE_API.get(hook, served.current) == served.current
