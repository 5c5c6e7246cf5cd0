"""Collects what is wrong with a request, so that all of it is said at once.

Does not: know which options exist; `request.py` names them with their ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vtcore.config.shown import shown
from vtcore.errors import RequestError

MAX_BIAS = 100.0
"""Largest absolute logit bias. Source: OpenAI API reference, logit_bias."""

_LARGEST_INT = 2**63
"""Larger ones, as numbers of a request, mean nothing and need not become floats."""


class Problems:
    """Checks that note a sentence when they fail and go on; each returns whether it passed."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def raise_if_any(self) -> None:
        """Raise one RequestError with every sentence, if there are any."""
        if self.sentences:
            raise RequestError("; ".join(self.sentences))

    def that(self, is_right: bool, sentence: str) -> bool:
        """Note `sentence` unless `is_right`."""
        if not is_right:
            self.sentences.append(sentence)
        return is_right

    def integer(self, name: str, value: object, low: int, high: int, remedy: str | None = None) -> bool:
        """An int, not a bool, low <= value <= high."""
        wrong = _beyond(value, low, None, high) if _is_int(value) else "not an integer"
        return self._note(name, value, wrong, f"give an integer, {low} to {high}", remedy)

    def optional_integer(
        self, name: str, value: object, low: int, high: int, remedy: str | None = None
    ) -> bool:
        """None, or as `integer`."""
        return value is None or self.integer(name, value, low, high, remedy)

    def number(
        self,
        name: str,
        value: object,
        *,
        low: float | None = None,
        above: float | None = None,
        high: float | None = None,
        remedy: str | None = None,
    ) -> bool:
        """A finite int or float, not a bool, within the limits given; `above` is an open lower limit."""
        limits = [
            text
            for limit, text in (
                (low, f">= {low:g}" if low is not None else ""),
                (above, f"> {above:g}" if above is not None else ""),
                (high, f"<= {high:g}" if high is not None else ""),
            )
            if limit is not None
        ]
        wrong = _no_number(value) or _beyond(value, low, above, high)
        return self._note(name, value, wrong, f"give a number {' and '.join(limits)}", remedy)

    def boolean(self, name: str, value: object) -> bool:
        """True or False itself."""
        wrong = "" if isinstance(value, bool) else "neither true nor false"
        return self._note(name, value, wrong, "give one of them")

    def strings(self, name: str, value: object, most: int) -> bool:
        """A tuple of at most `most` strings, none empty."""
        if not isinstance(value, tuple):
            return self._note(name, value, "no string and no list of strings", "give one of them")
        for index, text in enumerate(value):
            if not isinstance(text, str):
                return self._note(f"{name}[{index}]", text, "not a string", "give strings")
            if not text:
                return self._note(f"{name}[{index}]", text, "empty", "leave it out")
        return self._at_most(name, len(value), most)

    def ids(self, name: str, value: object, most: int | None = None) -> bool:
        """A tuple of ints >= 0, at most `most`."""
        if not isinstance(value, tuple):
            return self._note(name, value, "not a list of token ids", "give a list")
        for index, entry in enumerate(value):
            if wrong := _no_id(entry):
                return self._note(f"{name}[{index}]", entry, wrong, "a token id is an integer >= 0")
        return most is None or self._at_most(name, len(value), most)

    def bias(self, name: str, value: object, most: int) -> bool:
        """None or a dict of at most `most` token ids to finite numbers within the bias range."""
        if value is None:
            return True
        if not isinstance(value, dict):
            return self._note(name, value, "not a mapping of token ids to numbers", "give one")
        for key, number in value.items():
            if wrong := _no_id(key):
                return self._note(f"{name} key", key, wrong, "a token id is an integer >= 0")
            if not self.number(
                f"{name}[{shown(key)}]",
                number,
                low=-MAX_BIAS,
                high=MAX_BIAS,
                remedy="to forbid an id use allowed_token_ids or bad_words",
            ):
                return False
        return self._at_most(name, len(value), most)

    def in_vocabulary(self, name: str, ids: Sequence[object], vocab_size: int) -> bool:
        """Ints with 0 <= id < vocab_size; the first that is not is named with its index."""
        index = next((i for i, v in enumerate(ids) if type(v) is not int or not 0 <= v < vocab_size), None)
        if index is None:
            return True
        found = ids[index]
        wrong = "no token id of the model" if type(found) is int else "not an integer"
        advice = f"its ids are 0 to {vocab_size - 1}, use the model's own tokenizer"
        return self._note(f"{name}[{index}]", found, wrong, advice)

    def _at_most(self, name: str, num: int, most: int) -> bool:
        return self.that(num <= most, f"{name} has {num} entries; at most {most} are served, leave some out")

    def _note(self, name: str, value: object, wrong: str, advice: str, remedy: str | None = None) -> bool:
        """Note what is wrong with a value, unless that is ""."""
        more = f" ({remedy})" if remedy else ""
        return not wrong or self.that(False, f"{name}={shown(value)} is {wrong}; {advice}{more}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_number(value: Any) -> str:
    """Why a value is no number that can be computed with, or ""."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "not finite"
    if not _is_int(value):
        return "not a number"
    return "" if abs(value) <= _LARGEST_INT else "too large in absolute value"


def _no_id(value: Any) -> str:
    if not _is_int(value):
        return "not an integer"
    return "below 0" if value < 0 else ""


def _beyond(value: Any, low: float | None, above: float | None, high: float | None) -> str:
    """Which limit a number passes, or ""."""
    if low is not None and value < low:
        return f"below {_limit(low)}"
    if above is not None and value <= above:
        return f"not above {_limit(above)}"
    return f"above {_limit(high)}" if high is not None and value > high else ""


def _limit(limit: float) -> str:
    # An integer's digits all count: seeds end at 2**63 - 1.
    return f"{limit:g}" if isinstance(limit, float) else str(limit)
