"""Files of a simulation are whole or absent: interruptions, folders, links, permissions, pipes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtcore.cli.main import main
from vtcore.simulation import trace_file
from vtcore.simulation.trace import TraceRequest
from vtcore.simulation.whole_file import check_place, write_whole


def broken_off() -> Iterator[bytes]:
    yield b"half"
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", [None, b"earlier"])
def test_what_is_broken_off_leaves_what_was_there(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(KeyboardInterrupt):
        write_whole(str(path), broken_off())
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_ctrl_c_while_a_trace_is_written_is_said_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_line, written = trace_file._as_line, []

    def interrupted(request: TraceRequest) -> object:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(request)
        return as_line(request)

    monkeypatch.setattr(trace_file, "_as_line", interrupted)
    flags = ["simulate", "--workload", "poisson", "--requests", "9"]
    assert main([*flags, "--write-trace", str(tmp_path / "t.jsonl")]) == 130
    assert capsys.readouterr().err == "interrupted; --write-trace is not written\n"
    assert len(written) == 5
    assert list(tmp_path.iterdir()) == []


def test_links_are_followed_and_permissions_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(str(link), [b"n", b"ew"])
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_pipe_is_written_to_directly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        path = f"/proc/self/fd/{writer}"
        check_place(path)
        write_whole(path, [b"through"])
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
        os.close(writer)


def test_an_open_file_named_by_its_descriptor_is_not_replaced(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file:
        write_whole(f"/dev/fd/{file.fileno()}", [b"first"])
        file.seek(0, os.SEEK_END)
        file.write(b", second")
    assert (tmp_path / "out").read_bytes() == b"first, second"


@pytest.mark.parametrize(
    ("path", "error"), [("no/x", FileNotFoundError), ("file/x", NotADirectoryError), (".", IsADirectoryError)]
)
def test_a_place_that_cannot_take_a_file_is_known_before(
    path: str, error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(error) as found:
        check_place(path)
    assert found.value.filename == path
    with pytest.raises(error) as found:
        write_whole(path, [b""])
    assert found.value.filename == path
    check_place("file")
    check_place("new")
