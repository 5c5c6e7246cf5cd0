"""SIGTERM ends a command as Ctrl-C does, so that what is finished is kept and said, with another exit code.

A `KeyboardInterrupt` may carry a text: what of the work is kept.

Does not: act outside the main thread, or where the program handles SIGTERM itself.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vtcore.cli.terminal import say
from vtcore.engine.interrupts import interrupt

EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells report it."""
EXIT_TERMINATED = 143
"""SIGTERM: 128 + SIGTERM."""

_came = threading.Event()


def is_terminated() -> bool:
    """Whether the `KeyboardInterrupt` at hand is a SIGTERM, after which nothing goes on."""
    return _came.is_set()


def interrupted_code() -> int:
    """The exit code for the `KeyboardInterrupt` at hand."""
    return EXIT_TERMINATED if is_terminated() else EXIT_INTERRUPTED


def say_interrupted(error: KeyboardInterrupt, kept: str = "") -> int:
    """Say that the command was interrupted, on a line of its own.

    Args:
        error: The one at hand.
        kept: What of the work is kept, where `error` does not say it.

    Returns:
        The exit code.
    """
    text = str(error) or kept
    # At a terminal the cursor stands behind the `^C` that it shows, or behind the text made so far.
    begin = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""
    say(f"{begin}interrupted: {text}" if text else f"{begin}interrupted")
    return interrupted_code()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM raises what Ctrl-C does, where Ctrl-C does."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    _came.clear()
    try:
        signal.signal(signal.SIGTERM, _terminate)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    _came.set()
    # A step that is running puts it off until its results are written.
    interrupt()
