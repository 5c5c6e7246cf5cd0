"""Which token ids end a generation, out of the three files that may say so.

Does not: decide whether a request ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vtcore.errors import CheckpointError
from vtcore.tokenization.tokenizer import special_token_text


def resolve_eos_token_ids(
    generation_config: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    hf_config: Mapping[str, Any],
    token_id: Callable[[str], int | None] | None = None,
) -> tuple[int, ...]:
    """The union of all three, in this order, without repeats.

    The config alone often names only the end of a document, which lets a chat run past the end of its turn.

    Args:
        generation_config: `eos_token_id`, a number or a list.
        tokenizer_config: `eos_token`, a string or an object with `content`.
        hf_config: `eos_token_id`, in `text_config` and at the outer level.
        token_id: Id of a token's text (`Tokenizer.token_id`); None (no tokenizer) falls back on
            `added_tokens_decoder` of the tokenizer's config.

    Raises:
        CheckpointError: An id is not a natural number.
    """
    text_config = hf_config.get("text_config")
    inner = text_config if isinstance(text_config, Mapping) else {}
    ids: list[int] = []
    ids += _ids("generation_config.json", generation_config.get("eos_token_id"))
    text = special_token_text(tokenizer_config.get("eos_token"))
    if text is not None:
        found = token_id(text) if token_id is not None else _added_token_id(tokenizer_config, text)
        ids += [] if found is None else [found]
    ids += _ids("config.json, text_config", inner.get("eos_token_id"))
    ids += _ids("config.json", hf_config.get("eos_token_id"))
    return tuple(dict.fromkeys(ids))


def _ids(place: str, value: object) -> list[int]:
    if value is None:
        return []
    ids: list[int] = []
    for item in value if isinstance(value, list) else [value]:
        if type(item) is not int or item < 0:
            raise CheckpointError(f"{place}: eos_token_id must be token ids, found {value!r}; mend the file")
        ids.append(item)
    return ids


def _added_token_id(tokenizer_config: Mapping[str, Any], text: str) -> int | None:
    added = tokenizer_config.get("added_tokens_decoder")
    if isinstance(added, Mapping):
        for key, entry in added.items():
            if special_token_text(entry) == text and str(key).isdecimal():
                return int(key)
    return None
