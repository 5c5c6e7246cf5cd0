"""What `vtcore plugins new` writes installs and passes its own tests at once, beside vtcore's wheel alone.

Does not: fetch anything. The dependencies are this interpreter's, linked into a virtual environment without
vtcore and its plugins.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import build_dist
import pytest
from attrs import frozen
from doc_blocks import find_blocks, split_commands

ROOT = Path(__file__).parents[2]
OURS = ("vtcore", "__editable__")
PIP = ["--disable-pip-version-check", "--no-index", "--no-build-isolation", "--quiet"]


@frozen
class Author:
    """Someone in a virtual environment that has vtcore's wheel and what it depends on, but no plugin."""

    place: Path
    work: Path

    @property
    def python(self) -> str:
        return str(self.place / "bin" / "python")

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """One command as typed; pip is this interpreter's, and finds nothing but what is installed."""
        if words[:3] == ("python", "-m", "pip"):
            words = (sys.executable, "-m", "pip", "--python", self.python, *words[3:], *PIP)
        path = f"{self.place / 'bin'}{os.pathsep}{os.defpath}"
        environment = {
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HOME": str(self.work),
        }
        done = subprocess.run(
            words,
            cwd=cwd or self.work,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, kind: str, name: str, *pytest_words: str) -> Path:
        """`vtcore plugins new`, then the three commands that it prints."""
        heading, _, install, show, test = self.run("vtcore", "plugins", "new", kind, name).splitlines()
        self.run(*shlex.split(install))
        assert f"distribution: vtcore-{name} 0.1.0" in self.run(*shlex.split(show))
        self.run(*shlex.split(test), *pytest_words)
        return self.work / heading.partition(":")[0]


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Author:
    folder = tmp_path_factory.mktemp("author")
    place, base, clean = folder / "venv", folder / "base", folder / "clean"
    build_dist.copy_project(ROOT, clean)
    wheels = folder / "wheels"
    wheels.mkdir()
    command = [sys.executable, "-c", build_dist.CALL, "build_wheel", str(wheels)]
    subprocess.run(command, cwd=clean, check=True, stdout=subprocess.DEVNULL)
    venv.create(place, with_pip=False, symlinks=True)
    (wheel,) = wheels.iterdir()
    install = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-deps"]
    subprocess.run([*install, *PIP, str(wheel)], check=True)
    # After the install, so that pip sees an empty environment.
    link_dependencies(base)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "base.pth").write_text(f"{base}\n")
    (folder / "work").mkdir()
    return Author(place, folder / "work")


def link_dependencies(base: Path) -> None:
    """Links to everything this interpreter has installed, but for vtcore and its plugins."""
    base.mkdir()
    for entry in map(Path, sys.path):
        if entry.name in ("site-packages", "dist-packages") and entry.is_dir():
            for path in entry.iterdir():
                link = base / path.name
                if not path.name.startswith(OURS) and path.suffix != ".pth" and not link.exists():
                    link.symlink_to(path)


def test_a_new_policy_installs_passes_and_the_doctor_is_content(author: Author) -> None:
    # The kit's runs of whole schedules are left to the slow test.
    few = ("-k", "keys or configs or deadline_goes")
    project = author.start("policy", "urgent-first", *few)
    listed = author.run("vtcore", "plugins", "list")
    assert "urgent_first" in listed
    assert str(ROOT) not in author.run("python", "-c", "import vtcore; print(vtcore.__file__)")
    assert "all well" in author.run("vtcore", "plugins", "doctor")
    # The tests bite: a policy that breaks the contract does not pass them.
    policy = project / "src/vtcore_urgent_first/policy.py"
    source = policy.read_text(encoding="utf-8")
    broken = source.replace("return (view.arrival_s", "return [view.arrival_s").replace("own),)", "own)]")
    assert broken != source
    policy.write_text(broken, encoding="utf-8")
    with pytest.raises(AssertionError, match="is no tuple"):
        author.run("python", "-m", "pytest", "-q", project.name, *few)


READ_ON: Mapping[str, str] = {"arch": "plain-decoder", "kv-spec": "short-memory", "policy": "by-deadline"}
"""Kind -> name; the arch first, because its checkpoint is the others' MODEL."""


@pytest.mark.slow
def test_every_kind_does_all_that_its_own_readme_says(author: Author) -> None:
    for kind, name in READ_ON.items():
        # Its README runs the tests.
        project = author.start(kind, name, "--collect-only", "-q")
        model = author.work / "vtcore-plain-decoder" / "tiny"
        if kind != "arch":
            (project / "MODEL").symlink_to(model)
        readme = (project / "README.md").read_text(encoding="utf-8")
        ran = 0
        for block in find_blocks("README.md", readme):
            if block.language == "python":
                author.run("python", "-c", block.text, cwd=project)
                continue
            assert block.language == "sh"
            for command in split_commands(block.text):
                author.run(*shlex.split(command.text), cwd=project)
                ran += 1
        assert ran >= 4
        assert (model / "config.json").is_file()
    assert "all well" in author.run("vtcore", "plugins", "doctor")


@pytest.mark.slow
def test_the_sources_pass_mypy_strict(author: Author) -> None:
    sources = []
    for kind in READ_ON:
        author.run("vtcore", "plugins", "new", kind, f"typed-{kind}")
        sources.append(f"vtcore-typed-{kind}/src")
    command = [sys.executable, "-m", "mypy", "--python-executable", author.python, "--config-file"]
    command += ["vtcore-typed-arch/pyproject.toml", "--no-incremental", *sources]
    done = subprocess.run(command, cwd=author.work, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
