"""Log probabilities as a user sees them: which ids, their ranks, texts and sums, for output and prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from vtcore import LLM, SamplingParams
from vtcore.outputs import CompletionOutput, Logprob

Complete = Callable[..., CompletionOutput]

PROMPT = "The quick brown fox"
TAU = 5e-3
"""The reference sums in float32."""


def check_entry(llm: LLM, entry: Mapping[int, Logprob], token_id: int, count: int) -> None:
    """The token that stands there comes first; beside it the `count` most likely, in order."""
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert next(iter(entry)) == token_id
    assert count <= len(entry) <= count + 1
    assert set(range(1, count + 1)) <= {e.rank for e in entry.values()}
    ordered = sorted(entry.values(), key=lambda e: e.rank)
    assert [e.logprob for e in ordered] == sorted((e.logprob for e in ordered), reverse=True)
    assert len(entry) == count or entry[token_id].rank > count
    assert {i: e.decoded_token for i, e in entry.items()} == {i: tokenizer.token_string(i) for i in entry}


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float64).eval()


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_the_drawn_id_is_always_reported_beside_the_most_likely_ones(
    llm: LLM, complete: Complete, count: int
) -> None:
    out = complete(temperature=2.0, seed=1, logprobs=count)
    assert out.logprobs is not None
    assert len(out.logprobs) == len(out.token_ids) == 20
    for token_id, entry in zip(out.token_ids, out.logprobs, strict=True):
        check_entry(llm, entry, token_id, count)
    assert any(entry[i].rank > 20 for i, entry in zip(out.token_ids, out.logprobs, strict=True))
    chosen = [entry[i].logprob for i, entry in zip(out.token_ids, out.logprobs, strict=True)]
    assert out.cumulative_logprob == pytest.approx(sum(chosen))


def test_minus_one_reports_the_whole_vocabulary(llm: LLM, complete: Complete) -> None:
    out = complete(temperature=1.0, seed=1, logprobs=-1, max_tokens=2)
    assert out.logprobs is not None
    for entry in out.logprobs:
        assert set(entry) == set(range(llm.engine.loaded.arch.dims.vocab_size))
        assert sum(math.exp(e.logprob) for e in entry.values()) == pytest.approx(1.0)


def test_logprobs_not_asked_for_are_none(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(max_tokens=2), use_tqdm=False)
    sample = output.outputs[0]
    assert (output.prompt_logprobs, sample.logprobs, sample.cumulative_logprob) == (None, None, None)


def test_asking_for_logprobs_changes_no_token(complete: Complete) -> None:
    params = {"temperature": 1.0, "seed": 9}
    assert complete(**params, logprobs=3, prompt_logprobs=3).token_ids == complete(**params).token_ids


def test_prompt_logprobs_have_an_entry_per_token_and_none_for_the_first(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=3)
    long = "The quick brown fox jumps over the lazy dog. "
    for prompt in (PROMPT, long):
        [output] = llm.generate(prompt, params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        assert output.prompt_logprobs[0] is None
        for token_id, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
            assert entry is not None
            check_entry(llm, entry, token_id, 3)


def test_a_prompt_of_one_token_has_nothing_but_none(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    [output] = llm.generate({"prompt_token_ids": [7]}, params, use_tqdm=False)
    assert output.prompt_logprobs == (None,)


def test_values_are_transformers(llm: LLM, reference: Any) -> None:
    params = SamplingParams(seed=2, max_tokens=20, ignore_eos=True, logprobs=4, prompt_logprobs=4, n=2)
    [output] = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    for sample in output.outputs:
        assert sample.logprobs is not None
        ids = [*output.prompt_token_ids, *sample.token_ids]
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        found = [*output.prompt_logprobs[1:], *sample.logprobs]
        for row, entry in zip(expected[:-1], found, strict=True):
            assert entry is not None
            for token_id, shown in entry.items():
                assert shown.logprob == pytest.approx(float(row[token_id]), abs=TAU)
                below, above = (int((row > row[token_id] + d).sum()) for d in (TAU, -TAU))
                assert below + 1 <= shown.rank <= above


def test_they_are_of_the_raw_logits_whatever_is_done_to_the_draw(complete: Complete) -> None:
    free = complete(logprobs=2, max_tokens=1)
    bent = complete(logprobs=2, max_tokens=1, temperature=3.0, top_k=1, logit_bias={9: 1.0})
    assert free.logprobs is not None
    assert bent.logprobs is not None
    assert bent.token_ids == free.token_ids
    for token_id, entry in free.logprobs[0].items():
        assert bent.logprobs[0][token_id].logprob == pytest.approx(entry.logprob, abs=1e-12)
