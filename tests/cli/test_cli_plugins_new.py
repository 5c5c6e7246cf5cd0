"""`vtcore plugins new` writes a whole distribution or nothing, and says what is wrong with a name.

Does not: install what is written; test_plugins_new_installed.py does.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from plugin_tests import TEST_EXTRA

import vtcore
from vtcore.cli import plugins_new
from vtcore.cli.main import main
from vtcore.cli.plugins_new import MAX_NAME_CHARS, write_folder
from vtcore.hookspecs import HOOK_POINTS, HOOK_VERSIONS
from vtcore.plugin_templates import KINDS, fill, fill_templates

ROOT = Path(__file__).parents[2]
LONGEST = "x" * (MAX_NAME_CHARS // 2 - 1) + "-" + "y" * (MAX_NAME_CHARS // 2)
EXPECTED = {
    "arch": {"arch.py", "config.py", "model.py", "sizes.py", "weights.py"},
    "kv-spec": {"spec.py"},
    "policy": {"policy.py"},
}
"""What each kind's package holds beside what all have; the names that the in-tree plugins use."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> list[str]:
    assert main(["plugins", "new", *words]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    return [line for line in shown.err.splitlines() if line.startswith("error")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_distribution_is_written_and_the_next_commands_are_shown(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", kind, "my-own_thing"]) == 0
    project = folder / "vtcore-my-own-thing"
    assert list(folder.iterdir()) == [project]
    package = {"__init__.py", "py.typed", "plugin.py", *EXPECTED[kind]}
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert files == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "tests/test_conformance.py",
        *(f"src/vtcore_my_own_thing/{name}" for name in package),
    }
    assert capsys.readouterr().out.splitlines() == [
        f"vtcore-my-own-thing: {len(files)} files",
        "next:",
        '  python -m pip install -e "./vtcore-my-own-thing[test]"',
        "  vtcore plugins show my_own_thing",
        "  python -m pytest vtcore-my-own-thing",
    ]
    if os.name == "posix":
        assert project.stat().st_mode & 0o777 == (folder / "vtcore-my-own-thing/src").stat().st_mode & 0o777


def floors(requirements: list[str]) -> dict[str, str]:
    return {r.name: str(r.specifier) for r in map(Requirement, requirements)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_project_names_its_entry_point_floors_and_the_kit(kind: str) -> None:
    contents = fill_templates(kind, "my-own")
    project = tomllib.loads(contents["pyproject.toml"])["project"]
    assert project["name"] == "vtcore-my-own"
    assert project["entry-points"] == {"vtcore.plugins": {"my_own": "vtcore_my_own.plugin"}}
    assert "license" not in project
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == core["requires-python"]
    known = {**floors(core["dependencies"]), "vtcore": f">={vtcore.__version__}"}
    assert floors(project["dependencies"]).items() <= known.items()
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    known |= floors([line for line in lines if line.startswith("transformers")])
    # The name that `make test-plugin` asks of every plugin of the repository.
    assert list(project["optional-dependencies"]) == [TEST_EXTRA]
    testing = project["optional-dependencies"][TEST_EXTRA]
    assert f"vtcore[testing]>={vtcore.__version__}" in testing
    assert floors(testing).items() <= known.items()


def imported(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_project_declares_every_package_that_its_sources_import(kind: str) -> None:
    contents = fill_templates(kind, "own")
    project = tomllib.loads(contents["pyproject.toml"])["project"]
    runtime = set(floors(project["dependencies"]))
    needed = {
        path: imported(text) - {"vtcore_own"} for path, text in contents.items() if path.endswith(".py")
    }
    for path, names in needed.items():
        testing = set(floors(project["optional-dependencies"][TEST_EXTRA])) | {"pytest"}
        assert names <= (runtime | testing if path.startswith("tests/") else runtime), path
    assert needed["src/vtcore_own/plugin.py"] == {"vtcore"}
    assert set().union(*needed.values()) >= runtime


@pytest.mark.parametrize("kind", KINDS)
def test_the_workflow_installs_a_cpu_torch_before_anything_that_needs_torch(kind: str) -> None:
    workflow = yaml.safe_load(fill_templates(kind, "own")[".github/workflows/test.yml"])
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) == {"push", "pull_request"}
    (job,) = workflow["jobs"].values()
    assert set(job["strategy"]["matrix"]["python"]) == {"3.11", "3.14"}
    setup = next(step for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert [step["run"] for step in job["steps"] if "run" in step] == [
        "python -m pip install uv",
        "uv pip install --system --torch-backend cpu torch",
        'python -m pip install -e ".[test]"',
        "vtcore plugins doctor",
        "python -m pytest",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_plugin_declares_the_hook_version_of_this_vtcore(kind: str) -> None:
    (point,) = [point for point in HOOK_POINTS if point.kind == KINDS[kind].point]
    assert point.api == KINDS[kind].api
    source = fill_templates(kind, "own")["src/vtcore_own/plugin.py"]
    assert f'VTCORE_API = {{"{point.api}": "{HOOK_VERSIONS[point.api].current}"}}' in source
    assert point.hook in source


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", LONGEST])
def test_the_sources_pass_ruff_with_the_shortest_and_the_longest_name(
    kind: str, name: str, folder: Path
) -> None:
    assert main(["plugins", "new", kind, name]) == 0
    for action in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        command = [sys.executable, "-m", "ruff", *action, "."]
        done = subprocess.run(
            command, cwd=folder / f"vtcore-{name}", check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_template_is_left_and_lines_are_short(kind: str) -> None:
    for path, text in fill_templates(kind, LONGEST).items():
        assert "@@" not in path + text, path
        assert ".tmpl" not in path
        limit = 120 + 2 * len(LONGEST) if path == "README.md" else 120
        assert max(map(len, text.splitlines()), default=0) <= limit, path
        assert text == "" or text.endswith("\n"), path


def test_an_unknown_marker_is_an_error_that_names_template_and_marker() -> None:
    assert fill("a @@NAME@@ b", {"NAME": "x"}, "p") == "a x b"
    with pytest.raises(ValueError, match=r"template p: marker @@NMAE@@ has no value"):
        fill("a @@NMAE@@ b", {"NAME": "x"}, "p")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "cannot name a package"),
        ("Fair", "cannot name a package"),
        ("2fast", "cannot name a package"),
        ("a.b", "cannot name a package"),
        ("a b", "cannot name a package"),
        ("a--b", "cannot name a package"),
        ("a_", "cannot name a package"),
        ("../a", "cannot name a package"),
        ("f\u00e4ir", "cannot name a package"),
        ("a\n", "cannot name a package"),
        ("class", "'class' is a reserved word; give another, or add to it (class-plugin)"),
        ("off", "'off' is a reserved word"),
        ("vtcore", "'vtcore' is a reserved word"),
        ("test", "'test' is a reserved word"),
        ("vtcore-fair", "begins with vtcore, which is added by itself; give 'fair'"),
        ("a" * (MAX_NAME_CHARS + 1), f"has {MAX_NAME_CHARS + 1} characters; give at most {MAX_NAME_CHARS}"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(
    name: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refusal(capsys, "policy", name)
    assert line.startswith("error[VT203]: NAME: ")
    assert said in line
    assert list(folder.iterdir()) == []


def test_an_unknown_kind_is_answered_with_a_guess_or_all_kinds_together_with_a_bad_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, name = refusal(capsys, "polcy", "2")
    assert kind.endswith("'polcy' is no kind of plugin that can be started; did you mean 'policy'?")
    assert "cannot name a package" in name
    [line] = refusal(capsys, "drafter", "own")
    assert line.endswith("; known: arch, kv-spec, policy")


def test_help_and_missing_words(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = refusal(capsys)
    assert "required: KIND, NAME" in line
    with pytest.raises(SystemExit) as end:
        main(["plugins", "new", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in KINDS)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (
            "policy",
            "fcfs",
            f"scheduler_policy 'fcfs' is already offered by fcfs (vtcore {version('vtcore')})",
        ),
        ("kv-spec", "full-attention", "kv_cache_spec 'full_attention' is already offered by full_attention"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_its_owner(
    kind: str, name: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refusal(capsys, kind, name)
    assert line.startswith(f"error[VT201]: NAME: {said}")
    assert list(folder.iterdir()) == []


ARCH_FILE = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry

VTCORE_API = {"archs": "0.1"}

@hookimpl
def vtcore_register_archs():
    return [ArchEntry(name="theirs", model_types=("their_type",), implementation=__name__ + ":Arch")]
"""


@pytest.mark.parametrize("name", ["theirs", "their-type"])
def test_an_arch_keeps_its_name_and_its_model_types(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "theirs.py"
    file.write_text(ARCH_FILE)
    [line] = refusal(capsys, "arch", name, "--plugin", str(file))
    assert f"is already offered by theirs ({file}), plugin 'theirs'" in line
    # The same word is free for another kind.
    assert main(["plugins", "new", "policy", name, "--plugin", str(file)]) == 0


def install_metadata(site: Path, distribution: str, entry_points: str) -> None:
    info = site / f"{distribution.replace('-', '_')}-2.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_an_installed_distribution_of_that_name_is_not_replaced(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = tmp_path_factory.mktemp("site")
    install_metadata(site, "vtcore-own-thing", "")
    monkeypatch.syspath_prepend(str(site))
    [line] = refusal(capsys, "policy", "own_thing")
    assert "NAME: vtcore-own-thing 2.5 is installed, and a new one would replace it" in line
    assert line.endswith("uninstall vtcore-own-thing")


def test_a_namesake_that_the_environment_leaves_out_counts_too(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = tmp_path_factory.mktemp("site")
    install_metadata(site, "elsewhere", "[vtcore.plugins]\nown_thing = nowhere\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("VTCORE_PLUGINS", "")
    [line] = refusal(capsys, "policy", "own-thing")
    assert "plugin 'own_thing' of elsewhere 2.5 is installed, but VTCORE_PLUGINS leaves it out" in line


@pytest.mark.parametrize("what", ["folder", "file", "dead link"])
def test_what_exists_is_never_overwritten(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = folder / "vtcore-own"
    if what == "folder":
        there.mkdir()
        (there / "precious.txt").write_text("mine")
    elif what == "file":
        there.write_text("mine")
    else:
        there.symlink_to("nowhere")
    before = sorted(folder.rglob("*"))
    [line] = refusal(capsys, "policy", "own")
    assert "VT201" in line
    assert "vtcore-own exists here and is not overwritten" in line
    assert sorted(folder.rglob("*")) == before


class _BreaksOff(Exception):
    pass


@pytest.mark.parametrize("error", [_BreaksOff(), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_run_that_breaks_off_leaves_nothing(
    error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = Path.write_text, []

    def break_off(self: Path, *args: object, **kwargs: object) -> int:
        if len(written) == 3:
            raise error
        written.append(self)
        return write(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", break_off)
    expected = plugins_new.HostError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        write_folder(Path("vtcore-own"), fill_templates("policy", "own"))
    assert len(written) == 3
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are POSIX's")
def test_a_directory_that_cannot_be_written_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    [line] = refusal(capsys, "policy", "own", code=3)
    assert line.startswith("error[VT301]: vtcore-own cannot be written into the current directory: No such")
    if os.geteuid() != 0:
        closed = folder / "closed"
        closed.mkdir(mode=0o500)
        monkeypatch.chdir(closed)
        [line] = refusal(capsys, "policy", "own", code=3)
        assert "Permission denied" in line


def test_it_imports_no_torch(folder: Path) -> None:
    script = "import sys; from vtcore.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", script, "plugins", "new", "arch", "own"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"^False$", done.stdout, re.MULTILINE), done.stdout
