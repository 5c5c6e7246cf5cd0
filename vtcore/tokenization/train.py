"""Trains a small byte-level BPE tokenizer of Qwen3.5's form on text kept in the package.

Does not: write files or match any released vocabulary.
"""

from __future__ import annotations

from importlib.resources import files

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from vtcore.tokenization.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"

# Source: Qwen3.5 tokenizer.json: Qwen2's pattern, with combining marks kept beside their letters.
_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Source: Qwen3.5 tokenizer.json, added tokens a text model meets, in its order. Those marked False are
# part of an answer's text and survive skip_special_tokens.
_ADDED_TOKENS = (
    (END_OF_TEXT, True),
    ("<|im_start|>", True),
    (END_OF_TURN, True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
)
_NUM_BYTES = 256


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train on the package's text; the same size always gives the same tokenizer.

    Args:
        vocab_size: Ids wanted, added tokens included, at least 256 + their number. Fewer come out when the
            text yields no more merges.

    Raises:
        ValueError: vocab_size is too small for all bytes.
    """
    least = _NUM_BYTES + len(_ADDED_TOKENS)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least} (all bytes and added tokens), got {vocab_size}"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_ADDED_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus().splitlines(keepends=True), trainer)
    for content, is_special in _ADDED_TOKENS:
        backend.add_tokens([AddedToken(content, special=is_special, normalized=False)])
    config = {"eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}
    return Tokenizer(backend, config, chat_template())


def chat_template() -> str:
    """The package's own ChatML template."""
    return files("vtcore.data").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def _corpus() -> str:
    return files("vtcore.data").joinpath("corpus.txt").read_text(encoding="utf-8")
