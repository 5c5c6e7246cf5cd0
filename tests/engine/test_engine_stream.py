"""`Engine.add_request`, `step` and `abort`: what streams, what an abort leaves, and who else notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.engine.engine import Engine
from vtcore.errors import RequestError
from vtcore.outputs import CompletionOutput, RequestOutput
from vtcore.testing.invariants import check_idle

Complete = Callable[..., CompletionOutput]

PROMPT = "The quick brown fox"


def sampled(**params: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 4, "max_tokens": 20, "ignore_eos": True, **params})


def stream(engine: Engine) -> dict[str, list[RequestOutput]]:
    """Every output of every request, in the order of the steps."""
    seen: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(output)
    return seen


def check_growth(outputs: list[RequestOutput]) -> None:
    """Nothing that was shown is taken back, and only the last output is finished."""
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for index in range(len(outputs[0].outputs)):
        text, ids = "", tuple[int, ...]()
        for output in outputs:
            sample = output.outputs[index]
            assert sample.text.startswith(text)
            assert sample.token_ids[: len(ids)] == ids
            text, ids = sample.text, sample.token_ids


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"n": 3},
        {"temperature": 0.0},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"stop": ["e", "th"]},
        {"stop": ["absent#absent"], "include_stop_str_in_output": True},
        {"skip_special_tokens": False, "temperature": 5.0},
    ],
)
def test_a_stream_only_grows_and_ends_in_what_generate_gives(llm: LLM, extra: dict[str, Any]) -> None:
    params = sampled(**extra)
    request_id = llm.engine.add_request(PROMPT, params)
    seen = stream(llm.engine)
    assert list(seen) == [request_id]
    outputs = seen[request_id]
    check_growth(outputs)
    assert len(outputs) > 1
    [expected] = llm.generate(PROMPT, params, use_tqdm=False)
    assert [s.token_ids for s in outputs[-1].outputs] == [s.token_ids for s in expected.outputs]
    assert [s.text for s in outputs[-1].outputs] == [s.text for s in expected.outputs]
    assert [(s.finish_reason, s.stop_reason) for s in outputs[-1].outputs] == [
        (s.finish_reason, s.stop_reason) for s in expected.outputs
    ]


def test_deltas_join_to_the_final_text(llm: LLM) -> None:
    request_id = llm.engine.add_request(PROMPT, sampled(temperature=3.0))
    shown, deltas = "", []
    for output in stream(llm.engine)[request_id]:
        deltas.append(output.outputs[0].text[len(shown) :])
        shown = output.outputs[0].text
    assert "".join(deltas) == shown == output.outputs[0].text
    assert sum(map(bool, deltas)) > 5


def test_text_that_may_become_a_stop_string_is_held_back(llm: LLM, complete: Complete) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    allowed = [tokenizer.encode("a")[0]]
    request_id = llm.engine.add_request(PROMPT, sampled(allowed_token_ids=allowed, stop="aaab", max_tokens=6))
    texts = [output.outputs[0].text for output in stream(llm.engine)[request_id]]
    assert texts == ["", "", "", "a", "aa", "aaaaaa"]


def test_each_step_reports_the_requests_that_gained_tokens(llm: LLM) -> None:
    first = llm.engine.add_request("one", sampled(max_tokens=8))
    for _ in range(3):
        assert [output.request_id for output in llm.engine.step()] == [first]
    second = llm.engine.add_request("two", sampled(max_tokens=8))
    seen = stream(llm.engine)
    assert set(seen) == {first, second}
    assert len(seen[first][-1].outputs[0].token_ids) == len(seen[second][-1].outputs[0].token_ids) == 8


def test_a_step_without_requests_gives_nothing(llm: LLM) -> None:
    assert llm.engine.step() == []


def test_a_name_of_ones_own_is_kept_and_may_be_used_again_later(llm: LLM) -> None:
    assert llm.engine.add_request(PROMPT, sampled(max_tokens=2), "mine/1") == "mine/1"
    with pytest.raises(RequestError, match="'mine/1' is in use"):
        llm.engine.add_request(PROMPT, sampled(max_tokens=2), "mine/1")
    assert [output.outputs[0].finish_reason for output in stream(llm.engine)["mine/1"]][-1] == "length"
    llm.engine.add_request(PROMPT, sampled(max_tokens=2), "mine/1")
    assert len(stream(llm.engine)["mine/1"]) == 2


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_ends_the_request_and_frees_everything(llm: LLM, steps: int, n: int) -> None:
    engine = llm.engine
    request_id = engine.add_request(PROMPT, sampled(n=n))
    for _ in range(steps):
        engine.step()
    output = engine.abort(request_id)
    assert output is not None
    assert output.finished
    assert [sample.finish_reason for sample in output.outputs] == ["abort"] * n
    assert [len(sample.token_ids) for sample in output.outputs] == [steps] * n
    assert not engine.has_unfinished_requests
    assert engine.step() == []
    check_idle(engine.loaded.core)
    assert engine.abort(request_id) is None


def test_an_unknown_or_finished_request_cannot_be_aborted(llm: LLM) -> None:
    assert llm.engine.abort("never heard of") is None
    request_id = llm.engine.add_request(PROMPT, sampled(max_tokens=1))
    stream(llm.engine)
    assert llm.engine.abort(request_id) is None


def test_an_abort_does_not_disturb_the_others(llm: LLM, complete: Complete) -> None:
    expected = complete(temperature=1.0, seed=4)
    kept = llm.engine.add_request(PROMPT, sampled())
    dropped = [llm.engine.add_request("mate " * i, sampled(seed=i)) for i in range(1, 6)]
    for request_id in dropped:
        llm.engine.step()
        assert llm.engine.abort(request_id) is not None
    seen = stream(llm.engine)
    assert set(seen) == {kept}
    assert seen[kept][-1].outputs[0].token_ids == expected.token_ids
    assert seen[kept][-1].outputs[0].text == expected.text


def test_an_abort_keeps_samples_that_had_ended(llm: LLM) -> None:
    params = sampled(n=6, max_tokens=30, stop=["e"], temperature=2.0)
    request_id = llm.engine.add_request(PROMPT, params)
    output = None
    while output is None or not any(sample.is_finished for sample in output.outputs):
        [output] = llm.engine.step()
        assert not output.finished
    aborted = llm.engine.abort(request_id)
    assert aborted is not None
    reasons = [sample.finish_reason for sample in aborted.outputs]
    assert set(reasons) == {"stop", "abort"}
    for before, after in zip(output.outputs, aborted.outputs, strict=True):
        assert not before.is_finished or before == after
    llm.engine.step()
    check_idle(llm.engine.loaded.core)


def test_requests_added_by_hand_survive_a_generate(llm: LLM, complete: Complete) -> None:
    expected = complete(temperature=1.0, seed=4, max_tokens=12)
    request_id = llm.engine.add_request(PROMPT, sampled(max_tokens=12))
    llm.engine.step()
    [output] = llm.generate("x", sampled(max_tokens=4), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4
    [last] = stream(llm.engine)[request_id][-1:]
    assert last.outputs[0].token_ids == expected.token_ids
