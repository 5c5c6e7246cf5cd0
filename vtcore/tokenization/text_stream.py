"""Turns token ids into text one token at a time, giving out only characters that no later token can change.

Does not: look for stop strings or hold text back for them.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from vtcore.tokenization.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# A UTF-8 character has at most four bytes, so an incomplete one spans at most three tokens before its last.
_MAX_HELD_TOKENS = 3
_MAX_PROMPT_CONTEXT_TOKENS = 8


class TextStream(Protocol):
    """Text of a growing list of tokens."""

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that became certain, perhaps empty."""

    def tail(self) -> str:
        """What is still uncertain, decoded as if no token followed; changes nothing."""


def open_text_stream(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool
) -> TextStream:
    """The stream that suits a tokenizer's decoder.

    Args:
        prompt_ids: Tokens before the first; gives context to decoders whose first token is special.
    """
    if tokenizer.is_byte_level:
        return ByteTextStream(tokenizer, skip_special_tokens)
    return WindowTextStream(tokenizer, prompt_ids, skip_special_tokens)


class ByteTextStream:
    """Exact for byte-level vocabularies: push text plus tail equals the decoding of all tokens at once."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """See `TextStream.push`."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._bytes(token_id))

    def tail(self) -> str:
        """See `TextStream.tail`."""
        return self._decoder.getstate()[0].decode("utf-8", errors="replace")

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return b""
        table = _byte_of_char()
        try:
            return bytes([table[char] for char in token])
        except KeyError:  # an added token is spelled as plain text
            return token.encode("utf-8")


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """Byte of each character of a byte-level vocabulary.

    Printable Latin-1 stands for itself; the other bytes follow from U+0100 on, in order.
    Source: GPT-2 byte-level BPE.
    """
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(itself)]
    return {chr(b): b for b in itself} | {chr(0x100 + i): b for i, b in enumerate(others)}


class WindowTextStream:
    """For any other decoder: decodes a short window and gives out what it gained.

    Text equals the decoding of all tokens as long as the tokens spell valid UTF-8; a run of more than a few
    bytes that never does is given out as it stands.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # The context starts and ends between characters, so that its own text is the same in every window.
        self._context = list(prompt_ids[-_MAX_PROMPT_CONTEXT_TOKENS:])
        while REPLACEMENT in tokenizer.decode(self._context, skip_special_tokens):
            del self._context[0]
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """See `TextStream.push`."""
        self._held.append(token_id)
        text = self.tail()
        if text.endswith(REPLACEMENT) and len(self._held) <= _MAX_HELD_TOKENS:
            return ""
        if text:
            self._context = self._held
        self._held = []
        return text

    def tail(self) -> str:
        """See `TextStream.tail`."""
        before = self._tokenizer.decode(self._context, self._skip)
        return self._tokenizer.decode(self._context + self._held, self._skip)[len(before) :]
