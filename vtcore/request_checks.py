"""Collects what is wrong with a request, so that all of it is said at once.

Does not: know which options exist; `request.py` names them with their ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vtcore.errors import RequestError

MAX_BIAS = 100.0
"""Largest absolute logit bias. Source: OpenAI API reference, logit_bias."""


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
        is_right = _is_int(value) and low <= value <= high  # type: ignore[operator]
        return self._note(name, value, is_right, f"an integer, {low} to {high}", remedy)

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
        is_right = (
            _is_number(value)
            and (low is None or value >= low)  # type: ignore[operator]
            and (above is None or value > above)  # type: ignore[operator]
            and (high is None or value <= high)  # type: ignore[operator]
        )
        return self._note(name, value, is_right, f"a finite number, {' and '.join(limits)}", remedy)

    def boolean(self, name: str, value: object) -> bool:
        """True or False itself."""
        return self._note(name, value, isinstance(value, bool), "True or False", None)

    def strings(self, name: str, value: object, most: int) -> bool:
        """A tuple of at most `most` strings, none empty."""
        if not isinstance(value, tuple):
            return self._note(name, value, False, "a string or a list of strings", None)
        wrong = next((i for i, text in enumerate(value) if not isinstance(text, str) or not text), None)
        if wrong is not None:
            return self._note(
                f"{name}[{wrong}]", value[wrong], False, "a string that is not empty", "leave it out"
            )
        return self._at_most(name, len(value), most)

    def ids(self, name: str, value: object, most: int | None = None) -> bool:
        """A tuple of ints >= 0, at most `most`."""
        if not isinstance(value, tuple):
            return self._note(name, value, False, "a list of token ids", None)
        wrong = next((i for i, entry in enumerate(value) if not _is_int(entry) or entry < 0), None)
        if wrong is not None:
            return self._note(f"{name}[{wrong}]", value[wrong], False, "a token id, an integer >= 0", None)
        return most is None or self._at_most(name, len(value), most)

    def bias(self, name: str, value: object, most: int) -> bool:
        """None or a dict of at most `most` token ids to finite numbers within the bias range."""
        if value is None:
            return True
        if not isinstance(value, dict):
            return self._note(name, value, False, "a mapping of token ids to numbers", None)
        for key, number in value.items():
            if not _is_int(key) or key < 0:
                return self._note(f"{name} key", key, False, "a token id, an integer >= 0", None)
            if not self.number(
                f"{name}[{key}]",
                number,
                low=-MAX_BIAS,
                high=MAX_BIAS,
                remedy="to forbid an id use allowed_token_ids or bad_words",
            ):
                return False
        return self._at_most(name, len(value), most)

    def in_vocabulary(self, name: str, ids: Sequence[object], vocab_size: int) -> bool:
        """Ints with 0 <= id < vocab_size; the first that is not is named with its index."""
        wrong = next((i for i, v in enumerate(ids) if type(v) is not int or not 0 <= v < vocab_size), None)
        if wrong is None:
            return True
        legal = f"a token id of the model, an integer, 0 to {vocab_size - 1}"
        return self._note(f"{name}[{wrong}]", ids[wrong], False, legal, "use the model's own tokenizer")

    def _at_most(self, name: str, num: int, most: int) -> bool:
        return self.that(num <= most, f"{name} has {num} entries; at most {most} are served, leave some out")

    def _note(self, name: str, value: object, is_right: bool, legal: str, remedy: str | None) -> bool:
        return self.that(
            is_right, f"{name}={_shown(value)} is not {legal}" + (f" ({remedy})" if remedy else "")
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_int(value) and abs(value) <= 2**63


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
