"""One virtual environment for all strangers' plugins: vtcore from its wheel, and what vtcore declares.

Does not: touch the interpreter that runs the tests, or any network.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import isolated_env
import pytest
from attrs import Factory, frozen

sys.path.insert(0, str(Path(__file__).parent))

from stranger_projects import build_stranger, write_checkpoint

Install = Callable[..., None]


@frozen
class Home:
    """Where strangers live.

    Args:
        place: The environment.
        python: Its interpreter.
        work: Directory in which commands run.
        installed: Distributions that the present test installed.
    """

    place: Path
    python: Path
    work: Path
    installed: list[str] = Factory(list)

    def install(self, *wheels: Path) -> None:
        """Install strangers' wheels, for this test only."""
        isolated_env.install(self.python, wheels)
        self.installed.extend(wheel.name.split("-")[0].replace("_", "-") for wheel in wheels)

    def uninstall(self, *names: str) -> None:
        """Remove some of them again."""
        isolated_env.uninstall(self.python, *names)
        for name in names:
            self.installed.remove(name)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, with further variables."""
        environment = isolated_env.clean_environ(self.place) | {"CUDA_VISIBLE_DEVICES": ""} | variables
        return subprocess.run(
            command,
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def vtcore(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return self.run("vtcore", *arguments, **variables)

    def shown(self, *arguments: str) -> str:
        """What a command that succeeds prints."""
        done = self.vtcore(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, code: str, *arguments: str, **variables: str) -> str:
        """The one sentence with which a command fails."""
        done = self.vtcore(*arguments, **variables)
        assert done.returncode == int(code[2]), done.stdout + done.stderr
        *warnings, sentence, more, end = done.stderr.split("\n")
        assert all(line.startswith("plugins with problems: ") for line in warnings)
        assert (more, end) == (f"more: vtcore explain {code}", "")
        assert sentence.startswith(f"error[{code}]: ")
        return sentence.removeprefix(f"error[{code}]: ")

    def checkpoint(self, model_type: str) -> str:
        """A checkpoint without weights, for a stranger's arch; its name in `work`."""
        return write_checkpoint(self.work / model_type, model_type).name


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The environment and its interpreter, with vtcore alone."""
    place = tmp_path_factory.mktemp("strangers")
    projects, declared = isolated_env.needed_by(["vtcore"], isolated_env.all_folders())
    wheels = [isolated_env.build_wheel(folder, place) for folder in projects]
    return place / "venv", isolated_env.make_environment(place / "venv", wheels, declared)


@pytest.fixture
def home(environment: tuple[Path, Path], tmp_path: Path) -> Iterator[Home]:
    """The environment, as empty after the test as before it."""
    work = tmp_path / "work"
    work.mkdir()
    it = Home(*environment, work)
    yield it
    if it.installed:
        it.uninstall(*it.installed)


Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a stranger's wheel, each once in a session."""
    made: dict[tuple[object, ...], Path] = {}

    def make(name: str, modules: Mapping[str, str], version: str = "1.0", plugin: str = "") -> Path:
        key = (name, tuple(modules.items()), version, plugin)
        if key not in made:
            folder = tmp_path_factory.mktemp("project") / name
            made[key] = build_stranger(name, modules, folder, version, plugin)
        return made[key]

    return make
