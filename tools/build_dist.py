"""Build the source distribution and the wheel of every distribution of this repository.

Each is built from a copy of its own files, and the wheel from the unpacked source distribution: a file that
one lacks the other lacks too, and the tree stays as it is.

Does not: fetch anything (setuptools must be installed), install or upload.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PARTS: tuple[str, ...] = ("pyproject.toml", "README.md", "LICENSE", "src", "vtcore")
"""What a distribution is made of, where its folder has it; tests and documents stay in the repository."""

LITTER: tuple[str, ...] = ("__pycache__", "*.egg-info", "build", "dist")

EXIT_FAILED = 3
"""setuptools refused; the last lines say which distribution."""

CALL = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
"""A program that calls one hook of the build backend: its name, and the directory to write to."""


def project_folders(root: Path = ROOT) -> list[Path]:
    """Folders that hold a distribution: the core's, then each plugin's by name."""
    return [root, *sorted(file.parent for file in (root / "plugins").glob("*/pyproject.toml"))]


def copy_project(folder: Path, target: Path) -> None:
    """Copy what a distribution is made of, without what earlier builds left behind.

    Args:
        folder: One of `project_folders`.
        target: A directory; made if absent.
    """
    target.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = folder / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns(*LITTER))
        elif source.is_file():
            shutil.copy2(source, target / part)


def build(folder: Path, out: Path) -> list[Path]:
    """Build one distribution.

    Args:
        folder: One of `project_folders`.
        out: Directory for the two files; must exist.

    Returns:
        The source distribution and the wheel.

    Raises:
        subprocess.CalledProcessError: setuptools failed; `output` has all that it printed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        clean, unpacked, made = (Path(scratch) / name for name in ("clean", "unpacked", "made"))
        copy_project(folder, clean)
        made.mkdir()
        _call_backend("build_sdist", clean, made)
        (archive,) = made.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            # Python before 3.11.4 has no filters; the archive is our own either way.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(unpacked)
        (source,) = unpacked.iterdir()
        _call_backend("build_wheel", source, made)
        (wheel,) = made.glob("*.whl")
        return [Path(shutil.copy2(file, out / file.name)) for file in (archive, wheel)]


def _call_backend(hook: str, folder: Path, out: Path) -> None:
    # A process of its own: the backend works on the current directory and on global state.
    command = [sys.executable, "-c", CALL, hook, str(out)]
    subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Build everything and print what was written; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build sdist and wheel of every distribution.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory to write; default dist/")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for folder in project_folders():
        try:
            files = build(folder, args.out)
        except subprocess.CalledProcessError as error:
            print(error.output, file=sys.stderr)
            print(f"build_dist: {folder.name} cannot be built; setuptools says why above", file=sys.stderr)
            return EXIT_FAILED
        for file in files:
            print(f"{file}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
