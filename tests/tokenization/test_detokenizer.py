"""Incremental text: equal to decoding everything at once, in any grouping, with exact stop positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from vtcore.tokenization.detokenizer import IncrementalDetokenizer, StopMatch
from vtcore.tokenization.text_stream import open_text_stream
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import train_tokenizer

SMALL = train_tokenizer(512)
PADDING_ID = 560
"""An id of the embedding's padding rows: no token."""


def byte_id(byte: int) -> int:
    return next(
        i for token, i in SMALL.backend.get_vocab().items() if len(token) == 1 and raw(token) == bytes([byte])
    )


def raw(token: str) -> bytes:
    from vtcore.tokenization.text_stream import _byte_of_char

    return bytes(_byte_of_char()[c] for c in token)


BYTES = [byte_id(b) for b in range(256)]


def bytes_to_ids(data: bytes) -> list[int]:
    return [BYTES[b] for b in data]


any_ids = st.lists(st.integers(0, SMALL.vocab_size - 1) | st.just(PADDING_ID), max_size=40)
byte_ids = st.binary(max_size=30).map(bytes_to_ids)
text_ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(SMALL.encode)
letter_ids = st.text("abc", max_size=25).map(lambda text: bytes_to_ids(text.encode()))
WORD_IDS = [SMALL.encode(w)[0] for w in (" the", "in", " and", "en", " that")]
piece_ids = st.lists(st.sampled_from(WORD_IDS), max_size=15)
mixed_ids = st.one_of(any_ids, byte_ids, text_ids, letter_ids, piece_ids)
stops = st.lists(
    st.text("abcé ", min_size=1, max_size=4) | st.text("then d", min_size=1, max_size=4), max_size=4
).map(tuple)


def groups(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(c % (len(ids) + 1) for c in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


@given(mixed_ids, st.booleans())
def test_the_finished_text_is_the_decoding_of_all_ids(ids: list[int], skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(SMALL, (), skip_special_tokens=skip)
    for token_id in ids:
        detokenizer.append([token_id])
    assert detokenizer.text(finished=True) == SMALL.decode(ids, skip)


@given(mixed_ids, st.booleans())
def test_streamed_text_only_grows_and_ends_as_the_finished_text(ids: list[int], skip: bool) -> None:
    detokenizer = IncrementalDetokenizer(SMALL, (1, 2), stop=("zzz\0",), skip_special_tokens=skip)
    before = ""
    for token_id in ids:
        detokenizer.append([token_id])
        now = detokenizer.text(finished=False)
        assert now.startswith(before)
        before = now
    final = detokenizer.text(finished=True)
    assert final.startswith(before)
    assert len(final) >= len(before)


def oracle(
    ids: Sequence[int], stop: tuple[str, ...], include: bool, min_tokens: int
) -> tuple[str, StopMatch | None]:
    """Decode every prefix at once; the first that completes a stop string after `min_tokens` decides."""
    settled = [certain_text(ids[:n]) for n in range(len(ids) + 1)]
    for n in range(min_tokens + 1, len(ids) + 1):
        found = [
            (at + len(s), at, s)
            for s in stop
            for at in range(len(settled[n]))
            if settled[n].startswith(s, at) and at + len(s) > len(settled[n - 1])
        ]
        if found:
            end, at, s = min(found)
            return settled[n][: end if include else at], StopMatch(s, n)
    return SMALL.decode(ids), None


def certain_text(ids: Sequence[int]) -> str:
    """What two different continuations of the decoding have in common."""
    one = SMALL.decode([*ids, BYTES[ord("x")]])
    others = [SMALL.decode([*ids, *bytes_to_ids(c)]) for c in (b"\x80", b"\xbf\xbf", b"\xa0", b"\x90")]
    length = len(one) - 1
    for other in others:
        while one[:length] != other[:length]:
            length -= 1
    return one[:length]


@given(mixed_ids, stops, st.booleans(), st.integers(0, 6), st.lists(st.integers(0, 99), max_size=5))
def test_stops_are_found_as_the_oracle_finds_them_in_any_grouping(
    ids: list[int], stop: tuple[str, ...], include: bool, min_tokens: int, cuts: list[int]
) -> None:
    text, match = oracle(ids, stop, include, min_tokens)
    for grouped in ([[i] for i in ids], groups(ids, cuts), [ids]):
        detokenizer = IncrementalDetokenizer(SMALL, (), stop, include, min_tokens=min_tokens)
        for group in grouped:
            detokenizer.append(group)
        assert detokenizer.match == match
        assert detokenizer.text(finished=True) == text


@given(letter_ids, stops, st.booleans())
def test_streamed_text_is_never_taken_back_by_a_stop(
    ids: list[int], stop: tuple[str, ...], include: bool
) -> None:
    detokenizer = IncrementalDetokenizer(SMALL, (), stop, include)
    streamed = ""
    for token_id in ids:
        detokenizer.append([token_id])
        now = detokenizer.text(finished=False)
        assert now.startswith(streamed)
        streamed = now
    assert detokenizer.text(finished=True).startswith(streamed)


def detokenizer_of(text: str, stop: tuple[str, ...], **options: bool | int) -> IncrementalDetokenizer:
    detokenizer = IncrementalDetokenizer(SMALL, (), stop, **options)  # type: ignore[arg-type]
    detokenizer.append(bytes_to_ids(text.encode()))
    return detokenizer


def test_of_several_matches_the_one_that_ends_earliest_wins() -> None:
    long_first = detokenizer_of("xabcdy", ("bcd", "c"))
    assert long_first.match == StopMatch("c", 4)
    assert long_first.text(finished=True) == "xab"


def test_within_one_token_too_the_match_that_ends_earliest_wins() -> None:
    for stop in ((" th", "h", "e"), ("the", "th", "he")):
        detokenizer = IncrementalDetokenizer(SMALL, (), stop, include_stop_str_in_output=True)
        detokenizer.append([WORD_IDS[0]])
        assert detokenizer.text(finished=True) == " th"
    detokenizer = IncrementalDetokenizer(SMALL, (), (" the", "h"))
    assert detokenizer.append([WORD_IDS[0]]) == StopMatch("h", 1)


@pytest.mark.parametrize("stop", [("bc", "abc"), ("abc", "bc")])
def test_of_matches_with_one_end_the_longest_wins(stop: tuple[str, ...]) -> None:
    detokenizer = detokenizer_of("xabc", stop)
    assert detokenizer.match == StopMatch("abc", 4)
    assert detokenizer.text(finished=True) == "x"


def test_the_stop_text_can_be_kept() -> None:
    assert detokenizer_of("xabcd", ("bc",), include_stop_str_in_output=True).text(finished=False) == "xabc"


def test_a_stop_that_ends_within_min_tokens_is_passed_over() -> None:
    detokenizer = detokenizer_of("ababab", ("ab",), min_tokens=2)
    assert detokenizer.match == StopMatch("ab", 4)
    assert detokenizer.text(finished=True) == "ab"
    assert detokenizer_of("abxab", ("ab",), min_tokens=5).match is None


def test_a_stop_that_begins_within_min_tokens_counts_when_it_ends_later() -> None:
    assert detokenizer_of("abc", ("abc",), min_tokens=2).match == StopMatch("abc", 3)


def test_a_match_inside_one_token_cuts_the_text_in_that_token() -> None:
    ids = SMALL.encode(" the")
    assert len(ids) == 1
    detokenizer = IncrementalDetokenizer(SMALL, (), ("h",))
    assert detokenizer.append([*ids, *ids]) == StopMatch("h", 1)
    assert detokenizer.text(finished=True) == " t"


def test_tokens_after_a_match_change_nothing() -> None:
    detokenizer = detokenizer_of("xab", ("a",))
    assert detokenizer.append(bytes_to_ids(b"more a")) == StopMatch("a", 2)
    assert detokenizer.text(finished=True) == "x"


def test_text_is_held_back_only_while_a_stop_may_claim_it() -> None:
    assert detokenizer_of("abcdef", ("wxyz",)).text(finished=False) == "abc"
    assert detokenizer_of("abcdef", ("wxyz",)).text(finished=True) == "abcdef"
    assert (
        detokenizer_of("abcdef", ("wxyz",), include_stop_str_in_output=True).text(finished=False) == "abcdef"
    )
    assert detokenizer_of("abcdef", ()).text(finished=False) == "abcdef"
    assert detokenizer_of("a", ("wxyz",)).text(finished=False) == ""


def test_a_character_appears_with_its_last_byte_and_is_replaced_if_it_never_comes() -> None:
    detokenizer = IncrementalDetokenizer(SMALL, ())
    shown = []
    for token_id in bytes_to_ids("é€🙂".encode()):
        detokenizer.append([token_id])
        shown.append(detokenizer.text(finished=False))
    assert shown == ["", "é", "é", "é", "é€", "é€", "é€", "é€", "é€🙂"]
    detokenizer.append(bytes_to_ids(b"\xf0\x9f"))
    assert detokenizer.text(finished=False) == "é€🙂"
    assert detokenizer.text(finished=True) == "é€🙂\ufffd"


def test_a_special_token_between_the_bytes_of_a_character_is_as_in_a_full_decode() -> None:
    end = SMALL.token_id("<|im_end|>")
    assert end is not None
    ids = [*bytes_to_ids(b"\xe2\x82"), end, *bytes_to_ids(b"\xac")]
    for skip in (True, False):
        detokenizer = IncrementalDetokenizer(SMALL, (), skip_special_tokens=skip)
        detokenizer.append(ids)
        assert detokenizer.text(finished=True) == SMALL.decode(ids, skip)
    assert SMALL.decode(ids, True) == "€"


def metaspace() -> Tokenizer:
    """A vocabulary of words that carry their space, with bytes for the rest, as Llama 2 has."""
    words = ["<unk>", "<s>", "▁", "▁hello", "▁world", "a", "b", "!"] + [f"<0x{b:02X}>" for b in range(256)]
    backend = tokenizers.Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens(["<s>"])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend)


WORDS = metaspace()
word_pieces = st.lists(
    st.sampled_from([[i] for i in range(1, 8)])
    | st.sampled_from([[8 + b for b in c.encode()] for c in ("é", "€", "🙂", "\n")]),
    max_size=15,
).map(lambda pieces: [i for piece in pieces for i in piece])


@given(word_pieces, st.booleans())
def test_other_decoders_give_the_full_decoding_of_prompt_and_output(ids: list[int], skip: bool) -> None:
    prompt = [1, 3, 4]
    detokenizer = IncrementalDetokenizer(WORDS, prompt, skip_special_tokens=skip)
    for token_id in ids:
        detokenizer.append([token_id])
    assert WORDS.decode(prompt, skip) + detokenizer.text(finished=True) == WORDS.decode(prompt + ids, skip)


@given(word_pieces)
def test_other_decoders_without_a_prompt_give_the_full_decoding(ids: list[int]) -> None:
    stream = open_text_stream(WORDS, (), True)
    assert "".join(stream.push(i) for i in ids) + stream.tail() == WORDS.decode(ids)


def test_other_decoders_keep_the_space_between_prompt_and_output() -> None:
    assert not WORDS.is_byte_level
    detokenizer = IncrementalDetokenizer(WORDS, [3], ("!",))
    assert detokenizer.append([4, 5, 7, 6]) == StopMatch("!", 3)
    assert detokenizer.text(finished=True) == " worlda"


def test_other_decoders_pass_over_a_broken_character_at_the_prompts_cut() -> None:
    stream = open_text_stream(WORDS, [8 + 0xAC, 3], True)
    assert stream.push(4) == " world"


def test_other_decoders_hold_an_incomplete_character_but_not_for_ever() -> None:
    stream = open_text_stream(WORDS, (), True)
    pieces = [stream.push(8 + b) for b in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]
    pieces = [stream.push(8 + 0x80) for _ in range(9)]
    assert any(pieces)
    assert stream.push(5).endswith("a")


@pytest.mark.parametrize("tail", [[8 + 0xC3], [8 + 0xC3, 5]])
def test_other_decoders_replace_what_never_became_a_character(tail: list[int]) -> None:
    stream = open_text_stream(WORDS, (), True)
    text = "".join(stream.push(i) for i in [3, *tail]) + stream.tail()
    assert text == WORDS.decode([3, *tail])
