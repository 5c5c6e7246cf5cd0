"""`vtcore chat`: turns from a pipe and from a terminal, its commands, Ctrl-C, and a full context."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from vtcore import LLM, SamplingParams
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

FLAGS = ("--dtype", "float64", "--num-blocks", "24", "--block-size", "32", "--max-model-len", "512")
SHORT = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")
PATIENCE_S = 120.0
PRESS_AGAIN_S = 3.0

Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture
def chat(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """Lines on stdin -> exit code, stdout, stderr."""

    def run(lines: str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code = main(["chat", str(tiny_checkpoint), *FLAGS, *flags])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def expected(directory: Path, *turns: str, system: str | None = None, **kwargs: Any) -> list[str]:
    """The answers, each given the ones before."""
    history: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    answers = []
    with LLM(str(directory), dtype="float64", num_blocks=24, block_size=32, max_model_len=512) as llm:
        for turn in turns:
            history.append({"role": "user", "content": turn})
            [output] = llm.chat(history, params, chat_template_kwargs=kwargs, use_tqdm=False)
            answers.append(output.outputs[0].text)
            history.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_each_line_of_a_pipe_is_a_turn_with_the_history_before_it(chat: Chat, tiny_checkpoint: Path) -> None:
    code, out, err = chat("hello\n\nand you?\n", *SHORT)
    assert code == 0
    assert out == "".join(answer + "\n" for answer in expected(tiny_checkpoint, "hello", "and you?"))
    assert err == "the answer ends here, at --max-tokens 6\n" * 2


def test_system_message_and_thinking_change_what_the_model_reads(chat: Chat, tiny_checkpoint: Path) -> None:
    plain = expected(tiny_checkpoint, "hello")
    brief = expected(tiny_checkpoint, "hello", system="be brief")
    silent = expected(tiny_checkpoint, "hello", enable_thinking=False)
    assert len({*plain, *brief, *silent}) == 3
    assert chat("hello\n", *SHORT, "--system", "be brief")[1] == brief[0] + "\n"
    turns = ("/system be brief", "/system", "/think off", "/think on")
    lines = "".join(f"{turn}\nhello\n/clear\n" for turn in turns)
    code, out, err = chat(lines, *SHORT)
    assert (code, out) == (0, "".join(f"{answer}\n" for answer in (*brief, *plain, *silent, *plain)))
    for note in ("the system message is set", "there is no system message now", "thinking is off"):
        assert note in err


def test_clear_forgets_the_conversation_and_exit_leaves(chat: Chat, tiny_checkpoint: Path) -> None:
    [answer] = expected(tiny_checkpoint, "hello")
    assert chat("hello\n/clear\nhello\n/exit\nhello\n", *SHORT)[:2] == (0, f"{answer}\n{answer}\n")


def test_help_names_every_command_and_a_typo_gets_a_guess(chat: Chat) -> None:
    code, out, err = chat("/help\n/clera\n/think maybe\n/clear now\n")
    assert (code, out) == (2, "")
    for command in ("/clear", "/system", "/think", "/help", "/exit"):
        assert f"  {command} " in err
    assert "unknown command '/clera'; did you mean '/clear'? (// sends a line that begins with /)" in err
    assert "/think takes on or off, found 'maybe'" in err
    assert "/clear takes nothing after it, found 'now'" in err


def test_a_line_that_begins_with_two_slashes_is_a_turn(chat: Chat, tiny_checkpoint: Path) -> None:
    assert chat("//etc\n", *SHORT)[1] == expected(tiny_checkpoint, "/etc")[0] + "\n"


def test_a_full_context_is_said_once_per_turn_and_clear_goes_on(chat: Chat) -> None:
    lines = "hello\nhello\n/clear\nhello\n"
    code, out, err = chat(lines, "--max-model-len", "48", "--temperature", "0", "--ignore-eos")
    assert code == 2
    assert len(out.splitlines()) >= 2
    full = "the context of 48 tokens is full, so the answer ends here; /clear starts a new conversation\n"
    over = r"the conversation has \d+ tokens and fills the context of 48; /clear starts a new one\n"
    assert re.fullmatch(f"{full}{over}the conversation is forgotten\n{full}", err)


def test_an_error_of_the_template_costs_its_turn_only(
    chat: Chat, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(
        "{% if messages[-1].content == 'no' %}{{ raise_exception('I will not.') }}{% endif %}"
        "{{ messages | length }} {{ messages[-1].content }}"
    )
    code, out, err = chat("a\nno\n/think on\nb\n", *SHORT, "--chat-template", str(file))
    assert code == 2
    assert "error[VT241]: I will not.\nmore: vtcore explain VT241\n" in err
    assert "this model's chat template has no switch for thinking" in err
    with LLM(str(tiny_checkpoint), dtype="float64", num_blocks=24, block_size=32, max_model_len=512) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        texts = [o.outputs[0].text for o in llm.generate(["1 a", "3 b"], params, use_tqdm=False)]
    assert out == "".join(f"{text}\n" for text in texts)


def test_what_cannot_chat_says_so_at_the_start(
    chat: Chat, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = chat("hello\n", "--skip-tokenizer-init")
    assert (code, out) == (2, "")
    assert err.startswith("error[VT203]: chat is text, and --skip-tokenizer-init makes none; leave it out\n")
    code, out, err = chat("hello\n", "--chat-template", str(tmp_path / "absent"))
    assert (code, out) == (2, "")
    assert "absent" in err
    code, _, err = chat("hello\n", "--temperature", "hot")
    assert code == 2
    assert "--temperature" in err
    monkeypatch.setattr("vtcore.llm.load_engine", lambda options: pytest.fail("the weights were loaded"))
    assert chat("hello\n", "--min-tokens", "9", "--max-tokens", "3")[0] == 2
    assert chat("hello\n", "--skip-tokenizer-init")[0] == 2
    monkeypatch.setattr("sys.stdin", None)
    assert main(["chat", str(tiny_checkpoint), *FLAGS]) == 2


class Terminal:
    """A `vtcore chat` on a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "vtcore.cli.main", "chat", *argv]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, pattern: str) -> str:
        """Read until the pattern appears; return and drop what came up to its end."""
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._master, 65536).decode("utf-8", "replace")
                except OSError:
                    raise AssertionError(f"it ended without {pattern!r}: {self.text!r}") from None
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, keys: str, pattern: str) -> None:
        """Press keys, again if they were missed as `exit_code` says, until the pattern shows."""
        end, again = time.monotonic() + PATIENCE_S, 0.0
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text
            if time.monotonic() > again:
                self.type(keys)
                again = time.monotonic() + PRESS_AGAIN_S
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        self.wait_for(pattern)

    def exit_code(self, press: str) -> int:
        """Press a key to leave, and read to the end, so that the process never waits for a reader."""
        end, again = time.monotonic() + PATIENCE_S, 0.0
        while self.process.poll() is None:
            now = time.monotonic()
            assert now < end, self.text
            # Python's own readline misses a signal that comes just before it starts to wait.
            if now > again:
                self.type(press)
                again = now + PRESS_AGAIN_S
            try:
                if select.select([self._master], [], [], 0.1)[0]:
                    self.text += os.read(self._master, 65536).decode("utf-8", "replace")
            except OSError:
                break
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    """Make the terminal the process's own, so that its Ctrl-C is a SIGINT."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def terminal(tiny_checkpoint: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*flags: str) -> Terminal:
        opened.append(Terminal(str(tiny_checkpoint), *FLAGS, *flags))
        opened[-1].wait_for("/help lists commands")
        opened[-1].wait_for("> ")
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_ctrl_c_stops_an_answer_keeps_it_and_leaves_at_the_prompt(
    terminal: Callable[..., Terminal],
) -> None:
    long = terminal("--max-model-len", "32768", "--num-blocks", "1025", "--temperature", "0", "--ignore-eos")
    long.type("hello\n")
    long.wait_for(r"hello\r?\n[\s\S]{40}")
    long.type("\x03")
    long.wait_for("stopped; what there is of the answer is kept")
    long.wait_for("> ")
    long.type("/help\n")
    long.wait_for("/exit .*\n")
    long.wait_for("> ")
    long.type("again\n")
    long.wait_for(r"again\r?\n[\s\S]{40}")
    long.type("\x03")
    long.wait_for("stopped")
    long.wait_for("> ")
    assert long.exit_code("\x03") == 130
    assert "Traceback" not in long.text


def test_the_first_ctrl_c_at_the_prompt_drops_the_line_and_a_line_between_counts_anew(
    terminal: Callable[..., Terminal],
) -> None:
    one = terminal(*SHORT)
    for _ in range(2):
        one.press("half a line\x03", "Ctrl-C again leaves; so does Ctrl-D")
        one.wait_for("> ")
        one.type("/think maybe\n")
        one.wait_for("found 'maybe'")
        one.wait_for("> ")
    assert one.exit_code("\x03") == 130


def test_sigterm_leaves_a_chat_with_143(terminal: Callable[..., Terminal]) -> None:
    long = terminal("--max-model-len", "32768", "--num-blocks", "1025", "--temperature", "0", "--ignore-eos")
    long.type("hello\n")
    long.wait_for(r"hello\r?\n[\s\S]{40}")
    long.process.send_signal(signal.SIGTERM)
    assert long.exit_code("") == 143
    assert "Traceback" not in long.text


def test_control_characters_of_an_answer_show_as_escapes_at_a_terminal_only(
    terminal: Callable[..., Terminal], chat: Chat, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    [escape] = tokenizer.encode("\x1b").ids
    flags = ("--max-tokens", "2", "--ignore-eos", "--allowed-token-ids", str(escape))
    one = terminal(*flags)
    one.type("hello\n")
    shown = one.wait_for("ends here")
    assert r"\x1b\x1b" in shown
    assert "\x1b\x1b" not in shown
    assert chat("hello\n", *flags)[1] == "\x1b\x1b\n"


def test_ctrl_d_leaves_with_0(terminal: Callable[..., Terminal]) -> None:
    one = terminal(*SHORT)
    one.type("hello\n")
    one.wait_for("ends here, at --max-tokens 6")
    one.wait_for("> ")
    one.type("/clera\n")
    one.wait_for("did you mean '/clear'")
    one.wait_for("> ")
    assert one.exit_code("\x04") == 0


class Interrupting(io.StringIO):
    """A stdout that meets Ctrl-C once, as soon as it holds some letters."""

    def __init__(self, num_letters: int) -> None:
        super().__init__()
        self._left = num_letters

    def flush(self) -> None:
        if 0 < self._left <= len(self.getvalue()):
            self._left = 0
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("num_letters", [1, 10, 50])
def test_what_was_shown_of_a_stopped_answer_is_the_history(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, num_letters: int
) -> None:
    from vtcore.cli.chat import Session
    from vtcore.engine.chat import build_chat_renderer

    with LLM(str(tiny_checkpoint), dtype="float64", num_blocks=24, max_model_len=512) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        session = Session(llm.engine, build_chat_renderer(llm.engine), params, None)
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
        monkeypatch.setattr("sys.stdout", out := Interrupting(num_letters))
        assert session.run() == 0
        assert not llm.engine.has_unfinished_requests
    roles = [message["role"] for message in session.history]
    first, second = session.history[1]["content"], session.history[3]["content"]
    assert roles == ["user", "assistant"] * 2
    assert num_letters <= len(first) < len(second)
    assert out.getvalue() == f"{first}\n{second}\n"
