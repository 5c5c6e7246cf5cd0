"""Bad parameters and prompts are refused with all their problems; good ones keep vLLM's defaults."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import numpy as np
import pytest
from attrs import fields
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.errors import RequestError
from vtcore.foreign_params import FOREIGN_PARAMS
from vtcore.interfaces.batch import RowParams
from vtcore.request import (
    MAX_COUNT,
    MAX_N,
    MAX_SEED,
    SamplingParams,
    check_prompt,
    child_seed,
    parse_prompt,
    resolve_max_tokens,
    resolve_row_params,
)
from vtcore.sampling.params_table import RowParamsTable

NAN, INF = float("nan"), float("inf")


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.seed, params.max_tokens, params.min_tokens) == (None, 16, 0)
    assert (params.stop, params.stop_token_ids, params.bad_words) == ((), (), ())
    assert (params.logprobs, params.prompt_logprobs, params.logit_bias) == (None, None, None)
    assert params.allowed_token_ids is None
    assert params.ignore_eos is False
    assert (params.include_stop_str_in_output, params.skip_special_tokens, params.detokenize) == (
        False,
        True,
        True,
    )


def test_lists_none_and_string_keys_are_normalised() -> None:
    bias: dict[Any, float] = {"7": 1, 8: -2.5}
    params = SamplingParams(
        stop="end", stop_token_ids=[1, 2], bad_words=None, logit_bias=bias, allowed_token_ids=[3]
    )
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("end",), (1, 2), ())
    assert params.logit_bias == {7: 1, 8: -2.5}
    assert params.allowed_token_ids == (3,)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert hash(params) == hash(params)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", MAX_N + 1), ("n", True), ("n", 1.0), ("n", "1"), ("n", None),
        ("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "0"),
        ("temperature", True), ("temperature", None), ("temperature", 10**400),
        ("top_p", 0.0), ("top_p", 1.01), ("top_p", NAN), ("top_k", -2), ("top_k", 1.5), ("top_k", False),
        ("min_p", -0.01), ("min_p", 1.01), ("min_p", NAN),
        ("repetition_penalty", 0.0), ("repetition_penalty", -1.0), ("repetition_penalty", INF),
        ("presence_penalty", 2.1), ("presence_penalty", NAN), ("frequency_penalty", -2.1),
        ("seed", -1), ("seed", 2**63), ("seed", 1.0), ("seed", True),
        ("max_tokens", 0), ("max_tokens", 2.0), ("min_tokens", -1), ("min_tokens", 17),
        ("top_k", 2**63), ("max_tokens", 2**70), ("seed", 2**70), ("n", 2**63), ("logprobs", 2**63),
        ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", 5), ("stop", ["x"] * 257),
        ("stop_token_ids", [-1]), ("stop_token_ids", [True]), ("stop_token_ids", [1.0]),
        ("stop_token_ids", "1"), ("stop_token_ids", [1] * 257),
        ("bad_words", [""]), ("bad_words", 3), ("ignore_eos", 1), ("ignore_eos", None), ("detokenize", "no"),
        ("skip_special_tokens", 0), ("include_stop_str_in_output", None),
        ("logprobs", 21), ("logprobs", -2), ("logprobs", True), ("prompt_logprobs", 21),
        ("prompt_logprobs", 1.0), ("logit_bias", {1: 100.5}), ("logit_bias", {1: NAN}), ("logit_bias", [1]),
        ("logit_bias", {"x": 1.0}), ("logit_bias", {-1: 1.0}), ("logit_bias", {True: 1.0}),
        ("logit_bias", {"²": 1.0}), ("logit_bias", dict.fromkeys(range(1025), 0.0)),
        ("allowed_token_ids", []), ("allowed_token_ids", [-3]), ("allowed_token_ids", {1}),
    ],
)  # fmt: skip
def test_an_illegal_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)
    assert ";" not in str(caught.value).split(name)[0]
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", MAX_N), ("temperature", 0), ("temperature", 1e-9), ("top_p", 1), ("top_p", 1e-9), ("top_k", -1),
        ("min_p", 1.0), ("repetition_penalty", 1e-3), ("presence_penalty", -2), ("seed", 0),
        ("seed", 2**63 - 1), ("top_k", 2**31 - 1), ("max_tokens", 2**31 - 1),
        ("max_tokens", None),
        ("min_tokens", 16), ("logprobs", -1), ("logprobs", 0), ("logprobs", 20),
        ("logit_bias", {}), ("logit_bias", {0: -100}), ("allowed_token_ids", [0]), ("stop", []),
    ],
)  # fmt: skip
def test_the_ends_of_each_range_are_legal(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) in (
        value,
        tuple(value) if value == [0] or value == [] else value,
    )


def test_integers_end_where_the_engine_can_still_count() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(top_k=2**31, max_tokens=2**31, min_tokens=2**31, seed=2**63)
    for name, value, low, high in (
        ("top_k", 2**31, -1, MAX_COUNT),
        ("max_tokens", 2**31, 1, MAX_COUNT),
        ("min_tokens", 2**31, 0, MAX_COUNT),
        ("seed", 2**63, 0, MAX_SEED),
    ):
        assert f"{name}={value} is above {high}; give an integer, {low} to {high}" in str(caught.value)


def test_the_largest_integers_fit_the_samplers_tables() -> None:
    params = SamplingParams(top_k=MAX_COUNT, max_tokens=MAX_COUNT, min_tokens=MAX_COUNT, seed=MAX_SEED)
    table = RowParamsTable(2, 8, "cpu")
    table.set(1, resolve_row_params(params, MAX_SEED, (), ()), 1)
    assert int(table.top_k[1]) == MAX_COUNT


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(n=0, temperature=NAN, top_p=2.0, stop=[""], max_tokens=0, detokenize=7)  # type: ignore[arg-type]
    for name in ("n=0", "temperature=nan", "top_p=2.0", "stop[0]=''", "max_tokens=0", "detokenize=7"):
        assert name in str(caught.value)


def test_a_message_has_option_value_range_and_remedy() -> None:
    with pytest.raises(
        RequestError, match=r"^top_p=0\.0 is not above 0; give a number > 0 and <= 1 \(1 keeps all"
    ):
        SamplingParams(top_p=0.0)
    with pytest.raises(RequestError, match=r"^min_tokens=20 is above max_tokens=16; raise max_tokens$"):
        SamplingParams(min_tokens=20)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n": -3}, "n=-3 is below 1; give an integer, 1 to 1024 (for more, send several requests)"),
        ({"n": 1025}, "n=1025 is above 1024; give an integer, 1 to 1024 (for more, send several requests)"),
        ({"n": "3"}, "n='3' is not an integer; give an integer, 1 to 1024 (for more, send several requests)"),
        ({"seed": 2**63}, f"seed={2**63} is above {MAX_SEED}; give an integer, 0 to {MAX_SEED} "
         "(leave it out and the engine chooses one)"),
        ({"temperature": -3}, "temperature=-3 is below 0; give a number >= 0"),
        ({"temperature": "hot"}, "temperature='hot' is not a number; give a number >= 0"),
        ({"temperature": True}, "temperature=True is not a number; give a number >= 0"),
        ({"temperature": NAN}, "temperature=nan is not finite; give a number >= 0"),
        ({"temperature": 10**30}, f"temperature={10**30} is too large in absolute value; give a number >= 0"),
        ({"top_p": 2}, "top_p=2 is above 1; give a number > 0 and <= 1 (1 keeps all ids)"),
        ({"detokenize": 1}, "detokenize=1 is neither true nor false; give one of them"),
        ({"stop": 5}, "stop=5 is no string and no list of strings; give one of them"),
        ({"stop": [5]}, "stop[0]=5 is not a string; give strings"),
        ({"bad_words": [""]}, "bad_words[0]='' is empty; leave it out"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]=-1 is below 0; a token id is an integer >= 0"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]=1.5 is not an integer; a token id is an integer >= 0"),
        ({"logit_bias": {"x": 1}}, "logit_bias key='x' is not an integer; a token id is an integer >= 0"),
        ({"top_k": 10**9000}, f"top_k=an integer of {(10**9000).bit_length()} bits is above 2147483647; "
         "give an integer, -1 to 2147483647 (0 keeps all ids)"),
    ],
)  # fmt: skip
def test_a_wrong_type_and_a_value_beyond_a_limit_have_words_of_their_own(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**options)
    assert str(caught.value) == sentence


VLLM_NAMES = """
n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p
seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs
prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs detokenize
skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind
stream_interval skip_clone output_text_buffer_length structured_outputs logit_bias allowed_token_ids
extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection
routed_experts_prompt_start trace_decode_token_ids beam_width length_penalty
"""
"""Fields, public ones, of vLLM 0.32.0's SamplingParams and BeamSearchParams."""


def test_every_sampling_parameter_of_vllm_is_served_or_refused_with_its_own_reason() -> None:
    own = {attribute.name for attribute in fields(SamplingParams)}
    assert set(VLLM_NAMES.split()) <= own | FOREIGN_PARAMS.keys()
    assert not own & FOREIGN_PARAMS.keys()
    for name in FOREIGN_PARAMS:
        with pytest.raises(RequestError, match=f"^'{name}' is not served: .*; "):
            SamplingParams.from_dict({name: None})


def test_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(RequestError, match="detokenize=False"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(detokenize=False).stop == ()


@given(st.dictionaries(st.sampled_from([a.name for a in fields(SamplingParams)]), st.none() | st.booleans()
       | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers() | st.text(max_size=2))
       | st.dictionaries(st.integers() | st.text(max_size=2), st.floats())))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_any_value_is_served_or_refused_with_a_typed_error(options: dict[str, Any]) -> None:
    try:
        params = SamplingParams.from_dict(options)
    except RequestError:
        return
    resolve_row_params(params, 1, params.stop_token_ids, ())


def test_an_unknown_key_is_refused_with_the_closest_name() -> None:
    with pytest.raises(
        RequestError, match="'temprature' is not a sampling parameter; did you mean 'temperature'"
    ):
        SamplingParams.from_dict({"temprature": 0.5, "n": 2})
    with pytest.raises(
        RequestError, match=r"'zzz' is not a sampling parameter; docs/configuration.md lists all .*'qqqq'"
    ):
        SamplingParams.from_dict({"zzz": 0.5, "qqqq": 1})
    assert SamplingParams.from_dict({"temperature": 0.5}) == SamplingParams(temperature=0.5)


def test_row_params_have_nothing_left_to_default() -> None:
    params = SamplingParams(
        temperature=1, top_k=-1, logit_bias={"3": 2}, allowed_token_ids=[1, 3], min_tokens=2, logprobs=4,
        presence_penalty=1, frequency_penalty=-1, repetition_penalty=2, min_p=0.25, top_p=0.5,
    )  # fmt: skip
    row = resolve_row_params(params, 77, [5, 6, 5], [[1, 2], (3,)])
    assert row == RowParams(
        temperature=1.0, top_k=0, top_p=0.5, min_p=0.25, repetition_penalty=2.0, presence_penalty=1.0,
        frequency_penalty=-1.0, seed=77, logit_bias=((3, 2.0),), allowed_token_ids=(1, 3),
        bad_words=((1, 2), (3,)), min_tokens=2, stop_ids=(5, 6), logprobs=4,
    )  # fmt: skip
    assert isinstance(row.temperature, float)
    assert isinstance(row.logit_bias[0][1], float)


def test_child_zero_keeps_the_seed() -> None:
    assert child_seed(5, 0) == 5
    assert child_seed(5, 1) != child_seed(5, 2)


def test_a_prompt_that_leaves_room_for_one_token_is_served() -> None:
    check_prompt([0, 9, 3], SamplingParams(stop_token_ids=[9]), vocab_size=10, max_model_len=4)


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([], "the prompt is empty"),
        ([1, 2, 3, 4], r"4 tokens, but max_model_len=4 leaves room for 3 and one output token"),
        ([1, -1], r"prompt_token_ids\[1\]=-1 is no token id of the model; its ids are 0 to 9, "),
        ([1, 2, 10], r"prompt_token_ids\[2\]=10"),
        ([1, "2"], r"prompt_token_ids\[1\]='2' is not an integer; "),
        ([True], r"prompt_token_ids\[0\]=True"),
        ([1.0], r"prompt_token_ids\[0\]=1\.0"),
    ],
)
def test_a_bad_prompt_is_refused(ids: list[Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        check_prompt(ids, SamplingParams(), vocab_size=10, max_model_len=4)


@pytest.mark.parametrize(
    ("more_room", "ends"),
    [
        ("raise max_model_len", "shorten the prompt or raise max_model_len"),
        ("give the cache more room", "shorten the prompt or give the cache more room"),
        ("", "shorten the prompt"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_what_would_make_room(more_room: str, ends: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_prompt([1] * 4, SamplingParams(), 10, 4, more_room)
    assert str(caught.value).endswith(f"; {ends}")


@pytest.mark.parametrize("prompt", [b"hi", bytearray(b"hi")])
def test_bytes_are_refused_as_bytes(prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"a prompt of type byte.* is not served; decode it: "):
        parse_prompt(prompt)


def test_parameters_naming_ids_outside_the_vocabulary_are_refused_together() -> None:
    params = SamplingParams(stop_token_ids=[10], logit_bias={3: 1.0, 11: 1.0}, allowed_token_ids=[12])
    with pytest.raises(
        RequestError, match=r"stop_token_ids\[0\]=10.*logit_bias\[1\]=11.*allowed_token_ids\[0\]=12"
    ):
        check_prompt([1], params, vocab_size=10, max_model_len=4)


def test_the_three_forms_of_a_prompt_are_served() -> None:
    assert parse_prompt("hello") == ("hello", None)
    assert parse_prompt({"prompt": "hello"}) == ("hello", None)
    assert parse_prompt({"prompt_token_ids": [1, 2]}) == (None, [1, 2])


@pytest.mark.parametrize(
    "ids",
    [(3, 4), range(3, 5), np.array([3, 4]), np.array([3, 4], np.uint16), [np.int32(3), np.int64(4)],
     array("i", [3, 4])],
)  # fmt: skip
def test_ids_come_as_any_sequence_of_integers(ids: Any) -> None:
    _, plain = parse_prompt({"prompt_token_ids": ids})
    assert plain == [3, 4]
    assert [type(item) for item in plain] == [int, int]


@pytest.mark.parametrize("ids", [b"ab", bytearray(b"ab"), "12", {3, 4}, iter([3]), 3, None, np.array([[3]])])
def test_ids_of_another_kind_are_refused(ids: Any) -> None:
    with pytest.raises(RequestError, match=r'"prompt_token_ids" is of type .* not a sequence of integers'):
        parse_prompt({"prompt_token_ids": ids})


@pytest.mark.parametrize("ids", [np.array([1.0]), np.array([True]), [np.float32(1)], [np.True_], [True]])
def test_items_that_are_no_integers_stay_to_be_named(ids: Any) -> None:
    _, plain = parse_prompt({"prompt_token_ids": ids})
    assert plain is not None
    with pytest.raises(RequestError, match=r"prompt_token_ids\[0\]="):
        check_prompt(plain, SamplingParams(), vocab_size=10, max_model_len=4)


def test_without_max_tokens_the_rest_of_the_context_is_the_limit() -> None:
    params = SamplingParams(max_tokens=None, min_tokens=6)
    assert resolve_max_tokens(params, 4, 10) == 6
    assert resolve_max_tokens(SamplingParams(max_tokens=3), 4, 10) == 3
    check_prompt([1] * 4, params, vocab_size=10, max_model_len=10)
    with pytest.raises(
        RequestError, match=r"^min_tokens=6 is above the 5 tokens that a prompt of 5 leaves of"
    ):
        check_prompt([1] * 5, params, vocab_size=10, max_model_len=10)
    with pytest.raises(RequestError, match=r"^the prompt has 10 tokens[^;]*;[^;]*$"):
        check_prompt([1] * 10, params, vocab_size=10, max_model_len=10)


@pytest.mark.parametrize(
    "prompt",
    [None, 5, [1, 2], b"x", {}, {"prompt": 5}, {"prompt_token_ids": "12"}, {"promt": "x"},
     {"prompt": "x", "prompt_token_ids": [1]}, {"prompt": "x", 3: 4}],
)  # fmt: skip
def test_any_other_form_is_refused_with_the_legal_ones(prompt: Any) -> None:
    with pytest.raises(RequestError, match=r'a prompt is a string, \{"prompt": "text"\} or'):
        parse_prompt(prompt)


def test_requests_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import vtcore.request, vtcore.outputs"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_name_is_a_typed_error_in_the_constructor_too() -> None:
    with pytest.raises(
        RequestError, match="'max_token' is not a sampling parameter; did you mean 'max_tokens'"
    ):
        SamplingParams(max_token=3)  # type: ignore[call-arg]
    assert SamplingParams(max_tokens=3) == SamplingParams.from_dict({"max_tokens": 3})
