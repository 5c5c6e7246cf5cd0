"""Ctrl-C waits for the end of the step that it meets.

Does not: swallow it, or wait at all outside the main thread or where the program handles SIGINT itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from attrs import define


@define
class _Deferral:
    """A stretch of the main thread that is not to be broken off; `came` says that an interrupt waits."""

    came: bool = False


_current: _Deferral | None = None


def interrupt() -> None:
    """For handlers of signals: raise KeyboardInterrupt, or leave that to the end of a deferral.

    Raises:
        KeyboardInterrupt: Nothing is deferred, or this is the second one in a deferral.
    """
    if _current is None or _current.came:
        raise KeyboardInterrupt
    _current.came = True


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside, the first interrupt is kept and raised at the end; a second one is raised at once.

    Where SIGINT is ignored, as in background jobs of a shell, it stays so; other signals call `interrupt`.

    Raises:
        KeyboardInterrupt: At the end, if one came.
    """
    global _current
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or _current is not None or before not in (signal.default_int_handler, signal.SIG_IGN):
        yield
        return
    deferral = _current = _Deferral()
    try:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_sigint)
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
        _current = None
    if deferral.came:
        raise KeyboardInterrupt


def _on_sigint(number: int, frame: FrameType | None) -> None:
    interrupt()
