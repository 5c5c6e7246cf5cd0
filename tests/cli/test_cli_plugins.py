"""`vtcore plugins` with single-file plugins, good and bad."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main
from vtcore.hookspecs import HOOK_VERSIONS

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


@pytest.fixture
def broken(tmp_path: Path) -> str:
    file = tmp_path / "broken.py"
    file.write_text("import nothing_of_this_name")
    return str(file)


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["plugins", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_as_json_has_a_stable_form(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = output(capsys, "list", "--plugin", plugin)
    assert set(listed) == {
        "interpreter",
        "hook_versions",
        "oldest_hook_versions",
        "plugins",
        "entries",
        "problems",
    }
    assert listed["interpreter"] == {"path": sys.executable, "version": platform.python_version()}
    assert [info["plugin"] for info in listed["plugins"]] == ["builtin", "mine"]
    assert listed["plugins"][1] == {
        "plugin": "mine",
        "distribution": plugin,
        "version": "",
        "source": plugin,
        "api": {"scheduler_policies": "0.1"},
    }
    [odd] = [entry for entry in listed["entries"] if entry["name"] == "odd"]
    assert odd == {
        "kind": "scheduler_policy",
        "name": "odd",
        "distribution": plugin,
        "version": "",
        "plugin": "mine",
        "implementation": "vtcore.nowhere:Policy",
        "description": "lost",
    }
    assert listed["problems"] == []
    assert listed["hook_versions"] == {hook: served.current for hook, served in HOOK_VERSIONS.items()}
    assert listed["oldest_hook_versions"] == {hook: served.oldest for hook, served in HOOK_VERSIONS.items()}


def test_list_as_text_prints_the_interpreter_and_a_row_per_entry(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "list", "--plugin", plugin]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"interpreter: {sys.executable} ({platform.python_version()})"
    assert lines[1].split() == ["NAME", "KIND", "DISTRIBUTION", "VERSION", "DESCRIPTION"]
    rows = [line.split() for line in lines[2:]]
    assert ["odd", "scheduler_policy", plugin, "lost"] in rows
    assert rows[0][:4] == ["full_attention", "kv_cache_spec", "vtcore", version("vtcore")]
    assert {line.index(plugin) for line in lines if plugin in line} == {lines[1].index("DISTRIBUTION")}


def test_a_plugin_without_entries_is_listed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "idle.py"
    file.write_text(SOURCE[: SOURCE.index("return")] + "return []")
    assert main(["plugins", "list", "--plugin", str(file)]) == 0
    assert f"plugin idle of {file} offers nothing\n" in capsys.readouterr().out


def test_show_finds_an_entry_with_its_plugin_and_hook_version(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "show", "odd", "--plugin", plugin]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "scheduler_policy odd",
        "  description: lost",
        f"  distribution: {plugin}",
        "  plugin: mine",
        "  implementation: vtcore.nowhere:Policy",
        "  written for hook version: 0.1 (served: 0.1 to 0.2)",
        "plugin mine",
        f"  distribution: {plugin}",
        f"  source: {plugin}",
        "  hook versions: scheduler_policies 0.1",
    ]


@pytest.mark.parametrize("name", ["mine", "MINE"])
def test_show_finds_a_plugin_with_its_entries(
    name: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(capsys, "show", name, "--plugin", plugin)
    assert [entry["name"] for entry in shown["entries"]] == ["good", "odd"]
    assert [info["plugin"] for info in shown["plugins"]] == ["mine"]
    assert shown["requirements"] == []


def test_show_finds_a_distribution_with_its_requirements(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(capsys, "show", "vtcore", "--plugin", plugin)
    assert {entry["distribution"] for entry in shown["entries"]} == {"vtcore"}
    [torch] = [need for need in shown["requirements"] if need["name"] == "torch"]
    assert torch == {
        "distribution": "vtcore",
        "name": "torch",
        "specifier": ">=2.9",
        "installed": version("torch"),
        "extra": "",
        "is_met": True,
    }
    assert main(["plugins", "show", "vtcore", "--plugin", plugin]) == 0
    assert f"requirement of vtcore: torch>=2.9 ({version('torch')})\n" in capsys.readouterr().out


def test_show_says_what_an_arch_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "arch.py"
    source = SOURCE.replace("scheduler_policies", "archs").replace("SchedulerPolicyEntry", "ArchEntry")
    source = source[: source.index("return")] + (
        "return [ArchEntry(name='a', architectures=['AForX', 'BForX'], model_types=['a'],"
        " implementation='nowhere:A')]\n"
    )
    file.write_text(source)
    assert main(["plugins", "show", "a", "--plugin", str(file)]) == 0
    out = capsys.readouterr().out
    assert "  architectures: AForX, BForX\n  model types: a\n" in out


def test_show_of_a_broken_plugin_says_what_is_wrong(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGINS", "")
    shown = output(capsys, "show", "broken", "--plugin", broken)
    [problem] = shown["problems"]
    assert set(problem) == {"plugin", "distribution", "version", "name", "broken", "message", "remedy"}
    assert problem["broken"] is True
    assert main(["plugins", "show", "broken", "--plugin", broken]) == 0
    out = capsys.readouterr().out
    assert "No module named 'nothing_of_this_name'" in out
    assert f"  remedy: mend {broken}, or leave it out\n" in out


def test_show_of_an_unknown_name_gets_a_guess(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "mnie", "--plugin", plugin]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "error[VT203]: no plugin, entry or distribution is named 'mnie'; did you mean 'mine'?"
    )


def test_doctor_imports_every_implementation_and_fails_on_a_lost_one(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "doctor", "--plugin", plugin, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    rows = {check["name"]: check for check in found["checks"]}
    assert rows["scheduler_policy good"]["status"] == "ok"
    assert "cannot import vtcore.nowhere:Policy" in rows["scheduler_policy odd"]["message"]
    assert rows["scheduler_policy odd"]["remedy"] == f"mend {plugin}"
    assert found["errors"] == 1
    assert main(["plugins", "doctor", "--plugin", plugin]) == 3
    assert capsys.readouterr().out.endswith("checks: 1 error\n")


def test_doctor_goes_on_after_a_broken_plugin(
    plugin: str, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "doctor", "--plugin", broken, "--plugin", plugin]) == 3
    out = capsys.readouterr().out
    assert "No module named 'nothing_of_this_name'" in out
    assert "scheduler_policy good" in out


def test_doctor_finds_the_core_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGINS", "")
    assert main(["plugins", "doctor"]) == 0
    assert capsys.readouterr().out.endswith("checks: all well\n")


def test_doctor_reports_a_wrong_variable_and_goes_on(
    plugin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGNIS", "x")
    assert main(["plugins", "doctor", "--plugin", plugin]) == 3
    out = capsys.readouterr().out
    assert "VTCORE_PLUGNIS" in out
    assert "scheduler_policy good" in out


def test_a_contested_name_is_settled_by_the_owner_flag(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(SOURCE)
    both = ["--plugin", plugin, "--plugin", str(other)]
    assert main(["plugins", "list", *both]) == 2
    error = capsys.readouterr().err
    assert f'pick one with the option --plugin-owner scheduler_policy:good={plugin} or "{other}", or' in error
    assert error.count("--plugin-owner") == 1
    shown = output(capsys, "show", "good", *both)
    [problem] = shown["problems"]
    assert (problem["name"], problem["broken"]) == ("good", True)
    assert "is claimed by" in problem["message"]
    owners = [f"--plugin-owner=scheduler_policy:{name}={other}" for name in ("good", "odd")]
    [good] = [e for e in output(capsys, "list", *both, *owners)["entries"] if e["name"] == "good"]
    assert good["distribution"] == str(other)


def test_a_bad_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTCORE_PLUGINS", "no_such_plugin_xyz")
    monkeypatch.setenv("VTCORE_PLUGINS_BLOCK", "")
    assert main(["plugins", "list"]) == 2
    assert capsys.readouterr().err.startswith("error[VT201]: VTCORE_PLUGINS: no installed plugin is named")


@pytest.mark.parametrize(
    "command", [("plugins", "list"), ("plugins", "show", "good"), ("plugins", "doctor"), ("doctor",)]
)
def test_what_a_plugin_prints_is_not_taken_for_the_result(
    command: tuple[str, ...], plugin: str, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = "import os\nprint('printed')\nos.write(1, b'written\\n')\n"
    Path(plugin).write_text(noise + SOURCE)
    main([*command, "--json", "--plugin", plugin])
    captured = capfd.readouterr()
    assert json.loads(captured.out)
    assert "printed" in captured.err
    assert "written" in captured.err
