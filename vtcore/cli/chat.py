"""`vtcore chat`: a conversation with a model on the terminal, or one turn per line of a pipe.

Does not: render or generate itself, or keep a conversation after it ends.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from vtcore.cli.engine_flags import add_engine_flags, print_notes
from vtcore.cli.interruption import is_terminated
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.sampling_flags import add_sampling_flags, cli_params, read_flags
from vtcore.cli.terminal import say
from vtcore.engine.interrupts import interrupts_deferred
from vtcore.errors import RequestError, UsageError
from vtcore.suggest import did_you_mean

if TYPE_CHECKING:
    from vtcore.engine.chat import ChatRenderer
    from vtcore.engine.engine import Engine
    from vtcore.outputs import RequestOutput
    from vtcore.request import SamplingParams

COMMANDS = {
    "/clear": "forget the conversation, keep the system message",
    "/system": "TEXT: set the system message; without TEXT: have none",
    "/think": "on|off: let the model think before it answers, where its chat template knows how",
    "/help": "list these commands",
    "/exit": "leave; so does Ctrl-D",
}
"""Command -> what it does. A line that is meant to begin with / begins with //."""

_THINKING = "enable_thinking"
_USELESS = ("n", "logprobs", "prompt_logprobs", "detokenize")
_FAILED = 2


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description="Talk to a model. Ctrl-C stops an answer and keeps it; at the prompt it drops the line, "
        "and leaves when it comes again. "
        "Without a terminal each line of stdin is a turn.",
    )
    parser.add_argument("model", metavar="MODEL", help="directory, checkpoint source or Hub id")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_sampling_flags(parser, leave_out=_USELESS)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load, talk until the input ends."""
    given, options = read_flags(args)
    if options.options.skip_tokenizer_init:
        raise UsageError("chat is text, and --skip-tokenizer-init makes none; leave it out")
    print_notes(options)
    if sys.stdin is None:
        raise UsageError("stdin is closed; chat reads its turns from there")

    from vtcore.engine.chat import build_chat_renderer
    from vtcore.llm import load_engine

    with others_print_to_stderr():
        engine = load_engine(options)
    try:
        renderer = build_chat_renderer(engine)
        renderer.choose_template()
        session = Session(engine, renderer, cli_params(engine.sampling_defaults, given), args.system)
        if sys.stdin.isatty():
            _tell(f"{args.model}, {engine.max_model_len} tokens of context; /help lists commands")
            if engine.loaded.hf_config.get("vtcore_random_weights"):
                _tell("random weights: gibberish on purpose")
        return session.run()
    finally:
        engine.close()


class Session:
    """One conversation.

    Args:
        engine: Not closed here.
        renderer: The engine's.
        params: Of every answer.
        system: The system message; None for none.

    Attributes:
        history: Questions and answers so far, without the system message.
    """

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, params: SamplingParams, system: str | None
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._params = params
        self._system = system
        self._thinking: bool | None = None
        self.history: list[dict[str, str]] = []

    def run(self) -> int:
        """Take turns until the input ends.

        Returns:
            0; 2 when the turns came from a pipe and one of them failed.
        """
        is_tty = sys.stdin.isatty()
        num_failed = 0
        if is_tty:
            _use_readline()
        while (line := _read_line(is_tty)) is not None:
            text = line.strip()
            if text == "/exit":
                break
            if text:
                num_failed += not self._take(text)
        return _FAILED if num_failed and not is_tty else 0

    def _take(self, text: str) -> bool:
        """Do what a line asks for; False when it could not be done."""
        if text.startswith("/") and not text.startswith("//"):
            return self._command(text)
        return self._answer(text.removeprefix("/"))

    def _command(self, text: str) -> bool:
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name not in COMMANDS:
            guess = did_you_mean(name, COMMANDS)
            _tell(f"unknown command {name!r}{guess} (// sends a line that begins with /)")
            return False
        if name == "/system":
            self._system = rest or None
            _tell("the system message is set" if rest else "there is no system message now")
            return True
        if name == "/think":
            return self._set_thinking(rest)
        if rest:
            _tell(f"{name} takes nothing after it, found {rest!r}")
            return False
        if name == "/clear":
            self.history.clear()
            _tell("the conversation is forgotten")
        else:
            for command, about in COMMANDS.items():
                _tell(f"  {command:8} {about}")
        return True

    def _set_thinking(self, word: str) -> bool:
        if word not in ("on", "off"):
            _tell(f"/think takes on or off, found {word!r}")
            return False
        if _THINKING not in self._renderer.choose_template().source:
            _tell("this model's chat template has no switch for thinking")
            return False
        self._thinking = word == "on"
        _tell(f"thinking is {word}")
        return True

    def _answer(self, text: str) -> bool:
        """Ask, print the answer as it grows, and keep both; on an error keep neither."""
        from vtcore.engine.chat import ChatRequest

        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        question = {"role": "user", "content": text}
        kwargs = None if self._thinking is None else {_THINKING: self._thinking}
        try:
            prompt = self._renderer.prompt(
                ChatRequest(messages=[*system, *self.history, question], template_kwargs=kwargs)
            )
            if len(prompt.token_ids) >= self._engine.max_model_len:
                _tell(
                    f"the conversation has {len(prompt.token_ids)} tokens and fills the context of "
                    f"{self._engine.max_model_len}; /clear starts a new one"
                )
                return False
            request_id = self._engine.add_request(prompt, self._params)
        except RequestError as error:
            _tell(f"error[{error.code}]: {error}\nmore: vtcore explain {error.code}")
            return False
        output, is_stopped = self._stream(request_id)
        sample = output.outputs[0]
        self.history += [question, {"role": "assistant", "content": sample.text}]
        if is_stopped:
            _tell("stopped; what there is of the answer is kept")
        elif sample.finish_reason == "length":
            _tell(self._why_cut(len(prompt.token_ids) + len(sample.token_ids)))
        return True

    def _stream(self, request_id: str) -> tuple[RequestOutput, bool]:
        """Print the answer; Ctrl-C ends it.

        Returns:
            The output so far, and whether it was stopped.
        """
        shown, output, is_stopped = 0, None, False
        try:
            while output is None or not output.finished:
                # What a step gave is shown and counted before Ctrl-C ends the answer.
                with interrupts_deferred():
                    for new in self._engine.step():
                        # A step that a second Ctrl-C broke off leaves an older request's output to this one.
                        if new.request_id == request_id:
                            output = new
                            print(output.outputs[0].text[shown:], end="", flush=True)
                            shown = len(output.outputs[0].text)
        except KeyboardInterrupt:
            if is_terminated():
                raise
            is_stopped = True
            output = self._stop(request_id) or output
        except BaseException:
            self._engine.abort(request_id)
            raise
        assert output is not None
        print(output.outputs[0].text[shown:])
        return output, is_stopped

    def _stop(self, request_id: str) -> RequestOutput | None:
        output = self._engine.abort(request_id)
        if output is not None:
            return output
        # It ended in the very step that was interrupted.
        return next((new for new in self._engine.step() if new.request_id == request_id), None)

    def _why_cut(self, num_tokens: int) -> str:
        if num_tokens >= self._engine.max_model_len:
            return (
                f"the context of {self._engine.max_model_len} tokens is full, so the answer ends here; "
                f"/clear starts a new conversation"
            )
        return f"the answer ends here, at --max-tokens {self._params.max_tokens}"


def _read_line(is_tty: bool) -> str | None:
    """The next line; None at the end of the input. At a terminal the first Ctrl-C drops what was typed.

    Raises:
        UsageError: The input is not text.
        KeyboardInterrupt: Two Ctrl-C in a row, one in a pipe, or SIGTERM.
    """
    was_interrupted = False
    try:
        while is_tty:
            try:
                return input("> ")
            except KeyboardInterrupt:
                print()
                if was_interrupted or is_terminated():
                    raise
                was_interrupted = True
                _tell("Ctrl-C again leaves; so does Ctrl-D")
        return sys.stdin.readline() or None
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not text in {error.encoding} (byte {error.start})") from error


def _use_readline() -> None:
    """Line editing and the arrow keys, for `input`, where Python was built with them."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)


def _tell(text: str) -> None:
    """A note about the conversation; stdout is the answers alone."""
    say(text, flush=True)
