"""Results have vLLM's shape; the token that stands at a position is always among its logprobs."""

from __future__ import annotations

import pytest

from vtcore.interfaces.batch import TokenLogprobs
from vtcore.outputs import CompletionOutput, Logprob, RequestOutput, to_logprob_dict


def test_the_sampled_id_comes_first_even_outside_the_most_likely() -> None:
    entry = TokenLogprobs(token_id=9, logprob=-5.0, rank=7, top_ids=(4, 2), top_logprobs=(-0.5, -1.0))
    found = to_logprob_dict(entry, lambda token_id: f"<{token_id}>")
    assert list(found) == [9, 4, 2]
    assert found == {9: Logprob(-5.0, 7, "<9>"), 4: Logprob(-0.5, 1, "<4>"), 2: Logprob(-1.0, 2, "<2>")}


def test_the_sampled_id_is_listed_once_and_without_a_tokenizer_has_no_text() -> None:
    entry = TokenLogprobs(token_id=2, logprob=-1.0, rank=2, top_ids=(4, 2), top_logprobs=(-0.5, -1.0))
    assert to_logprob_dict(entry) == {2: Logprob(-1.0, 2), 4: Logprob(-0.5, 1)}
    assert list(to_logprob_dict(entry)) == [2, 4]
    assert to_logprob_dict(TokenLogprobs(token_id=3, logprob=-1.0, rank=5)) == {3: Logprob(-1.0, 5)}


def test_tied_ids_share_a_rank() -> None:
    entry = TokenLogprobs(
        token_id=1, logprob=-1.0, rank=1, top_ids=(1, 5, 6, 7), top_logprobs=(-1.0, -1.0, -2.0, -2.0)
    )
    assert [logprob.rank for logprob in to_logprob_dict(entry).values()] == [1, 1, 3, 3]


def test_a_sample_is_finished_once_it_has_a_reason() -> None:
    assert not CompletionOutput(index=0, text="", token_ids=()).is_finished
    done = CompletionOutput(index=0, text="a", token_ids=(1,), finish_reason="stop", stop_reason=1)
    assert done.is_finished
    output = RequestOutput(request_id="r", prompt=None, prompt_token_ids=(1,), outputs=(done,), finished=True)
    assert output.prompt_logprobs is None
    assert output.num_cached_tokens == 0
    with pytest.raises(AttributeError):
        output.finished = False  # type: ignore[misc]
