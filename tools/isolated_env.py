"""Make virtual environments with some of the repository's distributions and nothing undeclared, offline.

The distributions are built to wheels and installed without an index; what they declare to need is linked from
the interpreter that runs this. A package that is not declared, directly or by something declared, cannot be
imported there.

Does not: fetch anything, or change the interpreter that runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import build_dist
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = build_dist.ROOT
PIP_INSTALL = ("install", "--no-index", "--no-deps", "--disable-pip-version-check", "--quiet")


class IsolationError(Exception):
    """An environment cannot be made; one sentence with the remedy."""


def all_folders(root: Path = ROOT) -> list[Path]:
    """Folders that hold a distribution: those that are released, then the examples of the documentation."""
    examples = sorted(file.parent for file in (root / "docs" / "examples").glob("*/pyproject.toml"))
    return [*build_dist.project_folders(root), *examples]


def read_project(folder: Path) -> dict[str, Any]:
    """The `project` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def needed_by(requirements: Iterable[str], folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Follow requirements to their end.

    Args:
        requirements: As in pyproject.toml, such as "vtcore[testing]>=0.1".
        folders: Distributions that are taken from the repository and not from this interpreter.

    Returns:
        The folders among them, and names of installed distributions, both sorted.

    Raises:
        IsolationError: One is not installed here, or an extra of one in the repository does not exist.
    """
    ours = {canonicalize_name(read_project(folder)["name"]): folder for folder in folders}
    seen: set[tuple[NormalizedName, str]] = set()
    waiting = [("", Requirement(text)) for text in requirements]
    while waiting:
        extra_of_parent, requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra_of_parent}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(extra, Requirement(text)) for text in _requirements(name, extra, ours)]
    names = {name for name, _ in seen}
    return sorted(ours[name] for name in names & ours.keys()), sorted(names - ours.keys())


def _requirements(name: NormalizedName, extra: str, ours: Mapping[NormalizedName, Path]) -> list[str]:
    if name in ours:
        project = read_project(ours[name])
        if not extra:
            return list(project.get("dependencies", []))
        extras = project.get("optional-dependencies", {})
        if extra not in extras:
            raise IsolationError(f"{project['name']} has no extra {extra!r}; add it to its pyproject.toml")
        return list(extras[extra])
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError as error:
        raise IsolationError(
            f"{name} is declared and not installed for {sys.executable}; run `make env-dev`"
        ) from error


def link_distributions(names: Iterable[str], base: Path) -> None:
    """Link what distributions of this interpreter have in site-packages into a folder, which is made.

    Raises:
        IsolationError: One keeps no list of its files.
    """
    base.mkdir(parents=True)
    for name in names:
        distribution = metadata.distribution(name)
        if distribution.files is None:
            raise IsolationError(f"{name} keeps no list of its files; install it with pip")
        tops = {file.parts[0] for file in distribution.files}
        for top in tops - {"..", "__pycache__"}:
            target = Path(str(distribution.locate_file(top)))
            # Distributions that share a package's folder share the link.
            if target.suffix != ".pth" and target.exists() and not (base / top).exists():
                (base / top).symlink_to(target)


def build_wheel(folder: Path, out: Path) -> Path:
    """Build one distribution's wheel.

    Raises:
        IsolationError: setuptools refuses.
    """
    try:
        return build_dist.build(folder, out)[1]
    except subprocess.CalledProcessError as error:
        raise IsolationError(f"{folder.name} cannot be built: {error.output.strip()}") from error


def make_environment(place: Path, wheels: Sequence[Path], installed: Iterable[str]) -> Path:
    """Make a virtual environment anew.

    Args:
        place: Its folder; replaced if it exists.
        wheels: What is installed in it.
        installed: Distributions of this interpreter that it sees too.

    Returns:
        Its interpreter.

    Raises:
        IsolationError: As `link_distributions`, or pip refuses a wheel.
    """
    venv.create(place, clear=True, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    base = place / "declared"
    link_distributions(installed, base)
    # First the wheels, so that pip sees an empty environment.
    install(python, wheels)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "declared.pth").write_text(f"{base}\n", encoding="utf-8")
    return python


def install(python: Path, wheels: Sequence[Path]) -> None:
    """Install wheels without an index.

    Raises:
        IsolationError: pip refuses.
    """
    _pip(python, *PIP_INSTALL, *map(str, wheels))


def uninstall(python: Path, *names: str) -> None:
    """Remove distributions.

    Raises:
        IsolationError: pip refuses.
    """
    _pip(python, "uninstall", "--yes", "--quiet", *names)


def _pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise IsolationError(f"pip failed: {(done.stderr or done.stdout).strip()}")


def clean_environ(place: Path) -> dict[str, str]:
    """This process's variables without those that would let other packages or settings in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VTCORE_", "PYTHON", "PYTEST_")) and name != "VIRTUAL_ENV"
    }
    return {**kept, "PATH": f"{place / 'bin'}{os.pathsep}{os.defpath}", "OMP_NUM_THREADS": "1"}
