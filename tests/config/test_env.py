"""The environment is read in one place, strictly."""

from __future__ import annotations

import json

import pytest

from vtcore.config.env import NAMES, Environment, read_environment
from vtcore.errors import ConfigError


def test_an_empty_environment_says_nothing() -> None:
    assert read_environment({"PATH": "/bin", "HOME": ""}) == Environment()


def test_lists_are_split_at_commas() -> None:
    env = read_environment({"VTCORE_PLUGINS": "a, b", "VTCORE_PLUGINS_BLOCK": "c"})
    assert (env.plugins, env.plugins_block) == (("a", "b"), ("c",))


def test_an_unset_allow_list_allows_all_and_an_empty_one_none() -> None:
    assert read_environment({}).plugins is None
    assert read_environment({"VTCORE_PLUGINS": ""}).plugins == ()


def test_the_hash_seed_is_text_and_empty_counts_as_unset() -> None:
    name = "VTCORE_PREFIX_CACHING_HASH_SEED"
    assert read_environment({name: "0042"}).prefix_caching_hash_seed == "0042"
    assert read_environment({name: ""}).prefix_caching_hash_seed is None


@pytest.mark.parametrize("text", ["a,,b", ",", "a,b,a"])
def test_empty_and_repeated_items_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"VTCORE_PLUGINS_BLOCK: .* has an empty or repeated item"):
        read_environment({"VTCORE_PLUGINS_BLOCK": text})


def test_unknown_variables_are_refused_all_at_once_with_a_guess() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"VTCORE_PLUGIN": "a", "VTCORE_PLUGINS_BLOKC": "b"})
    assert caught.value.problems == (
        "VTCORE_PLUGIN: no such environment variable; did you mean 'VTCORE_PLUGINS'?",
        "VTCORE_PLUGINS_BLOKC: no such environment variable; did you mean 'VTCORE_PLUGINS_BLOCK'?",
    )


def test_every_variable_is_read() -> None:
    env = read_environment(dict.fromkeys(NAMES, "x"))
    assert all(value is not None and value != () for value in env.to_json().values())


def test_the_environment_travels_as_json() -> None:
    env = read_environment({"VTCORE_PLUGINS": "a,b"})
    assert json.loads(json.dumps(env.to_json()))["plugins"] == ["a", "b"]
