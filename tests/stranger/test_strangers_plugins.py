"""A stranger's distribution, built to a wheel, works by being installed, and its absence and faults are told.

Does not: run in the tests' own interpreter; each command is what a user types, in an environment of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import isolated_env
import pytest
from stranger_projects import ECHO, LAST_FIRST, arch_plugin, policy_plugin

import vtcore

if TYPE_CHECKING:
    from conftest import Home

pytestmark = pytest.mark.slow

Build = Callable[..., Path]
RUN = (
    *("--skip-tokenizer-init", "--dtype", "float64", "--max-tokens", "3"),
    *("--max-num-seqs", "1", "--input", "in.jsonl", "--output", "-"),
)
PROMPTS = [[1, 2, 3], [4, 5], [6]]


def last_first(build: Build, name: str = "vtcore-last-first", api: str = "0.2", version: str = "1.0") -> Path:
    package = name.replace("-", "_")
    modules = {
        "plugin": policy_plugin("last_first", f"{package}.policy:LastFirst", api),
        "policy": LAST_FIRST,
    }
    return build(name, modules, version)


def echo(build: Build) -> Path:
    return build("vtcore-echo", {"plugin": arch_plugin("vtcore_echo", {"echo": "Echo"}), "arch": ECHO})


def prompts(home: Home) -> None:
    lines = [json.dumps({"prompt_token_ids": ids}) for ids in PROMPTS]
    (home.work / "in.jsonl").write_text("\n".join(lines) + "\n")


def served(text: str) -> dict[int, list[int]]:
    """Line -> token ids, in the order in which they were finished."""
    records = [json.loads(line) for line in text.splitlines()]
    return {record["line"]: record["outputs"][0]["token_ids"] for record in records}


def test_a_strangers_arch_and_policy_run_from_the_command_line(home: Home, build: Build) -> None:
    home.install(echo(build), last_first(build))
    rows = [line.split() for line in home.shown("plugins", "list").splitlines()]
    assert ["echo", "arch", "vtcore-echo", "1.0"] in rows
    assert ["last_first", "scheduler_policy", "vtcore-last-first", "1.0"] in rows
    assert home.vtcore("plugins", "doctor").returncode == 0
    prompts(home)
    model = home.checkpoint("echo")
    plain = served(home.shown("generate", model, *RUN))
    chosen = served(home.shown("generate", model, *RUN, "--scheduling-policy", "last_first"))
    assert list(plain) == [1, 2, 3]
    assert list(chosen) == [3, 2, 1]
    assert chosen == plain


def test_after_uninstalling_the_error_says_what_is_missing(home: Home, build: Build) -> None:
    home.install(echo(build), last_first(build))
    model = home.checkpoint("echo")
    assert home.vtcore("check", model, "--scheduling-policy", "last_first").returncode == 0
    home.uninstall("vtcore-last-first")
    said = home.refused("VT201", "check", model, "--scheduling-policy", "last_first")
    assert said == (
        "--scheduling-policy: 'last_first' is offered by no installed plugin; known: fcfs, lpm, priority; "
        "install a plugin that offers it, from a publisher you trust"
    )
    home.uninstall("vtcore-echo")
    assert home.refused("VT221", "check", model) == (
        "no installed plugin serves the checkpoint's architectures [], model_type 'echo'; installed: no "
        "arch; install a plugin that serves it, from a publisher you trust, or write one "
        "(docs/howto/add-a-model.md)"
    )


def test_two_distributions_with_one_name_are_named_and_the_line_in_the_error_picks(
    home: Home, build: Build
) -> None:
    home.install(echo(build), last_first(build), last_first(build, "vtcore-rival", version="2.0"))
    model, chosen = home.checkpoint("echo"), ("--scheduling-policy", "last_first")
    said = home.refused("VT210", "check", model, *chosen)
    line = "--plugin-owner scheduler_policy:last_first="
    assert said == (
        "scheduler_policy 'last_first' is claimed by vtcore-last-first 1.0 and by vtcore-rival 2.0; pick one "
        f'with the option {line}vtcore-last-first or "vtcore-rival", or uninstall the other'
    )
    for owner in ("vtcore-last-first", "vtcore-rival"):
        picked = [*line.split()[:1], f"{line.split()[1]}{owner}"]
        lock = json.loads(home.shown("plugins", "lock", *picked))
        assert [row["distribution"] for row in lock["rows"] if row["name"] == "last_first"] == [owner]
        assert home.vtcore("check", model, *chosen, *picked).returncode == 0


def test_a_plugin_module_that_cannot_be_imported_warns_and_stops_only_who_asks(
    home: Home, build: Build
) -> None:
    broken = build("vtcore-broken", {"plugin": "import nothing_of_this_name\n"})
    home.install(echo(build), broken)
    model = home.checkpoint("echo")
    cause = (
        "plugin 'broken' of vtcore-broken 1.0: cannot import it: ModuleNotFoundError: "
        "No module named 'nothing_of_this_name'"
    )
    done = home.vtcore("check", model)
    assert done.returncode == 0
    assert f"plugins with problems: {cause}\n" in done.stderr
    assert home.refused("VT311", "check", model, VTCORE_PLUGINS="echo,broken") == cause
    assert home.vtcore("check", model, "--scheduling-policy", "broken").stderr.count(cause) >= 1
    report = home.vtcore("plugins", "doctor")
    assert report.returncode == 3
    assert cause in report.stdout
    assert "VTCORE_PLUGINS_BLOCK=broken" in report.stdout
    assert home.vtcore("check", model, VTCORE_PLUGINS_BLOCK="broken").stderr.count("broken") == 0


def test_an_implementation_that_cannot_be_imported_stops_who_chooses_it(home: Home, build: Build) -> None:
    modules = {
        "plugin": policy_plugin("half", "vtcore_half.policy:Half"),
        "policy": "import nothing_of_this_name\n",
    }
    home.install(echo(build), build("vtcore-half", modules))
    model = home.checkpoint("echo")
    quiet = home.vtcore("check", model)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert home.refused("VT311", "check", model, "--scheduling-policy", "half") == (
        "scheduler_policy half (vtcore-half 1.0), plugin 'half': cannot import vtcore_half.policy:Half: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )


def test_a_plugin_for_the_previous_minor_works_and_for_a_future_one_is_refused(
    home: Home, build: Build
) -> None:
    home.install(echo(build), last_first(build, api="0.1"))
    model, chosen = home.checkpoint("echo"), ("--scheduling-policy", "last_first")
    prompts(home)
    assert list(served(home.shown("generate", model, *RUN, *chosen))) == [3, 2, 1]
    home.uninstall("vtcore-last-first")
    home.install(last_first(build, api="0.9"))
    refusal = (
        "plugin 'last_first' of vtcore-last-first 1.0: it was written for version 0.9 of the hook "
        f"vtcore_register_scheduler_policies, this vtcore {vtcore.__version__} serves 0.1 to 0.2; upgrade "
        f"vtcore: {home.python} -m pip install -U vtcore"
    )
    assert home.refused("VT312", "check", model, *chosen) == refusal
    unasked = home.vtcore("check", model)
    assert unasked.returncode == 0
    assert f"plugins with problems: {refusal}\n" in unasked.stderr
    home.uninstall("vtcore-last-first")
    home.install(last_first(build, api="0.0"))
    assert home.refused("VT312", "check", model, *chosen).endswith(
        f"serves 0.1 to 0.2; upgrade the plugin: {home.python} -m pip install -U vtcore-last-first"
    )


def test_a_lock_written_before_an_upgrade_is_refused_after_it(home: Home, build: Build) -> None:
    home.install(echo(build), last_first(build))
    home.shown("plugins", "lock", "--out", "lock.json")
    assert home.shown("plugins", "lock", "--check", "lock.json").startswith("lock.json: all ")
    home.uninstall("vtcore-last-first", "vtcore-echo")
    home.install(last_first(build, version="1.1"))
    said = home.refused("VT313", "plugins", "lock", "--check", "lock.json")
    assert "arch 'echo': in the lock (of vtcore-echo 1.0), not here; " in said
    assert "scheduler_policy 'last_first': version 1.0 in the lock, 1.1 here; " in said
    assert said.endswith(
        "install what the lock names, or write it anew with `vtcore plugins lock --out FILE`"
    )


EXAMPLES = [folder for folder in isolated_env.all_folders() if folder.parent.name == "examples"]
ARCHS = {"vtcore-mistral": "mistral"}
"""Example -> the arch that it brings, for those that bring one."""


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_of_the_documentation_works_from_its_wheel(
    folder: Path, home: Home, tmp_path: Path
) -> None:
    before = home.shown("plugins", "list", "--json")
    home.install(isolated_env.build_wheel(folder, tmp_path))
    assert home.vtcore("plugins", "doctor").returncode == 0
    listed = json.loads(home.shown("plugins", "show", folder.name, "--json"))
    assert {entry["distribution"] for entry in listed["entries"]} == {folder.name}
    if arch := ARCHS.get(folder.name):
        home.shown("make-checkpoint", "--arch", arch, "--size", "tiny", "tiny")
        assert home.shown("generate", "tiny", "--prompt", "The quick brown fox", "--max-tokens", "4").strip()
        home.uninstall(folder.name)
        assert home.refused("VT221", "check", "tiny").startswith(
            "no installed plugin serves the checkpoint's architectures ['MistralForCausalLM'], model_type "
            "'mistral'; installed: no arch; install a plugin that serves it"
        )
        assert home.shown("plugins", "list", "--json") == before
