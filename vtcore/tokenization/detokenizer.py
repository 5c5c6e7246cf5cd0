"""One request's output text as it grows, and where a stop string ends it.

Does not: stop the request; the caller sends the match to the engine as a finish message.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from vtcore.tokenization.text_stream import open_text_stream
from vtcore.tokenization.tokenizer import Tokenizer


@frozen
class StopMatch:
    """A stop string was completed.

    Args:
        stop: The string.
        num_tokens: Output tokens kept; the last of them is the one in which the string ends.
    """

    stop: str
    num_tokens: int


class IncrementalDetokenizer:
    """Text of one output. Results depend on the tokens only, not on how they are grouped into `append`s.

    Args:
        tokenizer: Turns ids into text.
        prompt_ids: The prompt; its text is not part of the output.
        stop: Strings that end the output, none empty.
        include_stop_str_in_output: Whether the text keeps the matched string.
        skip_special_tokens: Whether special tokens give no text.
        min_tokens: A stop string that ends within the first `min_tokens` tokens is no match.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._stop = stop
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._hold = 0 if include_stop_str_in_output else max((len(s) for s in stop), default=1) - 1
        self._stream = open_text_stream(tokenizer, prompt_ids, skip_special_tokens)
        self._num_tokens = 0
        self._text = ""
        self._match: StopMatch | None = None

    @property
    def match(self) -> StopMatch | None:
        """The stop match, if there was one."""
        return self._match

    def append(self, token_ids: Sequence[int]) -> StopMatch | None:
        """Add output tokens. After a match further tokens are dropped and the match is returned again."""
        for token_id in token_ids:
            if self._match is not None:
                break
            self._num_tokens += 1
            new = self._stream.push(token_id)
            if new:
                self._text += new
                if self._num_tokens > self._min_tokens:
                    self._find_stop(len(self._text) - len(new))
        return self._match

    def text(self, finished: bool) -> str:
        """The output text so far.

        Args:
            finished: No token follows: nothing is held back, and bytes of an incomplete character become
                U+FFFD. While False, characters that a stop string may yet claim are held back, so that a
                streamed prefix is never taken back.
        """
        if self._match is not None:
            return self._text
        if finished:
            return self._text + self._stream.tail()
        return self._text[: max(0, len(self._text) - self._hold)]

    def _find_stop(self, start: int) -> None:
        """Look for the match that ends earliest among those ending after `start`; ties to the longest."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            at = self._text.find(stop, max(0, start - len(stop) + 1))
            if at >= 0 and (best is None or (at + len(stop), at) < best[:2]):
                best = (at + len(stop), at, stop)
        if best is not None:
            end, at, stop = best
            self._text = self._text[: end if self._include_stop else at]
            self._match = StopMatch(stop, self._num_tokens)
