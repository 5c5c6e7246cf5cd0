"""What is printed: escapes at a terminal and there only, a closed or full stdout, and no others in it."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import vtcore.cli
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.cli.terminal import escaped

CODE = """
import logging, sys, types
from vtcore.cli import main as cli
from vtcore.cli.terminal import say
from vtcore.errors import ConfigError
TEXT = {text!r}
def run(args):
    print(TEXT, end="")
    say(TEXT)
    logging.getLogger("vtcore.x").warning("%s", TEXT)
    raise ConfigError(TEXT)
m = types.ModuleType("m")
m.add_parser, m.run = lambda s: s.add_parser("act"), run
sys.modules["m"] = m
cli.COMMANDS = {{"act": ("m", "")}}
sys.exit(cli.main(["act"]))
"""
FOREIGN = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
)
PLAIN = "a\tb\n~\xa0\u2029\u202f\u2065\u206a\U0001f600é"
PRINTING = """
import os
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

print("from print", flush=True)
os.write(1, b"from compiled code\\n")
VTCORE_API = {"scheduler_policies": "0.1"}

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="good", implementation="vtcore.scheduling.policies.fcfs:FcfsPolicy")]
"""


def run_at_terminal(*command: str) -> str:
    """What shows up on a terminal that has both streams, with its own line ends put back."""
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(master)
    process.wait()
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


def test_every_control_character_but_tab_and_newline_becomes_letters() -> None:
    shown = escaped(FOREIGN)
    assert shown.startswith(r"\x00\x01\x02\x03\x04\x05\x06\x07\x08" + "\t\n" + r"\x0b\x0c\x0d\x0e")
    assert shown.endswith(r"\x9f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert set(shown) <= set("\t\n\\xu0123456789abcdef")
    assert escaped(PLAIN) == PLAIN


def test_a_terminal_gets_escapes_on_both_streams_and_a_pipe_gets_the_text() -> None:
    text = "a\x1b]0;title\x07\x9b2J\u202eb"
    command = [sys.executable, "-c", CODE.format(text=text)]
    safe = r"a\x1b]0;title\x07\x9b2J\u202eb"
    shown = run_at_terminal(*command)
    # Stdout has no end of its own; whichever stream comes first, neither has a raw character.
    assert shown.count(safe) == 4
    assert shown.replace(safe, "").replace("\n", "") == "error[VT201]: more: vtcore explain VT201"
    piped = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert piped.stdout == text
    assert piped.stderr == f"{text}\n{text}\nerror[VT201]: {text}\nmore: vtcore explain VT201\n"


def test_commands_print_to_stderr_through_say_alone() -> None:
    """A message that quotes a checkpoint is otherwise easily printed raw."""
    found = []
    for file in Path(vtcore.cli.__file__ or "").parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "file"
                and ast.unparse(node.value) == "sys.stderr"
            ):
                found.append(file.name)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "sys.stderr.write",
                "traceback.print_exc",
            ):
                found.append(file.name)
    assert found == ["terminal.py"]


def shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A line of sh in which "$@" is `vtcore WORDS`."""
    vtcore_words = [sys.executable, "-m", "vtcore.cli.main", *words]
    return subprocess.run(
        ["sh", "-c", line, "sh", *vtcore_words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "absent", "--prompt", "x"),
        ("generate", "absent", "--prompt-token-ids", "5", "--json"),
        ("generate", "absent", "--input", "absent", "--output", "-"),
        ("chat", "absent"),
        ("check", "absent"),
        ("explain",),
        ("plugins", "list"),
    ],
    ids=" ".join,
)
def test_a_closed_stdout_is_refused_before_the_model_is_looked_for(words: tuple[str, ...]) -> None:
    done = shell('"$@" >&-', *words)
    assert done.returncode == 3
    assert done.stderr == (
        "error[VT301]: stdout is closed; leave it open, or send the output to a file with > FILE\n"
        "more: vtcore explain VT301\n"
    )


def test_results_that_go_to_a_file_need_no_stdout_and_get_nothing_else(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "prints.py").write_text(PRINTING)
    files = ("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"))
    more = ("--max-tokens", "2", "--plugin", str(tmp_path / "prints.py"))
    done = shell('"$@" >&-', "generate", str(tiny), *files, *more)
    assert done.returncode == 0, done.stderr
    [line] = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["prompt"] == "x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("explain",), ("--help",), ("--version",)], ids=" ".join)
def test_a_full_disk_behind_stdout_is_named_with_its_remedy(words: tuple[str, ...]) -> None:
    done = shell('"$@" > /dev/full', *words)
    assert done.returncode == 3
    assert done.stderr == (
        "error[VT301]: stdout cannot be written: No space left on device; free some space there, or send the "
        "output elsewhere\nmore: vtcore explain VT301\n"
    )


@pytest.mark.parametrize("line", ['"$@"', '"$@" 2>&-'])
@pytest.mark.parametrize(
    "words",
    [
        ("check", "--json"),
        ("generate", "--json", "--prompt", "x", "--max-tokens", "2"),
        ("generate", "--input", "in.jsonl", "--output", "-", "--max-tokens", "2"),
    ],
    ids=" ".join,
)
def test_what_plugins_print_is_not_in_the_result(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"prompt": "x"}\n')
    Path("prints.py").write_text(PRINTING)
    done = shell(line, words[0], str(tiny), *words[1:], "--plugin", "prints.py")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    if line == '"$@"':
        assert "from print\n" in done.stderr
        assert "from compiled code\n" in done.stderr
