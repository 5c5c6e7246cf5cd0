"""What `bootstrap.py` asks of the machine: platform, disk, commands, and the Python interpreters that run.

Does not: install or write anything. Its syntax stays at Python 3.8, like that of `bootstrap.py`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

OLDEST, NEWEST = (3, 11), (3, 14)
QUICK_S = 20
KEPT_LINES = 200


class SetupError(Exception):
    """The environment cannot be made; the message is one sentence with the remedy."""


class Interpreter(NamedTuple):
    """A Python that ran.

    Args:
        path: Absolute path of the executable.
        version: (major, minor).
        has_ensurepip: Whether `venv` and `ensurepip` can be imported; Debian ships them separately.
    """

    path: str
    version: tuple[int, int]
    has_ensurepip: bool


class Host:
    """The machine; the tests replace single answers.

    Args:
        environ: The environment variables; PATH, CI, PYTHON and TORCH_INDEX_URL are looked at.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.platform = sys.platform

    def is_musl(self) -> bool:
        """Whether the C library is musl, for which there are no torch wheels."""
        gnu_type = sysconfig.get_config_var("HOST_GNU_TYPE") or ""
        loaders = [path.name for path in Path("/lib").glob("ld-musl-*")]
        return self.platform.startswith("linux") and looks_musl(gnu_type, platform.libc_ver()[0], loaders)

    def free_bytes(self, path: Path) -> int:
        """Free bytes on the file system that holds `path`."""
        return shutil.disk_usage(str(path)).free

    def run(self, command: Sequence[str], timeout_s: float = QUICK_S) -> tuple[int, str]:
        """Run quietly; returns (exit code, all output), or (127, reason) when it cannot start or hangs."""
        try:
            done = subprocess.run(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                env=dict(self.environ),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, str(error)
        return done.returncode, done.stdout.decode(errors="replace").strip()

    def run_long(self, command: Sequence[str], cwd: Path) -> tuple[int, str]:
        """Run quietly, however long it takes; returns (exit code, the last lines of its output)."""
        lines: list[str] = []
        with subprocess.Popen(
            list(command),
            cwd=str(cwd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(self.environ),
        ) as process:
            assert process.stdout is not None
            for raw in process.stdout:
                lines = [*lines[1 - KEPT_LINES :], raw.decode(errors="replace")]
        return process.returncode, "".join(lines)

    def executables(self, name: str) -> list[str]:
        """Every executable called `name` on PATH, in order: a shim that fails may come before a good one."""
        if os.sep in name:
            return [os.path.abspath(name)]
        folders = [folder for folder in self.environ.get("PATH", "").split(os.pathsep) if folder]
        paths = [os.path.join(folder, name) for folder in folders]
        return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def looks_musl(gnu_type: str, libc: str, loaders: Sequence[str]) -> bool:
    """Whether a Linux is a musl one.

    Args:
        gnu_type: The triplet Python was built for, such as `x86_64-pc-linux-musl`; empty when unknown.
        libc: The C library's name as read from the interpreter; empty on musl and on static builds.
        loaders: File names of musl's dynamic loaders in /lib.
    """
    return "musl" in gnu_type or (not libc and bool(loaders))


def is_ci(host: Host) -> bool:
    """Whether a CI system runs this: CI is set to something other than empty, 0 or false."""
    return host.environ.get("CI", "").lower() not in ("", "0", "false")


def check_platform(host: Host) -> None:
    """Refuse systems for which torch has no wheels.

    Raises:
        SetupError: On Windows, or on Linux with musl.
    """
    if host.platform in ("win32", "cygwin", "msys"):
        raise SetupError(
            "Windows is not supported: run this inside WSL 2 (`wsl --install`), or on Linux or macOS."
        )
    if host.is_musl():
        raise SetupError(
            "This Linux uses musl as Alpine does, for which there are no torch wheels: "
            "use one with glibc, such as Debian, Ubuntu or Fedora, or a container of one."
        )


def probe_interpreter(host: Host, path: str) -> Interpreter | None:
    """Run the executable and ask for its version; None when it does not run or is no CPython."""
    code = (
        "import importlib.util as u, sys; "
        "print('vtcore', sys.implementation.name, sys.version_info[0], sys.version_info[1], "
        "bool(u.find_spec('venv') and u.find_spec('ensurepip')))"
    )
    status, output = host.run([path, "-c", code])
    found = re.search(r"^vtcore cpython (\d+) (\d+) (True|False)\s*$", output, re.MULTILINE)
    if status != 0 or found is None:
        return None
    return Interpreter(path, (int(found[1]), int(found[2])), found[3] == "True")


def find_interpreters(host: Host) -> list[Interpreter]:
    """Every candidate that runs, best first: PYTHON alone if set; in CI `python3` leads; else the newest."""
    chosen = host.environ.get("PYTHON")
    names = [chosen] if chosen else ["python3"]
    if not chosen:
        names += [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    paths = [path for name in names for path in host.executables(name)]
    if not chosen:
        paths.append(sys.executable)
    probed = [probe_interpreter(host, path) for path in dict.fromkeys(paths)]
    found = [interpreter for interpreter in probed if interpreter is not None]
    if is_ci(host) and found and OLDEST <= found[0].version <= NEWEST and found[0].has_ensurepip:
        return found
    return sorted(found, key=lambda interpreter: interpreter.version, reverse=True)


def choose_interpreter(host: Host) -> Interpreter:
    """Pick the Python that makes `.venv`.

    Raises:
        SetupError: None of a supported version runs, or none of those can make a virtual environment.
    """
    found = find_interpreters(host)
    fitting = [interpreter for interpreter in found if OLDEST <= interpreter.version <= NEWEST]
    if not fitting:
        chosen = host.environ.get("PYTHON")
        where = f"PYTHON={chosen}" if chosen else "the newest on PATH"
        major, minor = found[0].version if found else (0, 0)
        what = f"{where} is {major}.{minor}" if found else f"{where} does not run"
        raise SetupError(
            f"vtcore needs Python 3.11 to 3.14 and {what}: install one of those, "
            "or name it with `make demo PYTHON=/path/to/python3.12`."
        )
    usable = [interpreter for interpreter in fitting if interpreter.has_ensurepip]
    if not usable:
        major, minor = fitting[0].version
        raise SetupError(
            f"{fitting[0].path} cannot make a virtual environment because its venv or ensurepip module "
            f"is missing: install it (Debian and Ubuntu: `apt install python{major}.{minor}-venv`) "
            "and run this again."
        )
    return usable[0]
