"""`vtcore pull` where no network is involved: local directories, sources of plugins, wrong input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

SOURCE = """
from pathlib import Path
from vtcore import hookimpl
from vtcore.interfaces.checkpoint_source import CheckpointSource
from vtcore.interfaces.registry_entries import CheckpointSourceEntry

VTCORE_API = {"checkpoint_sources": "0.1"}

class Shelf(CheckpointSource):
    def fetch(self, request):
        return Path(request.download_dir) / request.model / (request.revision or "latest")

@hookimpl
def vtcore_register_checkpoint_sources():
    return [CheckpointSourceEntry(name="shelf", implementation=__name__ + ":Shelf")]
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shelf") / "tiny" / "v2"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    (tmp_path / "shelf.py").write_text(SOURCE)
    return str(tmp_path / "shelf.py")


def test_a_local_directory_is_checked_and_printed(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", str(checkpoint)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{checkpoint}\n"
    assert shown.err.startswith(f"{checkpoint}: whole, 8 files, ")


def test_a_plugins_source_is_asked_with_the_flags(
    checkpoint: Path, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--revision", "v2", "--download-dir", str(checkpoint.parent.parent), "--plugin", plugin]
    assert main(["pull", "shelf://tiny", *flags]) == 0
    assert capsys.readouterr().out == f"{checkpoint}\n"


def test_half_a_checkpoint_is_an_error_that_counts_what_is_missing(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in checkpoint.iterdir():
        if file.name != "model-00002-of-00002.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert main(["pull", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(
        f"error[VT229]: {tmp_path} lacks 1 of 2 weight files, first model-00002-of-00002.safetensors "
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pull", "shlef://x"], r"'shlef' is offered by no installed plugin"),
        (["pull", "hub"], "the hub needs an id: ORG/NAME"),
        (["pull", "./nothing"], "does not exist"),
        (["pull", ""], "the text is empty"),
        (["pull"], "MODEL"),
        (["pull", "x", "--dtype", "float32"], "unknown flag '--dtype'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = [line for line in shown.err.splitlines() if line.startswith("error[")]
    assert message in line


def test_a_local_directory_needs_neither_torch_nor_the_hubs_library(checkpoint: Path) -> None:
    code = (
        "import sys\n"
        "from vtcore.cli.main import main\n"
        f"assert main(['pull', {str(checkpoint)!r}]) == 0\n"
        "assert not {'torch', 'huggingface_hub', 'httpx', 'httpx2'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
