"""The environment is read in one place, strictly, and travels as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve, fields

from vtcore.config.env import (
    NAMES,
    OPTION_VARIABLES,
    OWN_NAMES,
    SEED_NAMES,
    Environment,
    default_cache_dir,
    read_environment,
)
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError

BARE = {"PATH": "/bin", "HOME": "/home/me"}


def test_an_empty_environment_says_nothing() -> None:
    found = read_environment(BARE)
    assert found == Environment(cache_dir=Path("/home/me/.cache/vtcore"))
    assert read_environment({}) == Environment(cache_dir=default_cache_dir({}))


def test_lists_are_split_at_commas() -> None:
    env = read_environment({"VTCORE_PLUGINS": "a, b", "VTCORE_PLUGINS_BLOCK": "c"})
    assert (env.plugins, env.plugins_block) == (("a", "b"), ("c",))


def test_an_unset_allow_list_allows_all_and_an_empty_one_none() -> None:
    assert read_environment({}).plugins is None
    assert read_environment({"VTCORE_PLUGINS": ""}).plugins == ()


@pytest.mark.parametrize("text", ["a,,b", ",", "a,b,a"])
def test_empty_and_repeated_items_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"VTCORE_PLUGINS_BLOCK: .* has an empty or repeated item"):
        read_environment({"VTCORE_PLUGINS_BLOCK": text})


@pytest.mark.parametrize(
    ("environ", "cache_dir"),
    [
        ({}, "/home/me/.cache/vtcore"),
        ({"XDG_CACHE_HOME": "/big"}, "/big/vtcore"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/vtcore"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/vtcore"),
        ({"VTCORE_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/big"}, "/own"),
        ({"VTCORE_CACHE_DIR": ""}, "/home/me/.cache/vtcore"),
        ({"VTCORE_CACHE_DIR": "own"}, str(Path.cwd() / "own")),
        ({"VTCORE_CACHE_DIR": "~/own"}, str(Path("~/own").expanduser())),
    ],
)
def test_the_cache_directory(environ: dict[str, str], cache_dir: str) -> None:
    assert read_environment({**BARE, **environ}).cache_dir == Path(cache_dir)


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"VTCORE_CACHE_DIR: '~no-such-user/x' names no user's home"):
        read_environment({"VTCORE_CACHE_DIR": "~no-such-user/x"})


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (None, False),
        ("", True),
        ("-1", True),
        ("-1,0", True),
        (" ", True),
        ("0", False),
        ("0,-1", False),
        ("GPU-8", False),
    ],
)
def test_whether_the_user_hid_all_gpus(text: str | None, hidden: bool) -> None:
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert read_environment(environ).gpus_hidden is hidden


def test_every_option_has_a_variable() -> None:
    assert set(OPTION_VARIABLES.values()) == {option.name for option in fields(UserOptions)}
    assert set(NAMES) == set(OWN_NAMES) | set(OPTION_VARIABLES)
    env = read_environment(dict.fromkeys(OPTION_VARIABLES, "x"))
    assert env.options == {option.name: "x" for option in fields(UserOptions)}


def test_an_options_variable_that_is_empty_counts_as_unset() -> None:
    assert read_environment(dict.fromkeys(OPTION_VARIABLES, "")).options == {}


VTCORE, VLLM, PYTHON = (
    "VTCORE_PREFIX_CACHING_HASH_SEED",
    "VLLM_PREFIX_CACHING_HASH_SEED",
    "PYTHONHASHSEED",
)


@pytest.mark.parametrize(
    ("environ", "seed", "variable"),
    [
        ({}, None, VTCORE),
        ({VTCORE: "a", VLLM: "b", PYTHON: "1"}, "a", VTCORE),
        ({VLLM: "b", PYTHON: "1"}, "b", VLLM),
        ({PYTHON: "1"}, "1", PYTHON),
        ({PYTHON: "0"}, "0", PYTHON),
        ({VTCORE: "", VLLM: "b"}, "b", VLLM),
        ({VTCORE: "", VLLM: "", PYTHON: ""}, None, VTCORE),
        ({PYTHON: "random"}, None, VTCORE),
        ({VTCORE: "0042"}, "0042", VTCORE),
        ({VLLM: "random", PYTHON: "1"}, "random", VLLM),
    ],
)
def test_the_order_of_hash_seeds(environ: dict[str, str], seed: str | None, variable: str) -> None:
    """Source: vllm.cpp model_loader.h, EnsureNoneHash; the first name is vtcore's own."""
    env = read_environment(environ)
    assert (env.prefix_caching_hash_seed, env.prefix_caching_hash_seed_from) == (seed, variable)


def test_32_random_bytes_are_drawn_by_each_reading_and_travel_as_text() -> None:
    one, other = read_environment({}), read_environment({})
    assert len(bytes.fromhex(one.random_hash_seed)) == 32
    assert one.random_hash_seed != other.random_hash_seed
    assert Environment.from_json(one.to_json()).random_hash_seed == one.random_hash_seed


def test_the_seeds_switches_are_kept_as_they_are_written() -> None:
    env = read_environment(dict(zip(SEED_NAMES, ["0", "", "TRUE"], strict=True)))
    assert (env.async_runner, env.async_sched, env.jump_forward) == ("0", "", "TRUE")
    bare = read_environment({})
    assert (bare.async_runner, bare.async_sched, bare.jump_forward) == (None, None, None)


def test_unknown_variables_are_refused_all_at_once_with_a_guess() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"VTCORE_PLUGIN": "a", "VTCORE_MAX_NUM_SQES": "b", "VTCORE_PLUGINS": ","})
    assert caught.value.problems == (
        "VTCORE_MAX_NUM_SQES: no such environment variable; did you mean 'VTCORE_MAX_NUM_SEQS'?",
        "VTCORE_PLUGIN: no such environment variable; did you mean 'VTCORE_PLUGINS'?",
        "VTCORE_PLUGINS: ',' has an empty or repeated item; write names between commas",
    )


def test_other_variables_of_vllm_cpp_are_left_alone() -> None:
    assert read_environment({**BARE, "VT_GDN_STATE_BF16": "1", "VT_ASYNC": "x"}) == read_environment(BARE)


def test_the_environment_travels_as_json() -> None:
    env = read_environment(
        {
            **BARE,
            "VTCORE_PLUGINS": "a,b",
            "VTCORE_MAX_NUM_SEQS": "3",
            "VT_ASYNC_SCHED": "0",
            "CUDA_VISIBLE_DEVICES": "",
        }
    )
    for each in (env, evolve(env, plugins=None), Environment()):
        assert Environment.from_json(json.loads(json.dumps(each.to_json()))) == each
