"""Streamed text is byte for byte what the tokenizers library decodes, in any script and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from vtcore.tokenization.detokenizer import IncrementalDetokenizer
from vtcore.tokenization.text_stream import open_text_stream
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import train_tokenizer

TEXTS = {
    "english": "The cat's paw – \"quick\" & odd; it'll cost £3.50 (or 4 €).\n\n\tDone…",
    "german": "Über größere Äpfel läuft ein Käfer, süß und müßig: Straße, Fuß.",
    "french": "Où êtes‑vous, garçon ? « Ici », répondit l’élève naïf.",
    "vietnamese": "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ, ế ề ể ễ ệ.",
    "combining": "e\u0301 o\u0302\u0323 n\u0303 Z\u0351\u036b\u0343a\u0489l\u0336g\u0321o\u0322",
    "greek": "Ὁ ἥλιος ἀνατέλλει· καλημέρα σας.",
    "russian": "Съешь ещё этих мягких булок, да выпей чаю.",
    "hebrew": "שָׁלוֹם עֲלֵיכֶם, מה שלומך?",
    "arabic": "السَّلامُ عَلَيْكُم — كَيفَ الحال؟ \u200fنص\u200e abc",
    "hindi": "नमस्ते दुनिया, क्षत्रिय श्रीमान् ज़रूर।",
    "tamil": "வணக்கம் உலகம், நன்றி.",
    "thai": "สวัสดีชาวโลก น้ำใจ ที่นี่",
    "chinese": "你好,世界!天地玄黃,宇宙洪荒。𠜎𠜱𠝹",
    "japanese": "こんにちは世界。カタカナと漢字、ｶﾀｶﾅ。",
    "korean": "안녕하세요 세계! 한글 \u1112\u1161\u11ab",
    "georgian": "გამარჯობა მსოფლიო",
    "cherokee and gothic": "ᏣᎳᎩ 𐌲𐌿𐍄 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "emoji": "🙂👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 1️⃣ ❤️‍🔥 🧑🏿‍🚀",
    "controls": "a\0b\x07c\x1b[0m\r\n\u00a0\u2028\u200b\ufeff|\ufffd|\x7f",
    "code": "def f(x: int) -> str:\n    return f\"{x:>4}\"  # ¬≠≤\n\tif (a&&b) { c[0] = '\\u00e9'; }\n",
    "bundled": files("vtcore.data").joinpath("corpus.txt").read_text(encoding="utf-8")[:3000],
}
ALL = "\n".join(TEXTS.values())
SPECIAL = "<|end|>"


def metaspace_bpe(vocab_size: int) -> Tokenizer:
    """As SentencePiece's BPE models come out: words carry their space, rare characters are bytes."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, limit_alphabet=60, show_progress=False
    )
    backend.train_from_iterator([ALL], trainer)
    # The trainer marks the byte tokens special, which released vocabularies do not.
    plain = tokenizers.Tokenizer.from_str(backend.to_str().replace('"special":true', '"special":false'))
    plain.add_special_tokens([SPECIAL])
    return Tokenizer(plain)


def metaspace_unigram(vocab_size: int) -> Tokenizer:
    """As SentencePiece's unigram models come out, with the decoder that puts spaces back."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, unk_token="<unk>", special_tokens=["<unk>", SPECIAL], show_progress=False
    )
    backend.train_from_iterator(ALL.splitlines(), trainer)
    return Tokenizer(backend)


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level, bytes only": lambda: train_tokenizer(265),
    "byte-level": lambda: train_tokenizer(700),
    "metaspace with bytes": lambda: metaspace_bpe(500),
    "metaspace unigram": lambda: metaspace_unigram(600),
}
_made: dict[str, Tokenizer] = {}


def tokenizer_of(name: str) -> Tokenizer:
    if name not in _made:
        _made[name] = MAKERS[name]()
    return _made[name]


def streamed(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int], skip: bool) -> str:
    """Text of a stream that is given the ids in the groups between the cuts; it must only grow."""
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=skip)
    edges = [0, *sorted(cuts), len(ids)]
    shown = ""
    for start, end in pairwise(edges):
        detokenizer.append(ids[start:end])
        now = detokenizer.text(finished=False)
        assert now.startswith(shown)
        assert "\ufffd" not in now or "\ufffd" in tokenizer.decode(ids, skip)
        shown = now
    final = detokenizer.text(finished=True)
    assert final.startswith(shown)
    return final


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_split_of_every_text_gives_the_librarys_bytes(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(TEXTS[text], add_special_tokens=False)
    expected = tokenizer.backend.decode(ids, skip_special_tokens=True)
    assert streamed(tokenizer, ids, range(1, len(ids)), True).encode() == expected.encode()
    for cut in range(0, len(ids), max(1, len(ids) // 100)):
        assert streamed(tokenizer, ids, [cut], True) == expected


@pytest.mark.parametrize("name", ["byte-level, bytes only", "byte-level", "metaspace with bytes"])
def test_the_text_survives_the_way_there_and_back(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text in TEXTS.values():
        normal = tokenizer.backend.normalizer.normalize_str(text).replace("▁", " ")
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert streamed(tokenizer, ids, range(1, len(ids)), True) == normal.removeprefix(" ")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("text", ["emoji", "hindi", "combining", "arabic", "chinese"])
def test_an_output_may_start_and_end_at_any_token_of_a_text(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(TEXTS[text], add_special_tokens=False)
    whole = tokenizer.backend.decode(ids)
    for start in range(1, len(ids)):
        before = tokenizer.backend.decode(ids[:start])
        if "\ufffd" in before:
            continue  # the prompt ends within a character, which no prompt of text does
        stream = open_text_stream(tokenizer, ids[:start], True)
        new = "".join(stream.push(i) for i in ids[start:]) + stream.tail()
        assert before + new == whole


any_text = st.lists(st.sampled_from(list(TEXTS.values())) | st.text(max_size=6), min_size=1, max_size=3).map(
    lambda parts: "".join(part[:60] for part in parts).encode("utf-8", "ignore").decode()
)


@given(st.sampled_from(list(MAKERS)), any_text, st.data())
def test_any_text_in_any_grouping_with_special_tokens_between(
    name: str, text: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    special = tokenizer.token_id(SPECIAL) or tokenizer.token_id("<|im_end|>")
    assert special is not None
    clean = [i for i in range(len(ids) + 1) if "\ufffd" not in tokenizer.decode(ids[:i])] or [0]
    ids.insert(data.draw(st.sampled_from(clean)), special)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    for skip in (True, False):
        assert streamed(tokenizer, ids, cuts, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


def earliest(text: str, stops: Sequence[str]) -> str:
    """Cut at the stop string that ends first, of those with one end at the longest."""
    ends = [(at + len(s), at) for s in stops for at in range(len(text)) if text.startswith(s, at)]
    return text[: min(ends)[1]] if ends else text


@given(st.sampled_from(list(MAKERS)), any_text, st.data())
def test_the_stop_string_that_ends_earliest_ends_the_text_in_any_script(
    name: str, text: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.backend.decode(ids)
    if not whole:
        return
    starts = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4))
    stops = tuple(whole[start : start + data.draw(st.integers(1, 4))] for start in starts)
    detokenizer = IncrementalDetokenizer(tokenizer, (), stops)
    shown = ""
    for token_id in ids:
        detokenizer.append([token_id])
        assert detokenizer.text(finished=False).startswith(shown)
        shown = detokenizer.text(finished=False)
    assert detokenizer.text(finished=True) == earliest(whole, stops)
