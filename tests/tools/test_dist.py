"""`make dist` makes distributions that work by themselves: built, installed without an index, and run.

Does not: fetch anything. The dependencies are this interpreter's, linked into a folder without vtcore's own.
"""

from __future__ import annotations

import email.message
import email.parser
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import build_dist
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = build_dist.project_folders(ROOT)
IDS = [folder.name if folder != ROOT else "vtcore" for folder in FOLDERS]
OUR_METADATA = ("vtcore", "__editable__")


def names_of(folder: Path) -> tuple[str, str]:
    """A distribution's name as files spell it, and its version."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["name"].replace("-", "_"), project["version"]


def wheel_of(folder: Path, made: Path) -> Path:
    (wheel,) = made.glob("-".join(names_of(folder)) + "-*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(folder: Path, made: Path) -> email.message.Message:
    (text,) = [
        data
        for name, data in contents(wheel_of(folder, made)).items()
        if name.endswith(".dist-info/METADATA")
    ]
    return email.parser.Parser().parsestr(text.decode("utf-8"))


def litter() -> list[Path]:
    """What a build in place would leave."""
    return sorted(
        path for folder in FOLDERS for name in ("build", "*.egg-info") for path in folder.glob(name)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` writes."""
    out = tmp_path_factory.mktemp("dist")
    before = litter()
    assert build_dist.main(["--out", str(out)]) == 0
    assert litter() == before, "the build left something in the tree"
    return out


def test_each_distribution_has_a_source_archive_and_a_wheel(made: Path) -> None:
    stems = ["-".join(names_of(folder)) for folder in FOLDERS]
    expected = [f"{stem}{end}" for stem in stems for end in (".tar.gz", "-py3-none-any.whl")]
    assert sorted(path.name for path in made.iterdir()) == sorted(expected)


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_the_wheel_has_every_file_of_the_package_and_no_other(folder: Path, made: Path) -> None:
    source = folder / "src" if folder != ROOT else folder
    packages = [path for path in source.iterdir() if (path / "__init__.py").is_file()]
    packages = [path for path in packages if path.name.startswith("vtcore")]
    expected = {
        str(file.relative_to(source)): file.read_bytes()
        for package in packages
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {
        name: data for name, data in contents(wheel_of(folder, made)).items() if ".dist-info/" not in name
    }
    assert set(packed) == set(expected)
    assert packed == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_the_wheel_of_the_tree_is_the_wheel_of_the_source_archive(
    folder: Path, made: Path, tmp_path: Path
) -> None:
    build_dist.copy_project(folder, tmp_path / "clean")
    command = [sys.executable, "-c", build_dist.CALL, "build_wheel", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "clean", check=True, stdout=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    assert contents(wheel) == contents(wheel_of(folder, made))


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_the_source_archive_holds_no_machine_and_no_litter(folder: Path, made: Path) -> None:
    with tarfile.open(made / ("-".join(names_of(folder)) + ".tar.gz")) as tar:
        members = tar.getnames()
        texts = b"".join(file.read() for member in tar if (file := tar.extractfile(member)))
    stem = "-".join(names_of(folder))
    assert {f"{stem}/LICENSE", f"{stem}/README.md", f"{stem}/pyproject.toml"} <= set(members)
    assert [name for name in members if "__pycache__" in name or name.endswith(".pyc")] == []
    assert str(ROOT).encode() not in texts


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_the_metadata_has_licence_readme_and_python(folder: Path, made: Path) -> None:
    metadata = metadata_of(folder, made)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# vtcore")
    (licence,) = [
        data for name, data in contents(wheel_of(folder, made)).items() if name.endswith("/licenses/LICENSE")
    ]
    assert licence == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", FOLDERS[1:], ids=IDS[1:])
def test_a_plugins_wheel_depends_on_the_core(folder: Path, made: Path) -> None:
    _, version = names_of(ROOT)
    requirements = [Requirement(text) for text in metadata_of(folder, made).get_all("Requires-Dist") or []]
    (core,) = [one for one in requirements if one.name == "vtcore" and one.marker is None]
    assert core.specifier.contains(version)


def test_a_failed_build_says_which_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text('[project]\nname = "broken"\n')
    monkeypatch.setattr(build_dist, "project_folders", lambda: [broken])
    assert build_dist.main(["--out", str(tmp_path / "out")]) == 3
    shown = capsys.readouterr().err
    assert "build_dist: broken cannot be built" in shown
    assert "version" in shown


def link_dependencies(base: Path) -> None:
    """Links to everything this interpreter has installed, but for vtcore and its plugins."""
    base.mkdir()
    for entry in map(Path, sys.path):
        if entry.name not in ("site-packages", "dist-packages") or not entry.is_dir():
            continue
        for path in entry.iterdir():
            link = base / path.name
            if not path.name.startswith(OUR_METADATA) and path.suffix != ".pth" and not link.exists():
                link.symlink_to(path)


def test_the_wheels_install_without_an_index_and_generate(made: Path, tmp_path: Path) -> None:
    base, place, work = tmp_path / "base", tmp_path / "venv", tmp_path / "work"
    link_dependencies(base)
    work.mkdir()
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    environment = {"PATH": f"{place / 'bin'}{os.pathsep}{os.defpath}", "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=work, env=environment, check=False, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (site,) = place.glob("lib/python*/site-packages")
    wheels = [str(wheel_of(folder, made)) for folder in FOLDERS]
    install = ["install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", str(python), *install, *wheels)
    # After the install, so that pip sees an empty environment.
    (site / "base.pth").write_text(f"{base}\n")

    packages = ["vtcore", *(f"vtcore_{folder.name}" for folder in FOLDERS[1:])]
    script = f"import {', '.join(packages)}; print(*(m.__file__ for m in ({', '.join(packages)},)))"
    for file in run(str(python), "-c", script).split():
        assert Path(file).resolve().is_relative_to(place.resolve())
    listed = run("vtcore", "plugins", "list")
    for folder in FOLDERS[1:]:
        assert folder.name in listed
    run("vtcore", "make-checkpoint", "--arch", "qwen3_5_dense", "--size", "tiny", "tiny")
    shown = run("vtcore", "generate", "tiny", "--prompt", "The quick brown fox", "--max-tokens", "8")
    assert len(shown.strip()) > 0
