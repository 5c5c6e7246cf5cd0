"""Make `.venv` for `make demo` (base) and `make test` (`--dev`), with nothing but a Python installation.

Does not: write outside the repository, change pip's settings, or need packages. Its syntax stays at Python
3.8, so that an old interpreter can still say what is missing. Every foreseeable failure is one sentence and
exit code 3.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Mapping, Sequence

from bootstrap_host import (
    NEWEST,
    OLDEST,
    Host,
    SetupError,
    check_platform,
    choose_interpreter,
    is_ci,
    probe_interpreter,
)

TORCH_FLOOR = (2, 9)
EXIT_CANNOT_SET_UP = 3
STAMP = "vtcore-bootstrap.json"
GIB = 1 << 30
INDEX_PROBE_S, SLOW_S = 20, 180
# Source: a finished .venv with torch 2.13.0 on Linux x86_64, rounded up; most of the dev part is triton.
CPU_DISK_GB, CUDA_DISK_GB, KEPT_TORCH_DISK_GB, DEV_DISK_GB = 2, 7, 1, 1
CPU_DOWNLOAD_GB, CUDA_DOWNLOAD_GB = 0.3, 3.0

NO_NETWORK_SIGNS = (
    "name resolution",
    "nodename nor servname",
    "name or service not known",
    "failed to establish a new connection",
    "newconnectionerror",
    "connecttimeout",
    "readtimeout",
    "read timed out",
    "max retries exceeded",
    "network is unreachable",
    "connection refused",
    "connection broken",
    "cannot connect to proxy",
    "error sending request",
    "dns error",
)
DISK_FULL_SIGNS = ("no space left on device", "[errno 28]", "disk quota exceeded")


def explain_failure(output: str, command: str, root: Path) -> SetupError:
    """Turn the output of a failed install into one sentence with its remedy."""
    text = output.lower()
    if any(sign in text for sign in DISK_FULL_SIGNS):
        return SetupError(
            f"The disk is full: free some space under {root} and in the temporary folder "
            "(or point TMPDIR elsewhere) and run this again; it resumes."
        )
    if any(sign in text for sign in NO_NETWORK_SIGNS):
        return SetupError(
            "The package index cannot be reached: connect to the network, or set pip's proxy or index "
            "(`pip config set global.index-url URL`), and run this again; it resumes."
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
    return SetupError(f"`{command}` failed ({errors[-1]}): mend that and run this again; it resumes.")


def run_step(host: Host, command: Sequence[str], root: Path) -> None:
    """Run one install command; its output is shown if it fails.

    Raises:
        SetupError: It failed; the sentence says why.
    """
    status, tail = host.run_long(command, root)
    if status != 0:
        print(tail.rstrip("\n"), flush=True)
        raise explain_failure(tail, " ".join(command[:4]), root)


def check_disk(host: Host, root: Path, needed_gb: int) -> None:
    """Compare the free disk with what the install takes.

    Args:
        needed_gb: Required space, GiB.

    Raises:
        SetupError: Less is free.
    """
    free = host.free_bytes(root)
    if free < needed_gb * GIB:
        raise SetupError(
            f"The disk is too full: about {needed_gb} GB are needed under {root} and {free / GIB:.1f} GB "
            "are free, so free some space and run this again."
        )


def plugin_projects(root: Path) -> list[Path]:
    """The pyproject.toml of each in-tree plugin, sorted by folder."""
    return sorted((root / "plugins").glob("*/pyproject.toml"))


def inputs_digest(root: Path, *, dev: bool) -> str:
    """Digest of the repository's place and of every file that says what is installed, as hex."""
    files = [root / "constraints.txt", root / "pyproject.toml", *plugin_projects(root)]
    if dev:
        files.append(root / "requirements-dev.txt")
    digest = hashlib.sha256(str(root).encode())
    for file in files:
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def read_stamp(venv: Path) -> dict[str, str]:
    """What an earlier run wrote into `.venv`; empty when there was none or it cannot be read."""
    try:
        content = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_stamp(venv: Path, content: Mapping[str, str]) -> None:
    """Replace the stamp in one step, so that an interrupt leaves the old or the new one."""
    partial = venv / f"{STAMP}.partial"
    partial.write_text(json.dumps(dict(content), indent=1), encoding="utf-8")
    os.replace(str(partial), str(venv / STAMP))


def has_pip(host: Host, python: str) -> bool:
    """Whether pip runs there, after adding it if it is absent (as in an environment made by uv)."""
    if host.run([python, "-m", "pip", "--version"])[0] == 0:
        return True
    return host.run([python, "-m", "ensurepip", "--upgrade"], SLOW_S)[0] == 0


def prepare_venv(host: Host, root: Path) -> str:
    """Return the path of a working Python with pip inside `.venv`, making or remaking it where needed.

    Raises:
        SetupError: No interpreter fits, making it failed, or someone else made a `.venv` of another version.
    """
    venv = root / ".venv"
    python = str(venv / "bin" / "python")
    stamp = read_stamp(venv)
    if venv.exists():
        inside = probe_interpreter(host, python)
        wanted = choose_interpreter(host).version if host.environ.get("PYTHON") else None
        if inside is not None and OLDEST <= inside.version <= NEWEST and wanted in (None, inside.version):
            if stamp.get("root", str(root)) == str(root) and has_pip(host, python):
                return python
        elif inside is not None and not stamp:
            major, minor = inside.version
            raise SetupError(
                f"{venv} was made by someone else, with Python {major}.{minor} which does not fit: "
                "remove it (`make clean-env`) and run this again."
            )
    interpreter = choose_interpreter(host)
    major, minor = interpreter.version
    if venv.exists():
        print("bootstrap: .venv is incomplete, was moved or has another Python, so it is made anew")
        shutil.rmtree(str(venv))
    print(f"bootstrap: making .venv with Python {major}.{minor} ({interpreter.path})", flush=True)
    status, output = host.run([interpreter.path, "-m", "venv", str(venv)], SLOW_S)
    if status != 0:
        raise explain_failure(output, f"{interpreter.path} -m venv", root)
    write_stamp(venv, {"root": str(root)})
    return python


def pinned_torch(root: Path) -> str:
    """The torch version that constraints.txt pins, such as `2.13.0`.

    Raises:
        SetupError: The file pins none.
    """
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(r"^torch==([0-9.]+)\s*$", text, re.MULTILINE)
    if found is None:
        raise SetupError(
            "constraints.txt pins no torch version: restore its `torch==` line from version control."
        )
    return found[1]


def torch_fits(version: str, pinned: str | None) -> bool:
    """Whether an installed torch is kept.

    Args:
        version: The installed version, with or without a build suffix such as `+cpu`.
        pinned: The only version that will do; None accepts any from the floor on.
    """
    public = version.split("+")[0]
    if pinned is not None:
        return public == pinned
    return tuple(int(part) for part in re.findall(r"\d+", public)[:2]) >= TORCH_FLOOR


def installed_torch(host: Host, python: str) -> str | None:
    """Version of the torch in that environment; None when it is absent or does not import."""
    status, output = host.run([python, "-c", "import torch; print('vtcore', torch.__version__)"], SLOW_S)
    found = re.search(r"^vtcore (\S+)$", output, re.MULTILINE)
    return found[1] if status == 0 and found else None


def uv_backend(host: Host, python: str) -> tuple[str, str] | None:
    """(path of uv, torch backend) when uv is there and that backend's index answers in time, else None."""
    paths = host.executables("uv")
    if not paths:
        return None
    has_driver = any(host.run([path, "-L"])[0] == 0 for path in host.executables("nvidia-smi"))
    backend = "auto" if has_driver else "cpu"
    command = [
        paths[0],
        "pip",
        "install",
        "--dry-run",
        "--python",
        python,
        f"--torch-backend={backend}",
        "torch",
    ]
    return (paths[0], backend) if host.run(command, INDEX_PROBE_S)[0] == 0 else None


def expects_cuda(host: Host, python: str, pinned: str | None, index: Sequence[str], root: Path) -> bool:
    """Ask pip which torch it would take and say whether that build brings the CUDA libraries.

    Args:
        pinned: The version pip is held to; None for the newest.
        index: pip options that choose the index; empty for the configured one.

    Raises:
        SetupError: pip cannot reach its index.
    """
    command = [python, "-m", "pip", "index", "versions", "torch", "--retries", "1", "--timeout", "15"]
    status, output = host.run([*command, *index], SLOW_S)
    if status != 0 and any(sign in output.lower() for sign in NO_NETWORK_SIGNS):
        raise explain_failure(output, "pip index versions", root)
    newest = re.search(r"^torch \((\S+)\)", output, re.MULTILINE)
    is_cpu_build = f"{pinned}+cpu" in output if pinned else bool(newest and newest[1].endswith("+cpu"))
    return host.platform.startswith("linux") and not is_cpu_build


def install_torch(host: Host, python: str, root: Path, *, dev: bool) -> str:
    """Install torch unless one that fits is there; the build follows TORCH_INDEX_URL, then uv, then pip.

    Returns:
        The version that is there now.

    Raises:
        SetupError: Too little disk for torch and the rest, no network, or the install failed.
    """
    extra = DEV_DISK_GB if dev else 0
    url = host.environ.get("TORCH_INDEX_URL")
    pinned = pinned_torch(root) if is_ci(host) or not url else None
    version = installed_torch(host, python)
    if version is not None and torch_fits(version, pinned if is_ci(host) else None):
        print(f"bootstrap: keeping torch {version}")
        check_disk(host, root, KEPT_TORCH_DISK_GB + extra)
        return version
    index = ["--index-url", url] if url else []
    floor = "torch>={}.{}".format(*TORCH_FLOOR)
    uv = None if url or is_ci(host) else uv_backend(host, python)
    cuda = uv[1] == "auto" if uv else expects_cuda(host, python, pinned, index, root)
    disk, download = (CUDA_DISK_GB, CUDA_DOWNLOAD_GB) if cuda else (CPU_DISK_GB, CPU_DOWNLOAD_GB)
    check_disk(host, root, disk + extra)
    build = "with the CUDA libraries" if cuda else "CPU build"
    print(
        f"bootstrap: installing torch ({build}): "
        f"expect to download {download:.1f} GB and to need {disk} GB of disk; that takes minutes",
        flush=True,
    )
    if uv is not None:
        path, backend = uv
        run_step(
            host, [path, "pip", "install", "--python", python, f"--torch-backend={backend}", floor], root
        )
    else:
        constraint = ["-c", "constraints.txt"] if pinned else []
        run_step(host, [python, "-m", "pip", "install", floor, *constraint, *index], root)
    installed = installed_torch(host, python)
    if installed is None:
        raise SetupError("The installed torch does not import: run `make clean-env` and then this again.")
    return installed


def install_packages(host: Host, python: str, root: Path, *, dev: bool) -> None:
    """Install vtcore and the in-tree plugins in place and, with `dev`, what the tests need.

    Raises:
        SetupError: The install failed, or what was installed does not import.
    """
    projects = [root, *(file.parent for file in plugin_projects(root))]
    editable = [part for folder in projects for part in ("-e", str(folder))]
    what = ["-r", "requirements-dev.txt"] if dev else editable
    constraint = ["-c", "constraints.txt"] if is_ci(host) else []
    print(f"bootstrap: installing vtcore and its plugins{', and what the tests need' * dev}", flush=True)
    run_step(host, [python, "-m", "pip", "install", *what, *constraint], root)
    status, output = host.run([python, "-c", "import torch, vtcore"], SLOW_S)
    if status != 0:
        last = (output.splitlines() or ["no output"])[-1]
        raise SetupError(
            f"The installed packages do not import ({last}): run `make clean-env` and then this again."
        )


def is_current(host: Host, root: Path, key: str, digest: str) -> bool:
    """Whether `.venv` runs, was finished for these inputs, and has the PYTHON (in CI: torch) asked for."""
    venv = root / ".venv"
    stamp = read_stamp(venv)
    asked = host.environ.get("PYTHON")
    if stamp.get(key) != digest or (asked and stamp.get("PYTHON") != asked):
        return False
    if is_ci(host) and not torch_fits(stamp.get("torch", ""), pinned_torch(root)):
        return False
    return host.run([str(venv / "bin" / "python"), "-c", ""])[0] == 0


def bootstrap(host: Host, root: Path, *, dev: bool) -> None:
    """Bring `.venv` to the state that the repository's files ask for; does nothing when it is there already.

    Raises:
        SetupError: It cannot; the message says what to do.
    """
    check_platform(host)
    venv = root / ".venv"
    key, digest = "dev" if dev else "base", inputs_digest(root, dev=dev)
    if is_current(host, root, key, digest):
        return
    if not venv.exists():
        check_disk(host, root, CPU_DISK_GB)
    python = prepare_venv(host, root)
    torch = install_torch(host, python, root, dev=dev)
    install_packages(host, python, root, dev=dev)
    asked = host.environ.get("PYTHON")
    done = {"root": str(root), "torch": torch, "base": inputs_digest(root, dev=False), key: digest}
    write_stamp(venv, {**read_stamp(venv), **done, **({"PYTHON": asked} if asked else {})})
    print("bootstrap: .venv is ready")


def main(argv: Sequence[str] | None = None, host: Host | None = None, root: Path | None = None) -> int:
    """Command line entry.

    Args:
        argv: Arguments without the program's name; None takes those of the process.
        host: The machine; None is the real one.
        root: The repository; None is the one this file lies in.

    Returns:
        The exit code: 0, 3 with one sentence on stderr, or 130 when interrupted.
    """
    parser = argparse.ArgumentParser(description="Make .venv for this repository.")
    parser.add_argument("--dev", action="store_true", help="also install what the tests and checks need")
    options = parser.parse_args(argv)
    folder = Path(__file__).resolve().parent.parent if root is None else root
    try:
        bootstrap(Host(os.environ) if host is None else host, folder, dev=options.dev)
    except SetupError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return EXIT_CANNOT_SET_UP
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        sentence = (
            explain_failure("no space left on device", "", folder)
            if full
            else f"Cannot write .venv ({error})."
        )
        print(f"bootstrap: {sentence}", file=sys.stderr)
        return EXIT_CANNOT_SET_UP
    except KeyboardInterrupt:
        print("bootstrap: interrupted; run it again and it resumes.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
