"""Options from text: numbers with units, switches, lists, JSON; what is none of them is one sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from vtcore.config.options import UserOptions
from vtcore.config.text_values import KINDS, parse_bool, parse_int, parse_value


def test_every_option_has_a_kind() -> None:
    assert set(KINDS) == {option.name for option in fields(UserOptions)}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("007", 7),
        ("32k", 32_000),
        ("32K", 32_768),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("1M", 2**20),
        ("1.5g", 1_500_000_000),
        ("4G", 4 * 2**30),
        ("2t", 2 * 10**12),
        ("2T", 2 * 2**40),
    ],
)
def test_integers_may_have_a_unit(text: str, number: int) -> None:
    """Source: vLLM engine/arg_utils.py, human_readable_int."""
    assert parse_int(text) == number


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not an integer"),
        ("1.5", "is not an integer"),
        ("8.0", "is not an integer"),
        ("1e3", "is not an integer"),
        ("1_000", "is not an integer"),
        ("0x10", "is not an integer"),
        ("-1k", "is not an integer"),
        (".5k", "is not an integer"),
        ("1kb", "is not an integer"),
        ("k", "is not an integer"),
        ("٣", "is not an integer"),
        ("9" * 5000, "is not an integer"),
        ("1.5K", "has decimals with a unit of 1,024s; write 1.5k for thousands"),
        ("1.2345k", "is 1234.5, not a whole number"),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has decimals|not a whole") as caught:
        parse_int(text)
    assert why in str(caught.value)


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_read_back(number: int) -> None:
    assert parse_int(str(number)) == number


@pytest.mark.parametrize(
    ("text", "value"), [("true", 1), ("1", 1), ("on", 1), ("ON", 1), ("false", 0), ("0", 0), ("Off", 0)]
)
def test_switches(text: str, value: int) -> None:
    assert parse_bool(text) is bool(value)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("model", " a b ", " a b "),
        ("prefix_caching_hash_seed", "0042", "0042"),
        ("seed", " 7 ", 7),
        ("max_model_len", "auto", "auto"),
        ("max_model_len", "aut", "aut"),
        ("max_model_len", "128K", 131_072),
        ("gpu_memory_utilization", "0.9", 0.9),
        ("gpu_memory_utilization", "9e-1", 0.9),
        ("served_model_name", "a, b", ("a", "b")),
        ("plugin_owners", '{"arch:a": "b"}', {"arch:a": "b"}),
        ("default_chat_template_kwargs", '{"a": [1, null]}', {"a": [1, None]}),
    ],
)
def test_a_text_is_read_by_its_options_type(option: str, text: str, value: Any) -> None:
    found = parse_value(option, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("seed", "x", "'x' is not an integer such as 4096, 32k (32,000) or 32K (32,768)"),
        ("max_model_len", "auto7", "'auto7' is not an integer such as"),
        ("gpu_memory_utilization", "90%", "'90%' is not a number"),
        ("gpu_memory_utilization", "nan", "'nan' is not a number"),
        ("gpu_memory_utilization", "inf", "'inf' is not a number"),
        ("enforce_eager", "yes", "'yes' is not true or false (also 1, 0, on, off)"),
        ("served_model_name", "a,,b", "'a,,b' has an empty or repeated item"),
        ("plugin_files", "a,a", "'a,a' has an empty or repeated item"),
        ("plugin_owners", "arch:a=b", "'arch:a=b' is not a JSON object: "),
        ("plugin_owners", "[1]", "'[1]' is not a JSON object"),
        ("plugin_owners", '{"a": 1, "b": 2, "a": 3}', "the JSON object has the key 'a' twice"),
        ("plugin_owners", '{"a":' * 100_000, "the JSON object is nested too deeply"),
    ],
)
def test_a_text_that_is_no_value_of_its_option_is_one_sentence(option: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        parse_value(option, text)
    assert str(caught.value).startswith(why)
