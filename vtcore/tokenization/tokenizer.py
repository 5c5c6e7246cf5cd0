"""Text to token ids and back, over a tokenizer.json.

Does not: stream text (detokenizer.py), know a model or download anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from vtcore.checkpoint.json_file import read_json_object_if_present
from vtcore.errors import ChatTemplateError, CheckpointError, RequestError
from vtcore.tokenization.chat_template import DEFAULT, TOOL_USE, ChatTemplate, find_chat_templates

# Source: tokenizer_config.json as transformers writes it.
_NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """A tokenizer with its special tokens and chat template.

    Args:
        backend: The `tokenizers` object that does the work.
        config: tokenizer_config.json; names the special tokens.
        chat_template: Jinja source, or sources by name ("default", "tool_use"); None when the model has none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self._config = dict(config or {})
        sources = {DEFAULT: chat_template} if isinstance(chat_template, str) else chat_template or {}
        self._templates = {name: ChatTemplate(source) for name, source in sources.items()}

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and the chat template of a checkpoint.

        Raises:
            CheckpointError: tokenizer.json is absent or unusable, or another file is malformed.
        """
        path = require_tokenizer_file(directory)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for everything
            raise CheckpointError(
                f"{path} is not a usable tokenizer: {error}; fetch the file again"
            ) from error
        # A training run may have left these in the file; serving never cuts or pads a prompt.
        backend.no_truncation()
        backend.no_padding()
        config = read_json_object_if_present(directory / "tokenizer_config.json")
        return cls(backend, config, find_chat_templates(directory, config))

    @property
    def vocab_size(self) -> int:
        """Number of ids that decode to something: the largest id + 1, without the model's padding rows."""
        return self._vocab_size

    @cached_property
    def _vocab_size(self) -> int:
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `decode(skip_special_tokens=True)` leaves out."""
        return frozenset(i for i, t in self.backend.get_added_tokens_decoder().items() if t.special)

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """Named special tokens ("eos_token", ...) that the config sets, as text."""
        found: dict[str, str] = {}
        for key in _NAMED_SPECIAL_TOKENS:
            text = special_token_text(self._config.get(key))
            if text is not None:
                found[key] = text
        return found

    @property
    def is_byte_level(self) -> bool:
        """Whether every token stands for bytes, so that text is the UTF-8 decoding of their concatenation."""
        return self._is_byte_level

    @cached_property
    def _is_byte_level(self) -> bool:
        backend_decoder = self.backend.decoder
        # The decoder alone: the whole tokenizer as JSON takes as long as its largest id, minutes for a wrong
        # one.
        decoder = None if backend_decoder is None else json.loads(backend_decoder.__getstate__())
        while isinstance(decoder, dict) and decoder.get("type") == "Sequence":
            inner = decoder.get("decoders", [])
            decoder = inner[0] if len(inner) == 1 else None
        return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it become their ids.

        Args:
            text: Any text without lone surrogates.
            add_special_tokens: Whether the tokenizer's own prefix and suffix (a BOS), if any, are added.

        Raises:
            RequestError: The text is not encodable as UTF-8.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"the text has a lone surrogate at character {error.start}") from error
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids without a token (padding rows) give no text, broken UTF-8 gives U+FFFD."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_string(self, token_id: int) -> str:
        """One token as text by itself, special tokens included; empty for an id without a token."""
        return self.backend.decode([token_id], skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Id of a token given in the vocabulary's own spelling, None when there is none."""
        return self.backend.token_to_id(token)

    def chat_template(self, name: str | None = None, has_tools: bool = False) -> ChatTemplate:
        """One of the model's templates.

        Args:
            name: Its name; None takes "tool_use" when tools are given and there is such, else "default".
            has_tools: Whether tools are given.

        Raises:
            ChatTemplateError: There is none of that name, or none at all.
        """
        if not self._templates:
            raise ChatTemplateError("the model has no chat template; give one, or a plain prompt")
        wanted = name
        if wanted is None:
            wanted = TOOL_USE if has_tools and TOOL_USE in self._templates else DEFAULT
        if wanted not in self._templates:
            raise ChatTemplateError(
                f"the model has no chat template named {wanted!r}, only {', '.join(sorted(self._templates))}"
            )
        return self._templates[wanted]

    @property
    def chat_template_names(self) -> frozenset[str]:
        """Names of the model's templates."""
        return frozenset(self._templates)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """Render a conversation to prompt text; encode it with `add_special_tokens=False`.

        Args:
            messages: Each with "role" and "content" as the model's template expects.
            add_generation_prompt: Whether the text ends where the assistant's answer begins.
            **kwargs: Variables for the template (`enable_thinking`, `tools`, ...).

        Raises:
            ChatTemplateError: There is no template, or it refuses the messages.
        """
        template = self.chat_template(has_tools=bool(kwargs.get("tools")))
        return template.render(messages, add_generation_prompt, {**self.special_tokens, **kwargs})


def require_tokenizer_file(directory: Path) -> Path:
    """Path of a directory's tokenizer.json.

    Raises:
        CheckpointError: There is none.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{directory} has no tokenizer.json; add it, or start with skip_tokenizer_init=True and give "
            f"token ids"
        )
    return path


def special_token_text(value: object) -> str | None:
    """Text of a special token as tokenizer_config.json writes it: a string, or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def encode_bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Token sequences that must not be completed if none of `words` may appear, at a start or after a space.

    Leading spaces of a word are dropped, because both spellings are banned.

    Raises:
        RequestError: A word is empty or only spaces.
    """
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip(" ")
        if not bare:
            raise RequestError(f"bad_words: {word!r} has no text to ban; leave it out")
        plain = tuple(tokenizer.encode(bare, add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + bare, add_special_tokens=False))
        sequences.append(plain)
        # A sequence that ends in the plain one is banned by it already.
        if spaced[-len(plain) :] != plain:
            sequences.append(spaced)
    return tuple(dict.fromkeys(s for s in sequences if s))
