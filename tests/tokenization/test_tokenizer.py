"""The tokenizer, its special tokens, bad words, end ids and chat templates."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from vtcore.errors import CheckpointError, RequestError
from vtcore.tokenization.eos import resolve_eos_token_ids
from vtcore.tokenization.tokenizer import Tokenizer, encode_bad_words
from vtcore.tokenization.train import train_tokenizer

SMALL = train_tokenizer(512)


def token_id(text: str) -> int:
    found = SMALL.token_id(text)
    assert found is not None
    return found


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_comes_back_in_its_composed_form(text: str) -> None:
    ids = SMALL.encode(text)
    assert all(0 <= i < SMALL.vocab_size for i in ids)
    assert SMALL.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_special_tokens_written_out_become_their_ids() -> None:
    ids = SMALL.encode("<|im_start|>user\nhi<|im_end|>")
    assert ids[0] == token_id("<|im_start|>")
    assert ids[-1] == token_id("<|im_end|>")
    assert SMALL.decode(ids) == "user\nhi"
    assert SMALL.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>"


def test_thoughts_and_tool_calls_are_text_not_special() -> None:
    ids = SMALL.encode("<think>a</think><tool_call>")
    assert ids[0] == token_id("<think>")
    assert SMALL.decode(ids) == "<think>a</think><tool_call>"
    assert SMALL.special_token_ids == {token_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}


def test_digits_stay_single_and_marks_stay_with_their_letters() -> None:
    assert len(SMALL.encode("2024")) == 4
    pieces = SMALL.backend.pre_tokenizer.pre_tokenize_str("न\u093eव 12")
    assert [p for _, (a, b) in pieces for p in ["न\u093eव 12"[a:b]]] == ["न\u093eव", " ", "1", "2"]


def test_padding_ids_have_no_text() -> None:
    assert SMALL.vocab_size == 512
    assert SMALL.token_string(10_000) == ""
    assert SMALL.decode([*SMALL.encode("ab"), 10_000]) == "ab"
    assert SMALL.token_string(token_id("<|im_end|>")) == "<|im_end|>"
    assert SMALL.token_string(SMALL.encode(" the")[0]).startswith(" ")


def test_training_repeats_exactly_and_refuses_too_few_ids() -> None:
    assert train_tokenizer(300).backend.to_str() == train_tokenizer(300).backend.to_str()
    least = 256 + 9
    assert train_tokenizer(least).vocab_size == least
    with pytest.raises(ValueError, match=f"at least {least}"):
        train_tokenizer(least - 1)


def test_a_lone_surrogate_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 1"):
        SMALL.encode("a\ud800")


def test_a_tokenizers_own_prefix_is_optional() -> None:
    backend = tokenizers.Tokenizer.from_str(SMALL.backend.to_str())
    bos = token_id("<|endoftext|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
    )
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("a") == [bos, *SMALL.encode("a")]
    assert tokenizer.encode("a", add_special_tokens=False) == SMALL.encode("a")


def test_a_directory_gives_tokenizer_config_and_template(tmp_path: Path) -> None:
    SMALL.backend.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("hello") == SMALL.encode("hello")
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    with pytest.raises(RequestError, match="has no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])


def test_truncation_left_in_the_file_is_not_applied(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(SMALL.backend.to_str())
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_directory(tmp_path).encode("a b c d") == SMALL.encode("a b c d")


def test_an_absent_or_broken_tokenizer_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; add it, or start with skip_"):
        Tokenizer.from_directory(tmp_path)
    for text in ("{", "{}", "[]", ""):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a usable tokenizer"):
            Tokenizer.from_directory(tmp_path)


def test_byte_level_is_recognised_by_the_decoder() -> None:
    assert SMALL.is_byte_level
    assert not Tokenizer(tokenizers.Tokenizer(models.BPE())).is_byte_level


def ends_with(sequence: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    return sequence[len(sequence) - len(tail) :] == tail


@given(st.text("abcdefghi tnre", min_size=1, max_size=12).filter(lambda w: w.strip(" ")))
def test_a_bad_word_is_banned_at_a_start_and_after_a_space(word: str) -> None:
    sequences = encode_bad_words(SMALL, [word])
    bare = word.lstrip(" ")
    for text in (bare, " " + bare):
        assert any(ends_with(tuple(SMALL.encode(text)), s) for s in sequences)
    assert all(SMALL.decode(s).lstrip(" ") == bare for s in sequences)


def test_bad_words_are_listed_once_and_never_empty() -> None:
    assert encode_bad_words(SMALL, []) == ()
    assert encode_bad_words(SMALL, ["the", " the", "the"]) == encode_bad_words(SMALL, ["the"])
    assert len(encode_bad_words(SMALL, ["the"])) == 2
    for word in ("", "  "):
        with pytest.raises(RequestError, match="has no text to ban"):
            encode_bad_words(SMALL, [word])


def lookup(text: str) -> int | None:
    return {"<|im_end|>": 46, "</s>": 2}.get(text)


@pytest.mark.parametrize(
    ("generation", "tokenizer", "config", "expected"),
    [
        (
            {"eos_token_id": [46, 44]},
            {"eos_token": "<|im_end|>"},
            {"text_config": {"eos_token_id": 44}},
            (46, 44),
        ),
        ({}, {"eos_token": "<|im_end|>"}, {"text_config": {"eos_token_id": 44}}, (46, 44)),
        ({"eos_token_id": 7}, {}, {"eos_token_id": [8, 7]}, (7, 8)),
        ({}, {"eos_token": {"content": "</s>"}}, {}, (2,)),
        ({}, {"eos_token": "unknown"}, {"eos_token_id": None, "text_config": None}, ()),
        ({}, {}, {}, ()),
        ({}, {}, {"text_config": {"eos_token_id": 1}, "eos_token_id": 0}, (1, 0)),
    ],
)
def test_end_ids_are_the_union_of_all_files(
    generation: dict[str, Any], tokenizer: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert resolve_eos_token_ids(generation, tokenizer, config, lookup) == expected


def test_without_a_tokenizer_the_end_token_is_found_in_its_config() -> None:
    config = {
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"44": {"content": "x"}, "46": {"content": "<|im_end|>"}},
    }
    assert resolve_eos_token_ids({}, config, {}) == (46,)
    assert resolve_eos_token_ids({}, {"eos_token": "<|im_end|>"}, {}) == ()


@pytest.mark.parametrize("value", [-1, "2", [1, "2"], 1.0, True])
def test_an_end_id_that_is_no_token_id_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        resolve_eos_token_ids({"eos_token_id": value}, {}, {})
    with pytest.raises(CheckpointError, match=r"text_config: eos_token_id"):
        resolve_eos_token_ids({}, {}, {"text_config": {"eos_token_id": value}})
