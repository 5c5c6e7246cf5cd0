"""What the how-to has its reader write is found as an installed distribution, runs, and passes the kit.

Does not: run its commands; test_docs_blocks.py does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from doc_blocks import ROOT, find_blocks

from vtcore.cli.main import main
from vtcore.interfaces.scheduler_policy import SchedulerPolicy, WaitingView
from vtcore.plugins import build_registry

PAGE = "docs/howto/add-a-scheduler.md"
FOLDER = "vtcore-shortest-first"


def page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def files() -> dict[str, str]:
    """The files that the reader writes over those of `vtcore plugins new`."""
    found = {str(block.file): block.text for block in find_blocks(PAGE, page()) if block.file}
    return {name: text for name, text in found.items() if "fair_share" not in name}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lay the files out as pip would: packages on the path, metadata made from pyproject.toml."""
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "policy", FOLDER.removeprefix("vtcore-")]) == 0
    folder = tmp_path / FOLDER
    for name, text in files().items():
        path = folder / name
        assert path.is_file(), f"{name}: `plugins new` writes no such file"
        path.write_text(text)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    source = folder / "src"
    info = source / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    [(group, points)] = project["entry-points"].items()
    (info / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )
    monkeypatch.syspath_prepend(str(source))
    yield folder
    for name in [name for name in sys.modules if name.startswith("vtcore_shortest_first")]:
        del sys.modules[name]


def view(request_id: str, num_prompt_tokens: int) -> WaitingView:
    return WaitingView(request_id, 0.0, 0.0, 0, "", num_prompt_tokens, 1, 0, 0, ())


def check(policy: type[SchedulerPolicy]) -> None:
    views = [view("long", 90), view("short", 3), view("middle", 20)]
    assert [v.id for v in sorted(views, key=policy().key)] == ["short", "middle", "long"]


def test_a_policy_is_three_files_and_a_test(installed: Path) -> None:
    tree = re.search(rf"^    {FOLDER}/\n((?:      .*\n)+)", page(), re.MULTILINE)
    assert tree is not None
    shown = [line.strip() for line in tree[1].splitlines()]
    assert len(shown) == 3 + 1
    assert all((installed / name).is_file() for name in shown)
    assert set(files()) <= set(shown)


def test_its_tests_pass(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed / "tests"))
    tests = import_module("test_conformance")
    monkeypatch.delitem(sys.modules, "test_conformance")
    tests.test_short_prompts_go_first()
    tests.TestShortestFirst.num_schedules = 1
    rules = [name for name in dir(tests.TestShortestFirst) if name.startswith("test_")]
    assert len(rules) > 8
    for name in rules:
        getattr(tests.TestShortestFirst(), name)()


def test_the_installed_policy_is_found_listed_and_orders(
    installed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = build_registry(allow=["shortest_first"])
    registered = registry.policy("shortest_first")
    assert registered.distribution == "vtcore-shortest-first"
    check(registry.load(registered))
    monkeypatch.setenv("VTCORE_PLUGINS", "shortest_first")
    assert main(["plugins", "list"]) == 0
    row = r"^shortest_first +scheduler_policy +vtcore-shortest-first +0\.1\.0 +shortest prompts first$"
    assert re.search(row, capsys.readouterr().out, re.MULTILINE)
    assert main(["plugins", "doctor"]) == 0


def test_registering_does_not_import_the_implementation(installed: Path) -> None:
    build_registry(allow=["shortest_first"])
    assert "vtcore_shortest_first.policy" not in sys.modules


def test_installing_it_changes_no_default(installed: Path) -> None:
    assert build_registry(allow=["shortest_first"]).policy("fcfs").distribution == "vtcore"
