"""Options: strict types, all problems at once, paths, guesses, JSON there and back."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

import pytest
from attrs import field, fields, frozen
from hypothesis import given
from hypothesis import strategies as st

from vtcore.config.options import DEVICES, DTYPES, LOAD_FORMATS, UserOptions, option_problems
from vtcore.config.structure import options_from_json, options_to_json, structure, structure_options
from vtcore.errors import ConfigError, NotServedError


def problems_of(data: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        structure_options(data)
    return caught.value.problems


def test_nothing_asked_is_none_everywhere() -> None:
    options = structure_options({})
    assert all(getattr(options, option.name) is None for option in fields(UserOptions))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"max_num_seqs": True}, "$.max_num_seqs: True is not an integer"),
        ({"max_num_seqs": "8"}, "$.max_num_seqs: '8' is not an integer"),
        ({"max_num_seqs": 8.0}, "$.max_num_seqs: 8.0 is not an integer"),
        ({"enable_prefix_caching": 1}, "$.enable_prefix_caching: 1 is not true or false"),
        ({"enable_prefix_caching": "false"}, "$.enable_prefix_caching: 'false' is not true or false"),
        ({"dtype": 32}, "$.dtype: 32 is not a text; write it in quotes"),
        ({"dtype": date(2026, 1, 2)}, "$.dtype: the date 2026-01-02 is not a text; write it in quotes"),
        ({"seed": datetime(2026, 1, 2)}, "$.seed: the date 2026-01-02T00:00:00 is not an integer"),
        ({"seed": time(3, 4)}, "$.seed: the time 03:04:00 is not an integer"),
        ({"dtype": b"x"}, "$.dtype: b'x' is not a text"),
        ({"seed": 2**20_000}, "$.seed: the integer has more than 64 bits; lower it"),
        ({"max_model_len": -(2**20_000)}, "$.max_model_len: the integer has more than 64 bits; lower it"),
        (
            {"gpu_memory_utilization": 10**5000},
            "$.gpu_memory_utilization: the integer has more than 64 bits; lower it",
        ),
        (
            {"override_generation_config": {"top_k": 2**64}},
            "$.override_generation_config.top_k: the integer has more than 64 bits; lower it",
        ),
        ({"seed": [2**20_000]}, "$.seed: [an integer of 20001 bits] is not an integer"),
        ({"plugin_files": "one.py"}, "$.plugin_files: 'one.py' is not a list of texts"),
        ({"plugin_owners": {"arch:a": 1}}, "$.plugin_owners: {'arch:a': 1} is not a mapping of texts"),
        ({"op_overrides": {"rope": 1}}, "$.op_overrides: {'rope': 1} is not a mapping of texts"),
        ({"batch_invariant": "on"}, "$.batch_invariant: 'on' is not true or false"),
        ({"plugin_owners": ["arch:a"]}, "$.plugin_owners: ['arch:a'] is not a mapping of texts"),
        ({"block_size": 0}, "$.block_size: 0 is below 1; raise it, or leave it out for the default"),
        ({"seed": -1}, "$.seed: -1 is below 0; raise it, or leave it out for the default"),
        ({"seed": 2**63}, "$.seed: 9223372036854775808 is above 9223372036854775807; lower it"),
        ({"scheduling_policy": ""}, "$.scheduling_policy: the text is empty; leave the option out instead"),
        ({"max_num_sequences": 8}, "$.max_num_sequences: no such option; did you mean 'max_num_seqs'?"),
        ({"dtype": "flaot32"}, "$.dtype: 'flaot32' is not served; did you mean 'float32'?"),
        ({"load_format": "dumy"}, "$.load_format: 'dumy' is not served; did you mean 'dummy'?"),
        ({"max_model_len": "aut"}, "$.max_model_len: 'aut' is not an integer or 'auto'"),
        ({"max_model_len": "4096"}, "$.max_model_len: '4096' is not an integer or 'auto'"),
        ({"max_model_len": 1.5}, "$.max_model_len: 1.5 is not an integer or a word"),
        ({"max_model_len": True}, "$.max_model_len: True is not an integer or a word"),
        ({"max_model_len": 0}, "$.max_model_len: 0 is below 2; raise it, or leave it out for the default"),
        (
            {"policy_time_limit_ms": 0},
            "$.policy_time_limit_ms: 0.0 is below 0.001; raise it, or leave it out for the default",
        ),
        (
            {"starvation_s": -1.5},
            "$.starvation_s: -1.5 is below 0.001; raise it, or leave it out for the default",
        ),
        ({"starvation_s": float("inf")}, "$.starvation_s: inf is not a finite number"),
        ({"policy_config": "{}"}, "$.policy_config: '{}' is not a mapping"),
        ({"policy_config": {"a": {1}}}, "$.policy_config.a: {1} is not a value that JSON has"),
        (
            {"num_state_checkpoints": -1},
            "$.num_state_checkpoints: -1 is below 0; raise it, or leave it out for the default",
        ),
        (
            {"state_checkpoint_interval": 0},
            "$.state_checkpoint_interval: 0 is below 1; raise it, or leave it out for the default",
        ),
        (
            {"kv_cache_memory_bytes": 0},
            "$.kv_cache_memory_bytes: 0 is below 1; raise it, or leave it out for the default",
        ),
        ({"gpu_memory_utilization": "0.9"}, "$.gpu_memory_utilization: '0.9' is not a number"),
        ({"gpu_memory_utilization": True}, "$.gpu_memory_utilization: True is not a number"),
        ({"gpu_memory_utilization": 90}, "$.gpu_memory_utilization: 90.0 is above 1.0; lower it"),
        ({"gpu_memory_utilization": float("nan")}, "$.gpu_memory_utilization: nan is not a finite number"),
        ({"served_model_name": "one"}, "$.served_model_name: 'one' is not a list of texts"),
        ({"served_model_name": []}, "$.served_model_name: the list is empty; leave the option out instead"),
        ({"served_model_name": ["a", ""]}, "$.served_model_name: ['a', ''] has an empty text"),
        ({"override_generation_config": [1]}, "$.override_generation_config: [1] is not a mapping"),
        (
            {"override_generation_config": {"a": {1}}},
            "$.override_generation_config.a: {1} is not a value that JSON has",
        ),
        (
            {"override_generation_config": {"a": [0, {"b": b"x"}]}},
            "$.override_generation_config.a[1].b: b'x' is not a value that JSON has",
        ),
        (
            {"override_generation_config": {"a": float("inf")}},
            "$.override_generation_config.a: inf is not a finite number",
        ),
        (
            {"default_chat_template_kwargs": {"a": {1: 2}}},
            "$.default_chat_template_kwargs.a: the key 1 is not a text",
        ),
    ],
)
def test_a_bad_option_is_one_sentence_with_its_path(data: dict[str, Any], problem: str) -> None:
    assert problems_of(data) == (problem,)


def test_a_long_value_is_shortened_in_its_sentence() -> None:
    for value in ("x" * 10**6, ["x"] * 10**6, [[["x"] * 9] * 9] * 9, {"a": "x" * 10**6}):
        [problem] = problems_of({"max_num_seqs": value})
        assert len(problem) < 700
        assert "..." in problem


def test_another_device_is_refused_with_the_reason() -> None:
    [problem] = problems_of({"device": "tpu"})
    assert problem.startswith("$.device: 'tpu' is not served: this version computes on the cpu and on NVIDIA")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_a_gpu_may_have_a_number(device: str) -> None:
    assert structure_options({"device": device}).device == device


@pytest.mark.parametrize(
    "device", ["cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:99999", "cpu:0", "auto:1"]
)
def test_another_number_is_no_device(device: str) -> None:
    [problem] = problems_of({"device": device})
    assert problem.startswith(f"$.device: {device!r} is not served")


@pytest.mark.parametrize("name", ["dtype", "device", "load_format"])
def test_a_known_value_that_is_not_served_is_no_typo(name: str) -> None:
    metadata = getattr(fields(UserOptions), name).metadata
    assert metadata["unserved"]
    assert not metadata["unserved"].keys() & set(metadata["choices"])
    for value, why in metadata["unserved"].items():
        with pytest.raises(NotServedError) as caught:
            structure_options({name: value})
        assert caught.value.problems == (f"$.{name}: {value!r} is not served: {why}",)
        assert "did you mean" not in why
        assert "; " in why
    with pytest.raises(ConfigError) as mixed:
        structure_options({name: value, "seed": -1})
    assert type(mixed.value) is ConfigError
    assert len(mixed.value.problems) == 2


def test_a_device_with_a_number_and_capitals_are_known_too() -> None:
    for data in ({"device": "xpu:0"}, {"device": "GPU"}, {"dtype": "FP16"}):
        with pytest.raises(NotServedError):
            structure_options(data)


def test_a_name_like_no_other_is_not_answered_with_all_names() -> None:
    [problem] = problems_of({"zzzz": 1})
    assert problem.startswith("$.zzzz: no such option; docs/configuration.md lists all ")


def test_all_problems_are_reported_at_once() -> None:
    data = {"modle": "x", 3: 4, "max_num_seqs": "8", "num_blocks": 0, "dtype": "fp8", "seed": 1}
    paths = [problem.split(":")[0] for problem in problems_of(data)]
    assert sorted(paths) == ["$.3", "$.dtype", "$.max_num_seqs", "$.modle", "$.num_blocks"]


def test_several_problems_inside_of_one_value_are_reported_with_the_others() -> None:
    found = problems_of({"override_generation_config": {"a": b"", "b": {"c": {2}}}, "seed": -1, "modle": "x"})
    assert sorted(problem.split(":")[0] for problem in found) == [
        "$.modle",
        "$.override_generation_config.a",
        "$.override_generation_config.b.c",
        "$.seed",
    ]


def test_a_mapping_that_is_nested_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    [problem] = problems_of({"default_chat_template_kwargs": endless})
    assert problem == f"$.default_chat_template_kwargs{'.x' * 32}: more than 32 levels are nested"


def test_options_hold_copies_of_what_they_were_made_of() -> None:
    data: dict[str, Any] = {"a": [1]}
    options = structure_options({"override_generation_config": data})
    data["a"].append(2)
    assert options.override_generation_config == {"a": [1]}


def test_a_limit_refuses_what_compares_with_nothing() -> None:
    [problem] = option_problems(UserOptions(gpu_memory_utilization=float("nan")))
    assert problem.startswith("$.gpu_memory_utilization: nan is below")


def test_options_that_are_no_mapping_are_refused() -> None:
    assert problems_of([1]) == ("$: [1] is not a mapping of options",)


@frozen
class Inner:
    size: int
    share: float = 0.5


@frozen
class Outer:
    inner: Inner
    many: tuple[Inner, ...] = field(default=())


def test_a_nested_problem_has_its_whole_path() -> None:
    with pytest.raises(ConfigError) as caught:
        structure({"inner": {"sise": 3}, "many": [{"size": 1}, {"size": "2", "share": 1}]}, Outer)
    assert sorted(caught.value.problems) == [
        "$.inner.sise: no such option; did you mean 'size'?",
        "$.inner.size: missing; it has no default",
        "$.many[1].size: '2' is not an integer",
    ]
    assert structure({"inner": {"size": 1, "share": 1}}, Outer).inner.share == 1.0


texts = st.text(min_size=1, max_size=8)
counts = st.integers(min_value=1, max_value=2**40)
integers = st.integers(-(2**64) + 1, 2**64 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
json_mappings = st.dictionaries(texts, json_values, max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": texts,
    "revision": texts,
    "download_dir": texts,
    "load_format": st.sampled_from(LOAD_FORMATS),
    "tokenizer": texts,
    "skip_tokenizer_init": st.booleans(),
    "served_model_name": st.lists(texts, min_size=1, max_size=3),
    "chat_template": texts,
    "default_chat_template_kwargs": json_mappings,
    "generation_config": texts,
    "override_generation_config": json_mappings,
    "dtype": st.sampled_from(DTYPES),
    "device": st.sampled_from((*DEVICES, "cuda:1")),
    "batch_invariant": st.booleans(),
    "op_overrides": st.dictionaries(texts, texts, max_size=3),
    "block_size": counts,
    "num_blocks": counts,
    "max_model_len": st.integers(2, 2**40) | st.just("auto"),
    "enforce_eager": st.booleans(),
    "async_scheduling": st.booleans(),
    "enable_jump_forward": st.booleans(),
    "kv_cache_memory_bytes": counts,
    "gpu_memory_utilization": st.floats(0.01, 1.0) | st.just(1),
    "prefix_caching_hash_seed": texts,
    "num_state_checkpoints": st.integers(0, 2**40),
    "state_checkpoint_interval": counts,
    "max_num_seqs": counts,
    "max_num_batched_tokens": counts,
    "enable_prefix_caching": st.booleans(),
    "scheduling_policy": texts,
    "policy_config": json_mappings,
    "policy_time_limit_ms": st.floats(0.001, 10**6) | st.just(1),
    "starvation_s": st.floats(0.001, 10**6) | st.just(1),
    "seed": st.integers(min_value=0, max_value=2**63 - 1),
    "plugin_files": st.lists(texts, max_size=3),
    "plugin_owners": st.dictionaries(texts, texts, max_size=3),
}


def test_the_round_trip_below_covers_every_option() -> None:
    assert set(VALUES) == {option.name for option in fields(UserOptions)}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_options_survive_json(data: dict[str, Any]) -> None:
    options = structure_options(data)
    text = options_to_json(options)
    assert options_from_json(text) == options
    assert options_to_json(options_from_json(text)) == text


def test_text_that_is_no_json_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^\$: not JSON"):
        options_from_json("{")
