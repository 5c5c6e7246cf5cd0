"""`vtcore plugins` with single-file plugins, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtcore.cli.main import main

SOURCE = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {"scheduler_policies": "0.1"}

@hookimpl
def vtcore_register_scheduler_policies():
    return [
        SchedulerPolicyEntry(name="good", implementation="vtcore.scheduling.policies.fcfs:FcfsPolicy"),
        SchedulerPolicyEntry(name="odd", implementation="vtcore.nowhere:Policy", description="lost"),
    ]
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VTCORE_PLUGINS", "")
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    return str(file)


def test_list_as_json_has_plugins_entries_and_versions(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "list", "--json", "--plugin", plugin]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [info["plugin"] for info in listed["plugins"]] == ["builtin", "mine"]
    assert {"kind": "scheduler_policy", "name": "odd", "distribution": plugin}.items() <= {
        key: value for entry in listed["entries"] if entry["name"] == "odd" for key, value in entry.items()
    }.items()
    assert listed["problems"] == []
    assert listed["hook_versions"]["archs"]


def test_list_as_text_has_a_line_per_plugin_and_entry(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "list", "--plugin", plugin]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"plugin 'mine' of {plugin}" in lines
    assert f"scheduler_policy odd ({plugin}): lost" in lines


def test_doctor_imports_every_implementation_and_fails_on_a_lost_one(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "doctor", "--plugin", plugin]) == 1
    out = capsys.readouterr().out
    assert f"ok: scheduler_policy good ({plugin})" in out
    assert "cannot import vtcore.nowhere:Policy: ModuleNotFoundError" in out


def test_doctor_finds_the_core_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGINS", "")
    assert main(["plugins", "doctor"]) == 0
    assert "problem" not in capsys.readouterr().out


def test_a_contested_name_is_settled_by_the_owner_flag(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(SOURCE)
    both = ["plugins", "list", "--plugin", plugin, "--plugin", str(other)]
    assert main(both) == 2
    assert "pick one with the option plugin_owners=" in capsys.readouterr().err
    owners = [f"--plugin-owner=scheduler_policy:{name}={other}" for name in ("good", "odd")]
    assert main([*both, *owners]) == 0
    assert f"scheduler_policy good ({other})" in capsys.readouterr().out


def test_a_bad_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGINS", "no_such_plugin_xyz")
    monkeypatch.setenv("VTCORE_PLUGINS_BLOCK", "")
    assert main(["plugins", "list"]) == 2
    assert capsys.readouterr().err.startswith("error: VTCORE_PLUGINS: no installed plugin is named")
