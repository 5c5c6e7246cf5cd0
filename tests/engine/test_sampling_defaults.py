"""A model's sampling defaults: what generation_config.json and its options make of a bare request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtcore.engine.sampling_defaults import (
    combine_sampling_defaults,
    load_sampling_defaults,
)
from vtcore.errors import CheckpointError, ConfigError
from vtcore.request import SamplingParams

# Source: generation_config.json of the Qwen3.5 releases.
QWEN = {
    "bos_token_id": 248044,
    "do_sample": True,
    "eos_token_id": [248046, 248044],
    "pad_token_id": 248044,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "5.24.0",
}


def defaults(generation_config: dict[str, Any], override: dict[str, Any] | None = None) -> SamplingParams:
    return combine_sampling_defaults(generation_config, override).params()


def test_a_models_own_values_are_the_defaults_and_foreign_keys_stay_unread() -> None:
    assert defaults(QWEN) == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
    assert defaults({}) == SamplingParams()
    odd = {"num_beams": "many", "max_length": -1, "cache_implementation": [], "stop_strings": 5}
    assert defaults(odd) == SamplingParams()


@pytest.mark.parametrize(
    ("key", "value", "params"),
    [
        ("min_p", 0.1, {"min_p": 0.1}),
        ("repetition_penalty", 1.2, {"repetition_penalty": 1.2}),
        ("max_new_tokens", 2048, {"max_tokens": 2048}),
        ("temperature", None, {}),
        ("do_sample", None, {}),
        ("do_sample", False, {"temperature": 0.0}),
        ("top_k", 0, {}),
    ],
)
def test_each_key_sets_its_parameter_and_null_sets_none(key: str, value: Any, params: dict[str, Any]) -> None:
    assert defaults({key: value}) == SamplingParams(**params)


def test_without_do_sample_the_temperature_in_the_file_does_not_count_but_an_override_does() -> None:
    greedy = {**QWEN, "do_sample": False}
    assert defaults(greedy).temperature == 0.0
    assert defaults(greedy, {"temperature": 0.5}).temperature == 0.5
    assert defaults(QWEN, {"do_sample": False}).temperature == 0.0
    assert defaults(QWEN, {"do_sample": True}).temperature == 0.6


def test_an_override_may_name_any_parameter_and_wins_one_by_one() -> None:
    over = {"top_p": 0.8, "presence_penalty": 1.5, "stop": ["END"], "max_new_tokens": 40, "min_tokens": 30}
    assert defaults(QWEN, over) == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.8, presence_penalty=1.5, stop=["END"], max_tokens=40, min_tokens=30
    )


def test_each_value_says_where_it_came_from() -> None:
    rows = combine_sampling_defaults(
        {**QWEN, "max_new_tokens": 9}, {"top_p": 0.8}, "dir/generation_config.json"
    ).rows()
    assert list(rows)[:3] == ["n", "temperature", "top_p"]
    assert rows["n"] == (1, "default")
    assert rows["temperature"] == (0.6, "dir/generation_config.json")
    assert rows["max_tokens"] == (9, "dir/generation_config.json, max_new_tokens")
    assert rows["top_p"] == (0.8, "override_generation_config")
    greedy = combine_sampling_defaults({**QWEN, "do_sample": False}).rows()
    assert greedy["temperature"] == (0.0, "generation_config.json, do_sample")


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", -1), ("temperature", "0.6"), ("top_k", 2.5), ("top_p", 0), ("max_new_tokens", 0)],
)
def test_an_illegal_value_in_the_file_names_file_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        combine_sampling_defaults({**QWEN, key: value}, file="dir/generation_config.json")
    assert str(caught.value).startswith(f"dir/generation_config.json: {key}: {value!r} is ")
    assert str(caught.value).count(key) == 1
    assert "generation_config=neutral" in str(caught.value)


def test_wrong_overrides_are_all_named_by_path() -> None:
    with pytest.raises(ConfigError) as caught:
        defaults({}, {"temprature": 1, "top_p": 2, "do_sample": "no", "max_tokens": 3, "max_new_tokens": 4})
    starts = [problem.split(";")[0] for problem in caught.value.problems]
    assert starts == [
        "$.override_generation_config.temprature: not a sampling parameter",
        "$.override_generation_config.top_p: 2 is above 1",
        "$.override_generation_config.do_sample: 'no' is not true or false",
        "$.override_generation_config.max_new_tokens: max_tokens is set by two keys",
    ]
    assert "did you mean 'temperature'" in caught.value.problems[0]


def test_overrides_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"\$\.override_generation_config: min_tokens=20 is above max_tokens"
    ):
        defaults({"max_new_tokens": 19}, {"min_tokens": 20})


def test_min_tokens_above_the_usual_limit_leaves_the_context_as_the_limit() -> None:
    rows = combine_sampling_defaults({}, {"min_tokens": 17}).rows()
    assert rows["max_tokens"] == (None, "default: min_tokens is above 16, so the context is the limit")
    assert defaults({}, {"min_tokens": 16}).max_tokens == 16
    assert defaults({"max_new_tokens": 40}, {"min_tokens": 17}).max_tokens == 40


def test_the_option_chooses_the_checkpoints_file_another_or_none(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 7}))
    over = {"min_p": 0.5}
    for option, expected in (
        (None, SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.5)),
        ("auto", SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.5)),
        ("neutral", SamplingParams(min_p=0.5)),
        (str(tmp_path), SamplingParams(top_k=7, min_p=0.5)),
    ):
        assert load_sampling_defaults(option, over, QWEN).params() == expected


def test_a_directory_without_the_file_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"\$\.generation_config: .* is no directory with a generation_config"
    ):
        load_sampling_defaults(str(tmp_path), {}, {})
    with pytest.raises(ConfigError, match="give one, or auto or neutral"):
        load_sampling_defaults("vllm", {}, {})
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        load_sampling_defaults(str(tmp_path), {}, {})
