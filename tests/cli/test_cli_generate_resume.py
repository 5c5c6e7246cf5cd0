"""A broken-off `vtcore generate --input` loses nothing finished; taken up again it ends in the same bytes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

FLAGS = (
    "--device",
    "cpu",
    "--dtype",
    "float64",
    "--num-blocks",
    "24",
    "--max-model-len",
    "96",
    "--max-num-seqs",
    "3",
    "--ignore-eos",
)
NUM_LINES = 14
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture(scope="module")
def source(checkpoint: Path) -> Path:
    """Lines of many lengths, so that they finish in another order than they stand."""
    lengths = [(7 * i) % 24 + 5 for i in range(NUM_LINES)]
    lines = [
        {"prompt": f"prompt {i}", "id": i, "sampling_params": {"max_tokens": n}}
        for i, n in enumerate(lengths)
    ]
    path = checkpoint.parent / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def whole(checkpoint: Path, source: Path) -> bytes:
    """The output of a run that nothing disturbed."""
    sink = checkpoint.parent / "whole.jsonl"
    assert main(words(checkpoint, source, sink)) == 0
    return sink.read_bytes()


def words(checkpoint: Path, source: Path, sink: Path, *more: str) -> list[str]:
    return ["generate", str(checkpoint), "--input", str(source), "--output", str(sink), *FLAGS, *more]


def test_lines_stand_in_order_when_all_are_done(whole: bytes) -> None:
    assert [json.loads(line)["line"] for line in whole.splitlines()] == list(range(1, NUM_LINES + 1))


@pytest.mark.parametrize(
    ("number", "code", "shell"),
    [(signal.SIGINT, 130, ""), (signal.SIGTERM, 143, ""), (signal.SIGTERM, 143, "trap '' INT; ")],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in the background"],
)
def test_a_signal_keeps_what_is_finished_and_the_same_command_goes_on(
    checkpoint: Path, source: Path, whole: bytes, tmp_path: Path, number: int, code: int, shell: str
) -> None:
    sink = tmp_path / "out.jsonl"
    argv = words(checkpoint, source, sink)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["sh", "-c", f'{shell}exec "$@"', "sh", sys.executable, "-m", "vtcore.cli.main", *argv],
        stderr=subprocess.PIPE,
        env=env,
        text=True,
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (sink.exists() and sink.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    kept = sink.read_bytes()
    assert kept.endswith(b"\n")
    done = kept.splitlines()
    assert 1 <= len(done) < NUM_LINES
    assert set(done) < set(whole.splitlines())
    assert err.splitlines() == [
        f"interrupted: {len(done)} of {NUM_LINES} are done and kept in {sink}; "
        f"the same command goes on from there"
    ]
    assert main(argv) == 0
    assert sink.read_bytes() == whole


@pytest.mark.parametrize("sigint", [signal.default_int_handler, signal.SIG_IGN], ids=["default", "ignored"])
def test_a_signal_while_a_line_is_written_loses_no_line(
    checkpoint: Path,
    source: Path,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sigint: Any,
) -> None:
    sink = tmp_path / "out.jsonl"
    write, sent = os.write, []

    def writes_and_is_ended(descriptor: int, data: Any) -> int:
        size = write(descriptor, data)
        if bytes(data[:7]) == b'{"line"' and not sent:
            sent.append(size)
            os.kill(os.getpid(), signal.SIGTERM)
        return size

    before = signal.signal(signal.SIGINT, sigint)
    try:
        monkeypatch.setattr(os, "write", writes_and_is_ended)
        assert main(words(checkpoint, source, sink)) == 143
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGINT, before)
    assert sent
    assert set(sink.read_bytes().splitlines()) < set(whole.splitlines())
    assert sink.stat().st_size >= sent[0]
    assert main(words(checkpoint, source, sink)) == 0
    assert sink.read_bytes() == whole


@pytest.mark.parametrize("has_old", [False, True])
def test_an_interrupt_before_anything_is_done_promises_nothing(
    checkpoint: Path,
    source: Path,
    whole: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    has_old: bool,
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    sink = tmp_path / "out.jsonl"
    if has_old:
        sink.write_bytes(whole)
    monkeypatch.setattr("vtcore.llm.load_engine", interrupted)
    assert main(words(checkpoint, source, sink, *["--overwrite"] * has_old)) == 130
    assert capsys.readouterr().err == f"interrupted: none of {NUM_LINES} is done\n"
    assert sink.exists() is has_old


@pytest.mark.parametrize("num_bytes", [1, 8, 30, -1])
def test_a_line_that_a_power_cut_tore_is_made_again(
    checkpoint: Path,
    source: Path,
    whole: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    num_bytes: int,
) -> None:
    lines = whole.splitlines(keepends=True)
    sink = tmp_path / "out.jsonl"
    torn = lines[9][:num_bytes]
    sink.write_bytes(b"".join([*lines[11:], *lines[3:8], torn]))
    assert main(words(checkpoint, source, sink)) == 0
    assert sink.read_bytes() == whole
    assert f"{sink}: a line that was broken off is left out" in capsys.readouterr().err


def test_zeros_that_a_file_system_left_are_dropped(
    checkpoint: Path, source: Path, whole: bytes, tmp_path: Path
) -> None:
    sink = tmp_path / "out.jsonl"
    sink.write_bytes(b"".join(whole.splitlines(keepends=True)[:12]) + bytes(100))
    assert main(words(checkpoint, source, sink)) == 0
    assert sink.read_bytes() == whole


def test_a_finished_run_does_nothing_again_and_new_lines_alone_are_run(
    checkpoint: Path, source: Path, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, longer = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    sink.write_bytes(whole)
    inode = sink.stat().st_ino
    assert main(words(checkpoint, source, sink)) == 0
    assert (sink.read_bytes(), sink.stat().st_ino) == (whole, inode)
    shown = capsys.readouterr().err
    assert shown == f"{NUM_LINES} of {NUM_LINES} are done, in {sink}; nothing was left to do\n"
    longer.write_bytes(source.read_bytes() + b'{"prompt": "new", "sampling_params": {"max_tokens": 2}}\n')
    assert main(words(checkpoint, longer, sink)) == 0
    assert sink.read_bytes().startswith(whole)
    assert json.loads(sink.read_bytes().splitlines()[-1])["prompt"] == "new"


def test_a_chat_template_that_writes_the_time_does_not_make_another_request(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, chat, sink = tmp_path / "template.jinja", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    template.write_text("{{ strftime_now('%f') }}{{ messages[0].content }}")
    chat.write_text(
        '{"messages": [{"role": "user", "content": "x"}], "sampling_params": {"max_tokens": 2}}\n'
    )
    argv = words(checkpoint, chat, sink, "--chat-template", str(template))
    assert main(argv) == 0
    made = sink.read_bytes()
    assert main(argv) == 0
    assert sink.read_bytes() == made
    assert main([*argv, "--default-chat-template-kwargs", '{"enable_thinking": false}']) == 2
    assert "has a result for line 1 that was made from another" in capsys.readouterr().err


def test_results_of_other_requests_are_kept_unless_overwriting_is_asked_for(
    checkpoint: Path, source: Path, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, other, elsewhere = tmp_path / "out.jsonl", tmp_path / "in.jsonl", tmp_path / "elsewhere"
    lines = source.read_bytes().splitlines(keepends=True)
    sink.write_bytes(whole)
    shutil.copytree(checkpoint, elsewhere)
    for directory, changed, more, line in (
        (checkpoint, lines, ("--top-k", "3"), 1),
        (checkpoint, lines, ("--sampling-seed", "3"), 1),
        (checkpoint, lines, ("--seed", "3"), 1),
        (checkpoint, lines, ("--dtype", "float32"), 1),
        (elsewhere, lines, (), 1),
        (checkpoint, [*lines[:4], lines[4].replace(b"prompt 4", b"prompt 5"), *lines[5:]], (), 5),
        (checkpoint, [*lines[:6], b"\n", *lines[6:]], (), 7),
        (checkpoint, lines[:8], (), 9),
    ):
        other.write_bytes(b"".join(changed))
        assert main(words(directory, other, sink, *more)) == 2
        assert f"has a result for line {line} that was made from another" in capsys.readouterr().err
        assert sink.read_bytes() == whole
    other.write_bytes(b"".join(lines[:2]))
    assert main(words(checkpoint, other, sink, "--overwrite")) == 0
    assert sink.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


def test_a_refused_overwrite_keeps_the_old_results(
    checkpoint: Path, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, other = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    sink.write_bytes(whole)
    other.write_text('{"prompt": ""}\n')
    assert main(words(checkpoint, other, sink, "--overwrite")) == 2
    assert sink.read_bytes() == whole


def test_two_runs_do_not_write_one_file(
    checkpoint: Path, source: Path, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = tmp_path / "out.jsonl"
    sink.write_bytes(whole)
    with open(sink, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(words(checkpoint, source, sink)) == 2
    assert "another run is writing" in capsys.readouterr().err


def test_a_full_disk_leaves_whole_lines(checkpoint: Path, source: Path, tmp_path: Path, whole: bytes) -> None:
    sink = tmp_path / "out.jsonl"
    limit = len(whole) // 2
    argv = words(checkpoint, source, sink)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        "from vtcore.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 3
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    kept = sink.read_bytes()
    assert kept.endswith(b"\n")
    assert set(kept.splitlines()) < set(whole.splitlines())
    assert main(argv) == 0
    assert sink.read_bytes() == whole
