"""The how-to's files are written out as they stand, found as an installed distribution, and run."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.interfaces.scheduler_policy import SchedulerPolicy, WaitingView
from vtcore.plugins import build_registry

PAGE = Path(__file__).parent.parent / "docs/howto/add-a-scheduler.md"
FILES = re.compile(r"^`([^`\n]+)`:.*?\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    return dict(FILES.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lay the files out as pip would: packages on the path, metadata made from pyproject.toml."""
    contents = files()
    for name, text in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = tomllib.loads(contents["pyproject.toml"])["project"]
    source = tmp_path / "src"
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
    yield source
    for name in [name for name in sys.modules if name.startswith("vtcore_shortest_first")]:
        del sys.modules[name]


def view(request_id: str, num_prompt_tokens: int) -> WaitingView:
    return WaitingView(request_id, 0.0, 0.0, 0, "", num_prompt_tokens, 1, 0, 0, ())


def check(policy: type[SchedulerPolicy]) -> None:
    views = [view("long", 90), view("short", 3), view("middle", 20)]
    assert [v.id for v in sorted(views, key=policy().key)] == ["short", "middle", "long"]


def test_it_is_three_files() -> None:
    assert len(files()) == 3


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


def test_both_modules_in_one_file_work_as_a_file_plugin(tmp_path: Path) -> None:
    contents = files()
    path = "vtcore_shortest_first.policy:ShortestFirst"
    plugin = contents["src/vtcore_shortest_first/plugin.py"].replace(
        f'"{path}"', 'f"{__name__}:ShortestFirst"'
    )
    file = tmp_path / "my_policy.py"
    file.write_text(plugin + contents["src/vtcore_shortest_first/policy.py"])
    registry = build_registry(entry_points=False, files=[file])
    check(registry.load(registry.policy("shortest_first")))
