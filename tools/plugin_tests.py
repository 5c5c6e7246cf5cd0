"""Run one plugin's tests in an environment of its own: vtcore, the plugin, and what the plugin declares.

Does not: fetch anything; everything comes from the interpreter that runs this and from the repository.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from isolated_env import (
    ROOT,
    IsolationError,
    all_folders,
    build_wheel,
    clean_environ,
    make_environment,
    needed_by,
    read_project,
)

EXIT_CANNOT_RUN = 3
TEST_EXTRA = "test"
"""The extra in which a plugin declares what its tests need."""


def find_plugin(name: str, folders: Sequence[Path]) -> Path:
    """The folder of a plugin.

    Args:
        name: Of the folder or of the distribution.

    Raises:
        IsolationError: There is none.
    """
    plugins = [folder for folder in folders if folder != ROOT]
    for folder in plugins:
        if name in (folder.name, read_project(folder)["name"]):
            return folder
    known = ", ".join(folder.name for folder in plugins)
    raise IsolationError(f"no plugin is named {name!r}; there are {known}: make test-plugin P=NAME")


def prepare(folder: Path, place: Path) -> Path:
    """Make the environment of a plugin's tests.

    Args:
        folder: Of the plugin.
        place: Of the environment; replaced if it exists.

    Returns:
        Its interpreter.

    Raises:
        IsolationError: It cannot be made.
    """
    # pytest itself is the runner's need, whatever a plugin declares.
    wanted = [f"{read_project(folder)['name']}[{TEST_EXTRA}]", "pytest"]
    projects, installed = needed_by(wanted, all_folders())
    with tempfile.TemporaryDirectory() as out:
        return make_environment(place, [build_wheel(one, Path(out)) for one in projects], installed)


def run_tests(folder: Path, place: Path, python: Path, arguments: Sequence[str]) -> int:
    """Run pytest there, with the repository's settings, and return its exit code."""
    # Without -P the repository's own vtcore, in the current directory, would be imported.
    command = [str(python), "-P", "-m", "pytest", "-p", "no:cacheprovider", str(folder / "tests"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean_environ(place), check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry: `NAME [pytest's arguments]`; returns pytest's exit code, or 3."""
    parser = argparse.ArgumentParser(description="Run one plugin's tests in an environment of its own.")
    parser.add_argument("plugin", metavar="NAME", help="folder or distribution of the plugin")
    parser.add_argument("--env", type=Path, help="where the environment is made; default .venv-plugin-NAME")
    options, arguments = parser.parse_known_args(argv)
    try:
        folder = find_plugin(options.plugin, all_folders())
        place = options.env or ROOT / f".venv-plugin-{folder.name}"
        python = prepare(folder, place)
    except IsolationError as error:
        print(f"plugin_tests: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    return run_tests(folder, place, python, arguments)


if __name__ == "__main__":
    sys.exit(main())
