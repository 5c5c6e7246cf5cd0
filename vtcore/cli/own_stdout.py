"""Keeps stdout for a command's own result, whatever libraries and plugins print meanwhile.

Does not: silence anything; it goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

_STDOUT, _STDERR = 1, 2


@contextmanager
def others_print_to_stderr() -> Iterator[None]:
    """Inside, `print` and what compiled code writes to descriptor 1 come out on stderr."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            stream.flush()
    try:
        saved = os.dup(_STDOUT)
    except OSError:
        # Closed: there is nothing to keep clean.
        yield
        return
    try:
        with redirect_stdout(sys.stderr):
            try:
                os.dup2(_STDERR, _STDOUT)
                yield
            finally:
                if sys.__stdout__ is not None:
                    sys.__stdout__.flush()
                os.dup2(saved, _STDOUT)
    finally:
        os.close(saved)
