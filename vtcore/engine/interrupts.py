"""Ctrl-C waits for the end of the step that it meets.

Does not: swallow it, or wait at all outside the main thread or where the program handles SIGINT itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside, the first Ctrl-C is kept and raised at the end; a second one is raised at once.

    Raises:
        KeyboardInterrupt: At the end, if one came.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def keep(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        # The second one meets the default handler, whatever happens here meanwhile.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        signal.signal(signal.SIGINT, keep)
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
