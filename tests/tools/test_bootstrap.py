"""tools/bootstrap.py: each thing that can be missing is one sentence and exit code 3; finished work is kept.

The machine is faked one answer at a time; pip, venv and interpreters are real where that needs no network.
"""

from __future__ import annotations

import ast
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bootstrap
import bootstrap_host
import pytest

TOOLS = Path(bootstrap.__file__).parent
HERE = "{}.{}".format(*sys.version_info)
OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_NO_CACHE_DIR": "1",
}


def script(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def answer(version: str, *, ensurepip: bool = True) -> str:
    """The body of an executable that answers the version probe like that Python would."""
    return f"echo vtcore cpython {version.replace('.', ' ')} {ensurepip}"


class FakeHost(bootstrap_host.Host):
    """The real machine with 100 GiB free, a PATH of the test's own and canned results of chosen commands.

    Args:
        environ: The whole environment.
        canned: (words that the command must contain, exit code, output); the first match wins, others
            run for real.
    """

    def __init__(
        self, environ: Mapping[str, str], canned: Sequence[tuple[Sequence[str], int, str]] = ()
    ) -> None:
        super().__init__(environ)
        self.canned = canned
        self.free = 100 << 30
        self.musl = False
        self.commands: list[list[str]] = []

    def is_musl(self) -> bool:
        return self.musl

    def free_bytes(self, path: Path) -> int:
        return self.free

    def run(self, command: Sequence[str], timeout_s: float = 20) -> tuple[int, str]:
        return self._canned(command) or super().run(command, timeout_s)

    def run_long(self, command: Sequence[str], cwd: Path) -> tuple[int, str]:
        return self._canned(command) or super().run_long(command, cwd)

    def _canned(self, command: Sequence[str]) -> tuple[int, str] | None:
        self.commands.append(list(command))
        line = " ".join(command)
        for words, status, output in self.canned:
            if all(word in line for word in words):
                return status, output
        return None

    def installs(self) -> list[str]:
        """The install commands that were run, without the interpreter's path."""
        return [
            " ".join(command[1:])
            for command in self.commands
            if "install" in command and "--dry-run" not in command
        ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository: the files bootstrap reads, one plugin."""
    folder = tmp_path / "repository"
    (folder / "plugins" / "toy").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\nname = 'vtcore'\n", encoding="utf-8")
    (folder / "plugins" / "toy" / "pyproject.toml").write_text("[project]\nname = 'toy'\n", encoding="utf-8")
    (folder / "constraints.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    (folder / "requirements-dev.txt").write_text("-e .\n", encoding="utf-8")
    return folder


@pytest.fixture
def venv_python(root: Path) -> Path:
    """A `.venv` whose Python answers every probe, as if made by an earlier run."""
    bootstrap.write_stamp(
        script(root / ".venv" / "bin" / "python", answer(HERE)).parents[1], {"root": str(root)}
    )
    return root / ".venv" / "bin" / "python"


def run(host: bootstrap_host.Host, root: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Run to its refusal; checks the exit code and that stderr is one sentence, and returns it."""
    assert bootstrap.main(flags, host, root) == 3
    error = capsys.readouterr().err
    assert error.startswith("bootstrap: ")
    assert error.count("\n") == 1
    assert error.rstrip().endswith(".")
    assert "Traceback" not in error
    return error


NO_TORCH = (["import torch; print"], 1, "ModuleNotFoundError")
TORCH = (["import torch; print"], 0, "vtcore 2.13.0+cpu")
IMPORTS = (["import torch, vtcore"], 0, "")
CPU_INDEX = (["pip index versions"], 0, "torch (2.14.1)\nAvailable versions: 2.14.1, 2.13.0+cpu, 2.13.0")
CUDA_INDEX = (["pip index versions"], 0, "torch (2.14.1)\nAvailable versions: 2.14.1, 2.13.0")
INSTALLED = (["pip install"], 0, "")


class TorchAppears(FakeHost):
    """A machine whose `.venv` has no torch until an install of it was run."""

    def run(self, command: Sequence[str], timeout_s: float = 20) -> tuple[int, str]:
        if "import torch; print" in command[-1] and any("torch>=2.9" in line for line in self.installs()):
            return TORCH[1:]
        return super().run(command, timeout_s)


# What cannot be set up: one sentence, exit code 3


def test_source_is_python_3_8() -> None:
    for path in TOOLS.glob("bootstrap*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("name", ["win32", "cygwin"])
def test_windows_is_refused(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = FakeHost({})
    host.platform = name
    assert "WSL 2" in run(host, root, capsys)


def test_musl_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = FakeHost({})
    host.musl = True
    assert "glibc" in run(host, root, capsys)


def test_musl_is_told_from_glibc_and_from_static_builds() -> None:
    assert bootstrap_host.looks_musl("x86_64-pc-linux-musl", "", [])
    assert bootstrap_host.looks_musl("", "", ["ld-musl-x86_64.so.1"])
    assert not bootstrap_host.looks_musl("x86_64-pc-linux-gnu", "glibc", ["ld-musl-x86_64.so.1"])
    assert not bootstrap_host.looks_musl("", "", [])


def test_an_old_python_is_refused_with_its_version(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = script(tmp_path / "bin" / "python3", answer("3.9"))
    sentence = run(FakeHost({"PYTHON": str(old)}), root, capsys)
    assert "3.11 to 3.14" in sentence
    assert "is 3.9" in sentence


def test_a_named_python_that_does_not_run_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not run" in run(FakeHost({"PYTHON": "/nowhere/python3.12"}), root, capsys)


def test_missing_ensurepip_names_the_package(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = script(tmp_path / "bin" / "python3.12", answer("3.12", ensurepip=False))
    assert "apt install python3.12-venv" in run(FakeHost({"PYTHON": str(bare)}), root, capsys)


def test_a_full_disk_is_refused_before_anything_is_made(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = FakeHost({})
    host.free = 1 << 30
    assert "2 GB are needed" in run(host, root, capsys)
    assert not (root / ".venv").exists()


@pytest.mark.parametrize(("index", "needed"), [(CPU_INDEX, 2), (CUDA_INDEX, 7)])
def test_disk_need_follows_the_build_pip_would_take(
    index: tuple[Sequence[str], int, str],
    needed: int,
    root: Path,
    venv_python: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host = FakeHost({}, [NO_TORCH, index, INSTALLED])
    host.platform = "linux"
    host.free = (needed << 30) - 1
    assert f"about {needed} GB are needed" in run(host, root, capsys)
    assert host.installs() == []


def test_a_disk_that_fills_up_during_an_install_is_told(
    root: Path, venv_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = (["pip install"], 1, "ERROR: Could not install packages: [Errno 28] No space left on device\n")
    sentence = run(FakeHost({}, [NO_TORCH, CPU_INDEX, full]), root, capsys)
    assert "disk is full" in sentence
    assert "TMPDIR" in sentence


def test_no_network_is_told_by_the_real_pip(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = FakeHost({**OFFLINE, "PYTHON": sys.executable})
    assert "index cannot be reached" in run(host, root, capsys)
    assert bootstrap.read_stamp(root / ".venv") == {"root": str(root)}


def test_any_other_failure_shows_the_last_error(
    root: Path, venv_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = (["pip install"], 1, "WARNING: harmless\nERROR: No matching distribution found for torch\n")
    assert "No matching distribution" in run(FakeHost({}, [NO_TORCH, CPU_INDEX, failed]), root, capsys)


def test_the_script_itself_exits_3_without_a_traceback(root: Path) -> None:
    (root / "tools").mkdir()
    for path in TOOLS.glob("bootstrap*.py"):
        shutil.copy(path, root / "tools")
    done = subprocess.run(
        [sys.executable, str(root / "tools" / "bootstrap.py")],
        env={"PYTHON": "/nowhere/python3.12"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("bootstrap: ")
    assert done.stderr.count("\n") == 1


# Which Python


def test_the_newest_python_that_runs_is_taken(tmp_path: Path) -> None:
    script(tmp_path / "shims" / "python3.14", "echo 'shim: command not found' >&2; exit 127")
    script(tmp_path / "shims" / "python3.13", "exit 127")
    script(tmp_path / "bin" / "python3.13", answer("3.13"))
    script(tmp_path / "bin" / "python3", answer("3.8"))
    host = FakeHost({"PATH": f"{tmp_path / 'shims'}{os.pathsep}{tmp_path / 'bin'}"})
    assert bootstrap_host.choose_interpreter(host).path == str(tmp_path / "bin" / "python3.13")


def test_an_older_python_with_ensurepip_beats_a_newer_one_without(tmp_path: Path) -> None:
    script(tmp_path / "python3.14", answer("3.14", ensurepip=False))
    script(tmp_path / "python3.13", answer("3.13"))
    chosen = bootstrap_host.choose_interpreter(FakeHost({"PATH": str(tmp_path)}))
    assert chosen.path == str(tmp_path / "python3.13")


@pytest.mark.parametrize(("ci", "name"), [("true", "python3"), ("", "python3.14"), ("0", "python3.14")])
def test_ci_takes_python3_itself(ci: str, name: str, tmp_path: Path) -> None:
    script(tmp_path / "python3", answer("3.11"))
    script(tmp_path / "python3.14", answer("3.14"))
    chosen = bootstrap_host.choose_interpreter(FakeHost({"PATH": str(tmp_path), "CI": ci}))
    assert chosen.path == str(tmp_path / name)


def test_ci_falls_back_to_the_newest_when_python3_does_not_fit(tmp_path: Path) -> None:
    script(tmp_path / "python3", answer("3.8"))
    script(tmp_path / "python3.14", answer("3.14"))
    chosen = bootstrap_host.choose_interpreter(FakeHost({"PATH": str(tmp_path), "CI": "1"}))
    assert chosen.path == str(tmp_path / "python3.14")


def test_a_newer_python_than_the_range_is_not_taken(tmp_path: Path) -> None:
    script(tmp_path / "python3", answer("3.15"))
    script(tmp_path / "python3.14", answer("3.14"))
    chosen = bootstrap_host.choose_interpreter(FakeHost({"PATH": str(tmp_path)}))
    assert chosen.version == (3, 14)


def test_the_real_machine_answers() -> None:
    host = bootstrap_host.Host(os.environ)
    probed = bootstrap_host.probe_interpreter(host, sys.executable)
    assert probed is not None
    assert probed.version == sys.version_info[:2]
    assert not host.is_musl()
    assert host.free_bytes(TOOLS) > 0
    assert host.run(["/nowhere/command"])[0] == 127
    assert host.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)[0] == 127


# Which torch


@pytest.mark.parametrize(
    ("version", "pinned", "fits"),
    [
        ("2.9.0", None, True),
        ("2.8.1+cpu", None, False),
        ("2.13.0+cu130", None, True),
        ("3.0.0.dev20260101", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.14.0", "2.13.0", False),
        ("", None, False),
    ],
)
def test_torch_is_kept_from_the_floor_on_and_pinned_in_ci(
    version: str, pinned: str | None, fits: bool
) -> None:
    assert bootstrap.torch_fits(version, pinned) is fits


def test_a_fitting_torch_is_kept(root: Path, venv_python: Path) -> None:
    host = FakeHost({}, [TORCH, IMPORTS, INSTALLED])
    assert bootstrap.main([], host, root) == 0
    assert host.installs() == [f"-m pip install -e {root} -e {root / 'plugins' / 'toy'}"]


def test_plain_pip_uses_the_constraints_and_says_what_to_expect(
    root: Path, venv_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = TorchAppears({}, [NO_TORCH, CUDA_INDEX, IMPORTS, INSTALLED])
    host.platform = "linux"
    assert bootstrap.main([], host, root) == 0
    assert host.installs()[0] == "-m pip install torch>=2.9 -c constraints.txt"
    assert "expect to download 3.0 GB and to need 7 GB of disk" in capsys.readouterr().out


def test_torch_index_url_chooses_the_index_for_torch_alone(root: Path, venv_python: Path) -> None:
    host = TorchAppears(
        {"TORCH_INDEX_URL": "http://torch.test/cpu"}, [NO_TORCH, CPU_INDEX, IMPORTS, INSTALLED]
    )
    assert bootstrap.main(["--dev"], host, root) == 0
    assert host.installs() == [
        "-m pip install torch>=2.9 --index-url http://torch.test/cpu",
        "-m pip install -r requirements-dev.txt",
    ]


@pytest.mark.parametrize(("driver", "backend"), [("exit 0", "auto"), ("exit 9", "cpu"), (None, "cpu")])
def test_uv_brings_torch_where_its_index_answers(
    driver: str | None, backend: str, root: Path, venv_python: Path, tmp_path: Path
) -> None:
    script(tmp_path / "bin" / "uv", "exit 0")
    if driver is not None:
        script(tmp_path / "bin" / "nvidia-smi", driver)
    pip = ([str(venv_python), "-m pip"], 0, "")
    host = TorchAppears({"PATH": str(tmp_path / "bin")}, [NO_TORCH, IMPORTS, pip])
    assert bootstrap.main([], host, root) == 0
    assert host.installs()[0] == f"pip install --python {venv_python} --torch-backend={backend} torch>=2.9"


@pytest.mark.parametrize(("ci", "uv"), [("", "exit 2"), ("", "sleep 60"), ("1", "exit 0")])
def test_pip_brings_torch_in_ci_or_when_uv_gets_no_answer(
    ci: str, uv: str, root: Path, venv_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "INDEX_PROBE_S", 0.2)
    script(tmp_path / "bin" / "uv", uv)
    pip = ([str(venv_python), "-m pip"], 0, "")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}"
    host = TorchAppears({"PATH": path, "CI": ci}, [NO_TORCH, CPU_INDEX, IMPORTS, pip])
    assert bootstrap.main([], host, root) == 0
    assert host.installs()[0] == "-m pip install torch>=2.9 -c constraints.txt"


# What is kept, resumed, remade


def test_a_finished_environment_runs_no_install(root: Path, venv_python: Path) -> None:
    canned = [TORCH, IMPORTS, INSTALLED]
    assert bootstrap.main(["--dev"], FakeHost({}, canned), root) == 0
    for flags in ([], ["--dev"]):
        again = FakeHost({}, canned)
        assert bootstrap.main(flags, again, root) == 0
        assert again.commands == [[str(venv_python), "-c", ""]]


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "constraints.txt", "requirements-dev.txt", "plugins/toy/pyproject.toml"]
)
def test_a_changed_requirement_is_installed(changed: str, root: Path, venv_python: Path) -> None:
    canned = [TORCH, IMPORTS, INSTALLED]
    assert bootstrap.main(["--dev"], FakeHost({}, canned), root) == 0
    with (root / changed).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    again = FakeHost({}, canned)
    assert bootstrap.main(["--dev"], again, root) == 0
    assert again.installs() == ["-m pip install -r requirements-dev.txt"]


def test_ci_does_not_trust_a_finished_environment_with_another_torch(root: Path, venv_python: Path) -> None:
    newer = (TORCH[0], 0, "vtcore 2.14.1")
    assert bootstrap.main([], FakeHost({}, [newer, IMPORTS, INSTALLED]), root) == 0
    ci = TorchAppears({"CI": "1"}, [newer, CPU_INDEX, IMPORTS, INSTALLED])
    assert bootstrap.main([], ci, root) == 0
    assert ci.installs()[0] == "-m pip install torch>=2.9 -c constraints.txt"


def test_an_interrupted_install_is_resumed(
    root: Path, venv_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> tuple[int, str]:
        raise KeyboardInterrupt

    host = FakeHost({}, [TORCH, IMPORTS, INSTALLED])
    with monkeypatch.context() as patch:
        patch.setattr(host, "run_long", interrupt)
        assert bootstrap.main([], host, root) == 130
    assert bootstrap.main([], host, root) == 0
    assert len(host.installs()) == 1
    assert venv_python.exists()


def test_pip_is_quiet_unless_it_fails(
    root: Path, venv_python: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pip = script(tmp_path / "pip", "echo Collecting torch; echo oops >&2; exit $STATUS")
    bootstrap.run_step(bootstrap_host.Host({"STATUS": "0"}), [str(pip)], root)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(bootstrap_host.SetupError, match="oops"):
        bootstrap.run_step(bootstrap_host.Host({"STATUS": "1"}), [str(pip)], root)
    assert capfd.readouterr().out == "Collecting torch\noops\n"


def test_each_long_step_says_what_it_does(
    root: Path, venv_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main(["--dev"], TorchAppears({}, [CPU_INDEX, IMPORTS, INSTALLED]), root) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "installing torch (CPU build)",
        "installing vtcore and its plugins, and what the tests need",
        ".venv is ready",
    ]


def test_a_half_made_environment_is_made_anew(root: Path) -> None:
    (root / ".venv" / "lib").mkdir(parents=True)
    (root / ".venv" / "left-over").touch()
    host = FakeHost({"PYTHON": sys.executable}, [TORCH, IMPORTS, (["pip", "install", "-e"], 0, "")])
    assert bootstrap.main([], host, root) == 0
    assert not (root / ".venv" / "left-over").exists()
    assert host.run([str(root / ".venv" / "bin" / "python"), "-m", "pip", "--version"])[0] == 0


def test_a_moved_repository_makes_its_environment_anew(root: Path, venv_python: Path, tmp_path: Path) -> None:
    moved = root.rename(tmp_path / "moved")
    made = (["-m", "venv"], 1, "stop here")
    host = FakeHost({"PYTHON": sys.executable}, [made])
    assert bootstrap.main([], host, moved) == 3
    assert not (moved / ".venv").exists()


def test_an_environment_of_someone_else_is_never_removed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(root / ".venv" / "bin" / "python", answer("3.9"))
    assert "made by someone else" in run(FakeHost({}), root, capsys)
    assert (root / ".venv" / "bin" / "python").exists()
