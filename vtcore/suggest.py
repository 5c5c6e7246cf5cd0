"""The one place that guesses what a mistyped name was meant to be.

Does not: decide anything; its text is only ever the end of an error sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 12
"""Most names that a sentence lists; nobody reads more."""


def did_you_mean(word: str, known: Iterable[str], *, list_all: bool = True, see: str = "") -> str:
    """Say which of the known names is close to `word`.

    Args:
        word: What was written.
        known: What could have been written.
        list_all: Whether all are listed when none is close.
        see: Where all of them stand; said instead of a long list.

    Returns:
        `"; did you mean 'x'?"`, or the known names when none is close, or "" when there are none.
    """
    names = sorted(set(known))
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not names or not list_all:
        return ""
    if len(names) <= MAX_LISTED:
        return f"; known: {', '.join(names)}"
    if see:
        return f"; {see} lists all {len(names)}"
    return f"; known: {', '.join(names[:MAX_LISTED])} and {len(names) - MAX_LISTED} more"
