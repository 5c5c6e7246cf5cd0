"""What a command prints: at a terminal control characters show as escapes, elsewhere every byte is kept.

Text of a model, a prompt or a checkpoint is foreign: raw, its control characters could retitle the terminal,
type into it, or hide what was said before.

Does not: know what is printed, or touch descriptors of others.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vtcore.errors import HostError

_STDOUT, _STDERR = 1, 2
_FOREIGN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 but for tab and newline, DEL, C1, and what turns the direction of letters around."""


def escaped(text: str) -> str:
    """The text with what would act on a terminal written as `\\x1b` or `\\u202e`."""
    return _FOREIGN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def say(text: str, *, flush: bool = False) -> None:
    """Print a line on stderr, escaped if that is a terminal; nothing where stderr is closed."""
    if sys.stderr is not None:
        print(escaped(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=flush)


class _LogLines(logging.Formatter):
    """Of the handler that shows warnings where nobody configured logging; they quote others too."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return escaped(text) if sys.stderr is not None and sys.stderr.isatty() else text


class _Stdout(io.TextIOWrapper):
    """Stdout that escapes at a terminal, and whose errors say that they are its own."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._is_terminal = stream.isatty()
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            # Generated text is any text; a terminal of fewer letters gets escapes rather than an error.
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
        )

    def write(self, text: str) -> int:
        with _own_errors():
            super().write(escaped(text) if self._is_terminal else text)
        return len(text)

    def flush(self) -> None:
        with _own_errors():
            super().flush()


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(
            f"stdout cannot be written: {error.strerror or error}; free some space there, or send the output "
            f"elsewhere"
        ) from error


class _StartLines(logging.Handler):
    """Shows what a GPU's start did: it takes seconds, and the captured sizes are nowhere else."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), flush=True)


def _show_start() -> None:
    log = logging.getLogger("vtcore.gpu_start")
    if not logging.getLogger().handlers and not log.handlers:
        log.addHandler(_StartLines())
        log.setLevel(logging.INFO)
        log.propagate = False


@contextmanager
def guarded_output() -> Iterator[None]:
    """Inside, `sys.stdout` and log lines escape at a terminal; at the end all of stdout has been written.

    Raises:
        HostError: It could not be written, for a full disk for example.
        BrokenPipeError: Its reader went away.
    """
    stream = sys.stdout
    _show_start()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LogLines())
    for descriptor, end in ((_STDOUT, stream), (_STDERR, sys.stderr)):
        if end is None:
            _occupy(descriptor)
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    stream.flush()
    sys.stdout = guarded = _Stdout(stream)
    try:
        try:
            yield
        except SystemExit:
            # Of --help.
            guarded.flush()
            raise
        # A closed pipe or a full disk shows itself here rather than in the interpreter's last flush.
        guarded.flush()
    finally:
        sys.stdout = stream
        _let_go(guarded)


def _let_go(guarded: _Stdout) -> None:
    """Leave the stream beneath as it was; what it cannot take is dropped, for it was said already."""
    try:
        guarded.detach()
    except (OSError, HostError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, guarded.fileno())
        os.close(sink)
        with suppress(OSError, HostError):
            guarded.detach()


def _occupy(descriptor: int) -> None:
    """Where a standard descriptor is closed, keep files from getting its number: libraries print to it."""
    try:
        os.fstat(descriptor)
    except OSError:
        sink = os.open(os.devnull, os.O_WRONLY)
        if sink != descriptor:
            os.dup2(sink, descriptor)
            os.close(sink)


def check_stdout() -> None:
    """Refuse to begin what would end in nothing.

    Raises:
        HostError: Stdout is closed.
    """
    if sys.stdout is None:
        raise HostError("stdout is closed; leave it open, or send the output to a file with > FILE")
