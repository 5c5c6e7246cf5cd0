"""The plugin lock: equal through JSON, and refused with the rows' names wherever the plugins are others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from plugin_sources import Install, module_of, policy_source, registry_of

import vtcore
from vtcore.cli.main import main
from vtcore.errors import PluginError, PluginLockError
from vtcore.plugin_lock import PluginLock, check_lock, lock_differences, lock_of
from vtcore.plugins import build_registry

REMEDY = "; install what the lock names, or write it anew with `vtcore plugins lock --out FILE`"


@pytest.fixture
def fair(install: Install, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy, installed, and the only plugin that loads; returns its module."""
    monkeypatch.setenv("VTCORE_PLUGINS", "fair")
    return install("fair-dist", policy_source("fair"), version="1.0", names=("fair",))


def fair_lock() -> PluginLock:
    return lock_of(build_registry(allow=["fair"]))


def with_fair(lock: PluginLock, **changes: str) -> PluginLock:
    """The lock with another row of the policy `fair`."""
    return PluginLock(rows=tuple(evolve(r, **changes) if r.name == "fair" else r for r in lock.rows))


def test_a_lock_has_a_row_of_everything_with_its_owner(fair: str) -> None:
    registry = build_registry(allow=["fair"])
    lock = lock_of(registry)
    assert [row.key for row in lock.rows] == sorted((kind, r.entry.name) for kind, r in registry.entries)
    [row] = [row for row in lock.rows if row.name == "fair"]
    assert (row.kind, row.distribution, row.version) == ("scheduler_policy", "fair-dist", "1.0")
    assert (row.plugin, row.source, row.implementation) == ("fair", fair, f"{fair}:Policy")
    [core] = [row for row in lock.rows if row.name == "fcfs"]
    assert core.owner == f"vtcore {vtcore.__version__}"


def test_a_lock_through_json_and_back_is_equal_and_fits(fair: str) -> None:
    lock = fair_lock()
    again = PluginLock.from_json(lock.to_json())
    assert again == lock
    assert again.digest() == lock.digest()
    assert lock_differences(again, build_registry(allow=["fair"])) == ()
    check_lock(again, build_registry(allow=["fair"]))


def test_the_digest_is_of_the_rows_and_not_of_their_order(fair: str) -> None:
    lock = fair_lock()
    assert PluginLock(rows=tuple(reversed(lock.rows))).digest() == lock.digest()
    digests = {
        with_fair(lock, **{name: "other:Other"}).digest()
        for name in ("kind", "distribution", "version", "plugin", "source", "implementation")
    }
    assert len(digests | {lock.digest()}) == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.9"}, "version 0.9 in the lock, 1.0 here"),
        ({"version": ""}, "version none in the lock, 1.0 here"),
        (
            {"distribution": "fair-too", "version": "3", "plugin": "x"},
            "of fair-too 3 in the lock, of fair-dist 1.0 here",
        ),
        ({"plugin": "just"}, "plugin just in the lock, fair here"),
        ({"source": "a.b"}, "source a.b in the lock, {module} here"),
        ({"implementation": "a.b:C"}, "implementation a.b:C in the lock, {module}:Policy here"),
    ],
)
def test_a_row_that_differs_is_named_with_both_sides(changes: dict[str, str], said: str, fair: str) -> None:
    lock = with_fair(fair_lock(), **changes)
    with pytest.raises(PluginLockError) as caught:
        check_lock(lock, build_registry(allow=["fair"]))
    assert str(caught.value) == (
        f"the plugins differ from the lock in 1 of {len(lock.rows)} rows: scheduler_policy 'fair': "
        f"{said.format(module=fair)}{REMEDY}"
    )
    assert isinstance(caught.value, PluginError)


def test_rows_of_one_side_only_are_named_too(fair: str) -> None:
    lock, bare = fair_lock(), lock_of(build_registry(allow=()))
    assert lock_differences(lock, build_registry(allow=())) == (
        "scheduler_policy 'fair': in the lock (of fair-dist 1.0), not here",
    )
    assert lock_differences(bare, build_registry(allow=["fair"])) == (
        "scheduler_policy 'fair': here (of fair-dist 1.0), not in the lock",
    )


def test_the_owner_that_was_picked_is_the_one_that_is_locked() -> None:
    modules = [module_of(policy_source("fair"), name) for name in ("dist_a", "dist_b")]

    def picked(owner: str) -> Any:
        return build_registry(extra=modules, entry_points=False, owners={"scheduler_policy:fair": owner})

    assert lock_differences(lock_of(picked("dist_a")), picked("dist_b")) == (
        "scheduler_policy 'fair': of dist_a in the lock, of dist_b here",
    )


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda c: c.pop("digest"), "an object with format, digest and rows"),
        (lambda c: c.update(more=1), "an object with format, digest and rows"),
        (lambda c: c.update(format=2), "$.format is 2; this vtcore reads 1"),
        (lambda c: c.update(format=True), "$.format is True"),
        (lambda c: c.update(rows={}), "$.rows is {}, not a list"),
        (lambda c: c["rows"].append(7), "must be an object with kind, name"),
        (lambda c: c["rows"][1].pop("version"), "$.rows[1] must be an object with kind, name"),
        (lambda c: c["rows"][1].update(more=""), "$.rows[1] must be an object with kind, name"),
        (lambda c: c["rows"][0].update(version=1), "$.rows[0].version is 1, not a text"),
        (lambda c: c["rows"][0].update(name=""), "$.rows[0].name is '', not a text"),
        (lambda c: c["rows"][0].update(implementation="a.b"), "is 'a.b', not a dotted path"),
        (lambda c: c["rows"].append(dict(c["rows"][0])), "is there twice"),
        (lambda c: c["rows"].pop(), "its digest is not that of its rows"),
        (lambda c: c["rows"][0].update(version="9"), "its digest is not that of its rows"),
        (lambda c: c.update(digest=3), "its digest is not that of its rows"),
    ],
)
def test_json_that_is_no_whole_lock_is_refused(edit: Edit, said: str) -> None:
    content = json.loads(lock_of(registry_of()).to_json())
    edit(content)
    with pytest.raises(PluginLockError) as caught:
        PluginLock.from_json(json.dumps(content))
    assert str(caught.value).startswith("this is no plugin lock: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 1, "format": 1, "digest": "", "rows": []}', "[" * 100_000]
)
def test_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(PluginLockError, match="this is no plugin lock"):
        PluginLock.from_json(text)


def test_the_command_prints_writes_and_checks(
    fair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lock.json"
    assert main(["plugins", "lock"]) == 0
    assert PluginLock.from_json(capsys.readouterr().out) == fair_lock()
    assert main(["plugins", "lock", "--out", str(file)]) == 0
    assert PluginLock.from_json(file.read_text()) == fair_lock()
    assert main(["plugins", "lock", "--check", str(file)]) == 0
    lock = fair_lock()
    assert capsys.readouterr().out == f"{file}: all {len(lock.rows)} rows fit, digest {lock.digest()}\n"


def test_the_command_refuses_what_differs_and_what_is_no_lock(
    fair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lock.json"
    file.write_text(with_fair(fair_lock(), version="0.9").to_json())
    assert main(["plugins", "lock", "--check", str(file)]) == 3
    assert capsys.readouterr().err.startswith(
        f"error[VT313]: the plugins differ from the lock in 1 of {len(fair_lock().rows)} rows: "
        "scheduler_policy 'fair': version 0.9 in the lock, 1.0 here; install"
    )
    file.write_bytes(b"\xff\xfe")
    assert main(["plugins", "lock", "--check", str(file)]) == 3
    assert f"error[VT313]: {file}: this is no plugin lock" in capsys.readouterr().err
    assert main(["plugins", "lock", "--check", str(tmp_path / "absent")]) == 3
    assert "absent: No such file or directory" in capsys.readouterr().err


CHILD = """
import sys
from vtcore.plugin_lock import PluginLock, check_lock
from vtcore.plugins import build_registry
check_lock(PluginLock.from_json(sys.stdin.read()), build_registry())
assert "torch" not in sys.modules
"""


def child(lock: PluginLock, path: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that is given a lock and resolves the plugins itself."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return subprocess.run(
        [sys.executable, "-c", CHILD],
        input=lock.to_json(),
        env={"PYTHONPATH": os.pathsep.join(filter(None, (path, *inherited))), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_fresh_interpreter_takes_an_equal_lock_and_refuses_another(install: Install) -> None:
    install("fair-dist", policy_source("fair"), version="1.0", names=("fair",))
    lock, path = lock_of(build_registry()), sys.path[0]
    assert child(lock, path).returncode == 0
    refused = child(with_fair(lock, version="2.0"), path)
    assert refused.returncode == 1
    assert f"the plugins differ from the lock in 1 of {len(lock.rows)} rows" in refused.stderr
    assert "scheduler_policy 'fair': version 2.0 in the lock, 1.0 here" in refused.stderr
    absent = child(lock, "")
    assert "scheduler_policy 'fair': in the lock (of fair-dist 1.0), not here" in absent.stderr
