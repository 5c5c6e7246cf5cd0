"""Where an output ends and what is cut: stop strings, stop tokens, the model's own end, the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen

from vtcore import LLM
from vtcore.outputs import CompletionOutput

Complete = Callable[..., CompletionOutput]


@frozen
class Plain:
    """A greedy output over letters and spaces only, so that text is the sum of its tokens' texts.

    Args:
        limits: Parameters that give it.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    limits: dict[str, Any]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def num_tokens_to(self, end: int) -> int:
        """Tokens up to and with the one that holds character end - 1."""
        return next(n for n in range(1, 1 + len(self.ids)) if len("".join(self.pieces[:n])) >= end)

    def first_seen(self, least: int = 0) -> int:
        """Index >= least of a token whose id and text are new there."""
        return next(
            at
            for at in range(least, len(self.ids))
            if self.ids[at] not in self.ids[:at]
            and self.text.find(self.pieces[at]) == len("".join(self.pieces[:at]))
        )

    def spanning(self) -> str:
        """A string that occurs first across the border of two tokens, a character or more in each."""
        for at in range(3, len(self.ids)):
            start = len("".join(self.pieces[:at])) - 1
            found = self.text[start : start + 2]
            if self.text.find(found) == start:
                return found
        raise AssertionError("no two neighbouring tokens have a new pair of letters between them")


@pytest.fixture
def plain(llm: LLM, complete: Complete) -> Plain:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    texts = {i: tokenizer.token_string(i) for i in range(tokenizer.vocab_size)}
    letters = [i for i, text in texts.items() if text.isascii() and text.strip(" ").isalpha()]
    limits = {"allowed_token_ids": letters, "max_tokens": 24}
    out = complete(**limits)
    pieces = tuple(texts[i] for i in out.token_ids)
    assert out.text == "".join(pieces)
    assert (len(out.token_ids), out.finish_reason, out.stop_reason) == (24, "length", None)
    return Plain(out.token_ids, pieces, limits)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_two_tokens_cuts_text_and_ids(
    complete: Complete, plain: Plain, include: bool
) -> None:
    stop = plain.spanning()
    at = plain.text.find(stop)
    out = complete(**plain.limits, stop=stop, include_stop_str_in_output=include)
    assert out.text == plain.text[: at + len(stop) if include else at]
    assert out.token_ids == plain.ids[: plain.num_tokens_to(at + len(stop))]
    assert (out.finish_reason, out.stop_reason) == ("stop", stop)


def test_a_stop_string_inside_one_token_drops_the_tokens_rest(complete: Complete, plain: Plain) -> None:
    at = next(i for i in range(1, 24) if len(plain.pieces[i]) > 2)
    stop = plain.pieces[at][:2]
    start = plain.text.find(stop)
    out = complete(**plain.limits, stop=[stop], include_stop_str_in_output=True)
    assert out.text == plain.text[: start + 2]
    assert out.token_ids == plain.ids[: plain.num_tokens_to(start + 2)]


def test_the_stop_string_that_ends_first_is_the_reason(complete: Complete, plain: Plain) -> None:
    early, late = plain.text[4:7], plain.text[20:26]
    out = complete(**plain.limits, stop=[late, "absent#", early])
    assert (out.text, out.stop_reason) == (plain.text[: plain.text.find(early)], early)


def test_logprobs_and_their_sum_are_cut_with_the_ids(complete: Complete, plain: Plain) -> None:
    out = complete(**plain.limits, stop=plain.spanning(), logprobs=1)
    assert out.logprobs is not None
    assert len(out.logprobs) == len(out.token_ids)
    total = sum(entry[i].logprob for i, entry in zip(out.token_ids, out.logprobs, strict=True))
    assert out.cumulative_logprob == pytest.approx(total)


def test_a_stop_string_within_min_tokens_does_not_count(complete: Complete, plain: Plain) -> None:
    at = plain.first_seen(least=2)
    stop = plain.pieces[at]
    again = [n for n in range(at + 2, 25) if stop in "".join(plain.pieces[:n])[-len(stop) :]]
    assert complete(**plain.limits, stop=stop, min_tokens=at).token_ids == plain.ids[: at + 1]
    later = complete(**plain.limits, stop=stop, min_tokens=at + 1)
    assert len(later.token_ids) == (again[0] if again else 24)
    assert later.token_ids == plain.ids[: len(later.token_ids)]


def test_a_stop_string_on_the_last_token_comes_before_the_length(complete: Complete, plain: Plain) -> None:
    at = plain.first_seen(least=2)
    limits = {**plain.limits, "max_tokens": at + 1}
    out = complete(**limits, stop=plain.pieces[at])
    assert (out.finish_reason, out.stop_reason) == ("stop", plain.pieces[at])
    assert out.text == "".join(plain.pieces[:at])
    assert complete(**limits).finish_reason == "length"


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_kept_in_the_ids_and_not_in_the_text(
    complete: Complete, plain: Plain, include: bool
) -> None:
    at = plain.first_seen(least=2)
    out = complete(**plain.limits, stop_token_ids=[plain.ids[at]], include_stop_str_in_output=include)
    assert out.token_ids == plain.ids[: at + 1]
    assert out.text == "".join(plain.pieces[: at + 1 if include else at])
    assert (out.finish_reason, out.stop_reason) == ("stop", plain.ids[at])


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_wins_over_a_stop_string_that_ends_on_it(
    complete: Complete, plain: Plain, include: bool
) -> None:
    at = plain.first_seen(least=2)
    both = {"stop": plain.pieces[at], "stop_token_ids": [plain.ids[at]]}
    out = complete(**plain.limits, **both, include_stop_str_in_output=include)
    assert (out.finish_reason, out.stop_reason) == ("stop", plain.ids[at])
    assert out.text == "".join(plain.pieces[: at + 1 if include else at])


def test_a_stop_string_before_a_stop_token_wins(complete: Complete, plain: Plain) -> None:
    first = plain.first_seen(least=2)
    second = plain.first_seen(least=first + 1)
    out = complete(**plain.limits, stop=plain.pieces[first], stop_token_ids=[plain.ids[second]])
    assert (out.stop_reason, out.token_ids) == (plain.pieces[first], plain.ids[: first + 1])


def test_a_stop_token_on_the_last_position_comes_before_the_length(complete: Complete, plain: Plain) -> None:
    at = plain.first_seen(least=2)
    out = complete(**{**plain.limits, "max_tokens": at + 1}, stop_token_ids=[plain.ids[at]])
    assert (out.finish_reason, out.stop_reason) == ("stop", plain.ids[at])


def test_every_eos_of_the_model_ends_without_a_reason_and_without_text(llm: LLM, complete: Complete) -> None:
    assert len(llm.engine.eos_token_ids) == 2
    for eos in llm.engine.eos_token_ids:
        out = complete(ignore_eos=False, logit_bias={eos: 100.0})
        assert (out.token_ids, out.text) == ((eos,), "")
        assert (out.finish_reason, out.stop_reason) == ("stop", None)


def test_an_ignored_eos_is_a_token_like_any_other(llm: LLM, complete: Complete) -> None:
    eos = llm.engine.eos_token_ids[0]
    out = complete(ignore_eos=True, logit_bias={eos: 100.0}, max_tokens=5)
    assert (out.token_ids, out.finish_reason) == ((eos,) * 5, "length")


def test_an_ignored_eos_may_still_be_a_stop_token(llm: LLM, complete: Complete) -> None:
    eos = llm.engine.eos_token_ids[0]
    out = complete(ignore_eos=True, logit_bias={eos: 100.0}, stop_token_ids=[eos])
    assert (out.token_ids, out.finish_reason, out.stop_reason) == ((eos,), "stop", eos)


def test_no_stop_token_is_drawn_before_min_tokens(llm: LLM, complete: Complete) -> None:
    eos = llm.engine.eos_token_ids[0]
    out = complete(ignore_eos=False, logit_bias={eos: 100.0}, min_tokens=4)
    assert len(out.token_ids) == 5
    assert [i == eos for i in out.token_ids] == [False] * 4 + [True]
