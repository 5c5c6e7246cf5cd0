"""Options from keywords, files and the environment: who wins, where each stands, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcore.config.engine_config import Origin
from vtcore.config.env import Environment, read_environment
from vtcore.config.layers import GivenOptions, gather_options
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.config.structure import options_to_json
from vtcore.errors import ConfigError, NotServedError

NOTHING = Environment()


def write(folder: Path, text: str, name: str = "options.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def gather(
    keywords: dict[str, Any], file: Path | None = None, environ: dict[str, str] | None = None
) -> GivenOptions:
    environment = NOTHING if environ is None else read_environment(environ)
    return gather_options(keywords, config_file=file, environment=environment)


def test_nothing_given_is_nothing_asked() -> None:
    assert gather({}) == GivenOptions(options=UserOptions(), sources={}, environment=NOTHING)


@pytest.mark.parametrize(
    ("in_keywords", "in_file", "in_environment", "value", "source"),
    [
        (True, True, True, 1, "keyword"),
        (True, False, True, 1, "keyword"),
        (True, True, False, 1, "keyword"),
        (False, True, True, 2, "config file: FILE"),
        (False, True, False, 2, "config file: FILE"),
        (False, False, True, 3, "environment: VTCORE_MAX_NUM_SEQS"),
        (False, False, False, None, None),
    ],
)
def test_keywords_win_over_the_file_and_the_file_over_the_environment(
    in_keywords: bool,
    in_file: bool,
    in_environment: bool,
    value: int | None,
    source: str | None,
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "max_num_seqs = 2\n" if in_file else "")
    found = gather(
        {"max_num_seqs": 1 if in_keywords else None},
        file,
        {"VTCORE_MAX_NUM_SEQS": "3"} if in_environment else {},
    )
    assert found.options.max_num_seqs == value
    assert {name: str(origin) for name, origin in found.sources.items()} == (
        {"max_num_seqs": source.replace("FILE", str(file))} if source else {}
    )


def test_each_option_comes_from_the_strongest_source_that_has_it(tmp_path: Path) -> None:
    file = write(tmp_path, 'seed = 2\nblock_size = 2\ndtype = "float32"\n')
    found = gather(
        {"seed": 1}, file, {"VTCORE_SEED": "3", "VTCORE_BLOCK_SIZE": "3", "VTCORE_NUM_BLOCKS": "3"}
    )
    assert found.options == UserOptions(seed=1, block_size=2, dtype="float32", num_blocks=3)
    assert {name: origin.source for name, origin in found.sources.items()} == {
        "seed": "keyword",
        "block_size": "config file",
        "dtype": "config file",
        "num_blocks": "environment",
    }


def test_a_mapping_is_taken_whole(tmp_path: Path) -> None:
    file = write(tmp_path, "[override_generation_config]\ntemperature = 0.5\ntop_k = 3\n")
    found = gather({"override_generation_config": {"temperature": 1.0}}, file)
    assert found.options.override_generation_config == {"temperature": 1.0}


def test_false_zero_and_an_empty_list_are_given(tmp_path: Path) -> None:
    file = write(tmp_path, 'seed = 5\nenable_prefix_caching = true\nplugin_files = ["a.py"]\n')
    found = gather({"seed": 0, "enable_prefix_caching": False, "plugin_files": []}, file)
    assert found.options == UserOptions(seed=0, enable_prefix_caching=False, plugin_files=())


def test_the_caller_says_what_its_keywords_are() -> None:
    found = gather_options({"seed": 1}, environment=NOTHING, where="command line")
    assert found.sources == {"seed": Origin("command line")}


def test_names_may_have_dashes_and_be_vllms(tmp_path: Path) -> None:
    file = write(tmp_path, "max-num-seqs = 2\nnum-gpu-blocks-override = 9\ntrust-remote-code = true\n")
    found = gather({"block-size": 16, "enable_chunked_prefill": True}, file)
    assert found.options == UserOptions(max_num_seqs=2, num_blocks=9, block_size=16)
    assert len(found.notes) == 2
    assert found.notes[0].startswith(f"{file}: $.trust_remote_code: accepted")
    assert found.notes[1].startswith("$.enable_chunked_prefill: accepted")


def test_a_null_is_not_given_also_beside_the_other_spelling(tmp_path: Path) -> None:
    file = write(tmp_path, "seed: null\nblock-size: ~\nblock_size: 16\ndtype:\n", "a.yaml")
    assert gather({"num-blocks": None, "num_blocks": 3}, file).options == UserOptions(
        num_blocks=3, block_size=16
    )


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("max-model-len: 32k", {"max_model_len": 32_000}),
        ("max-model-len: auto", {"max_model_len": "auto"}),
        ("max-model-len: -1", {"max_model_len": "auto"}),
        ("kv-cache-memory-bytes: 4G", {"kv_cache_memory_bytes": 4 * 2**30}),
        ("gpu-memory-utilization: 9e-1", {"gpu_memory_utilization": 0.9}),
        ("gpu-memory-utilization: 1", {"gpu_memory_utilization": 1.0}),
        ("served-model-name: a", {"served_model_name": ("a",)}),
        ("served-model-name: [a, b]", {"served_model_name": ("a", "b")}),
        ("enforce-eager: 'true'", {"enforce_eager": True}),
        ("enforce-eager: on", {"enforce_eager": True}),
        (
            "override-generation-config: '{\"top_k\": 3}'",
            {"override_generation_config": {"top_k": 3}},
        ),
        ("override-generation-config: {top_k: 3}", {"override_generation_config": {"top_k": 3}}),
        ("generation-config: vllm", {"generation_config": "neutral"}),
    ],
)
def test_a_yaml_file_is_what_vllm_takes(line: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert gather({}, write(tmp_path, line, "a.yaml")).options == UserOptions(**options)


def problems_of(*args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        gather(*args, **kwargs)
    return caught.value.problems


def test_a_text_is_no_number_in_toml_and_keywords(tmp_path: Path) -> None:
    file = write(tmp_path, 'max_num_seqs = "4"\n')
    assert problems_of({"seed": "4"}, file) == (
        f"{file}: $.max_num_seqs: '4' is not an integer",
        "$.seed: '4' is not an integer",
    )


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("VTCORE_SEED", "x", "VTCORE_SEED: 'x' is not an integer such as 4096, 32k (32,000) or 32K (32,768)"),
        (
            "VTCORE_BLOCK_SIZE",
            "0",
            "VTCORE_BLOCK_SIZE: 0 is below 1; raise it, or leave it out for the default",
        ),
        (
            "VTCORE_LOAD_FORMAT",
            "dumy",
            "VTCORE_LOAD_FORMAT: 'dumy' is not served; did you mean 'dummy'?",
        ),
        ("VTCORE_MAX_MODEL_LEN", "aut", "VTCORE_MAX_MODEL_LEN: 'aut' is not an integer or 'auto'"),
        (
            "VTCORE_OVERRIDE_GENERATION_CONFIG",
            '{"a": [Infinity]}',
            "VTCORE_OVERRIDE_GENERATION_CONFIG.a[0]: inf is not a finite number",
        ),
        (
            "VTCORE_PLUGIN_OWNERS",
            '{"a": 1}',
            "VTCORE_PLUGIN_OWNERS: {'a': 1} is not a mapping of texts",
        ),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str, problem: str) -> None:
    assert problems_of({}, environ={variable: text}) == (problem,)


def test_the_problems_of_all_sources_are_reported_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "max_num_sqes = 4\nblock_size = 0\nmax-num-seqs = 1\nmax_num_seqs = 2\n")
    found = problems_of({"modle": "x", "seed": -1}, file, {"VTCORE_SEED": "x"})
    assert [problem.partition("; ")[0] for problem in found] == [
        "VTCORE_SEED: 'x' is not an integer such as 4096, 32k (32,000) or 32K (32,768)",
        f"{file}: $.max_num_seqs: given twice, as 'max-num-seqs' and as 'max_num_seqs'",
        f"{file}: $.max_num_sqes: no such option",
        f"{file}: $.block_size: 0 is below 1",
        "$.modle: no such option",
        "$.seed: -1 is below 0",
    ]
    assert found[2].endswith("did you mean 'max_num_seqs'?")


def test_a_value_that_loses_is_still_checked(tmp_path: Path) -> None:
    [problem] = problems_of({"seed": 1}, write(tmp_path, "seed = -1"))
    assert problem.endswith("$.seed: -1 is below 0; raise it, or leave it out for the default")


def test_an_unreadable_file_and_an_unknown_variable_hide_no_other_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTCORE_SEDE", "1")
    with pytest.raises(ConfigError) as caught:
        gather_options({"seed": -1}, config_file=tmp_path / "none.toml")
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "VTCORE_SEDE",
        str(tmp_path / "none.toml"),
        "$.seed",
    ]


def test_an_unknown_variable_hides_no_problem_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCORE_FOO", "1")
    monkeypatch.setenv("VTCORE_MAX_NUM_SEQS", "abc")
    monkeypatch.setenv("VTCORE_BLOCK_SIZE", "0")
    with pytest.raises(ConfigError) as caught:
        gather_options({})
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "VTCORE_FOO",
        "VTCORE_MAX_NUM_SEQS",
        "VTCORE_BLOCK_SIZE",
    ]


def test_a_known_value_of_an_own_option_can_be_merely_not_served() -> None:
    with pytest.raises(NotServedError, match=r"^\$\.dtype: 'half' is not served: .* float16; "):
        gather({"dtype": "half"})
    with pytest.raises(ConfigError) as caught:
        gather({"dtype": "half", "seed": -1})
    assert not isinstance(caught.value, NotServedError)


def test_the_processes_own_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCORE_SEED", "41")
    assert gather_options({}).options.seed == 41


def test_only_what_is_not_served_is_not_served(tmp_path: Path) -> None:
    file = write(tmp_path, "enable-lora = true\n")
    with pytest.raises(NotServedError) as caught:
        gather({"tensor_parallel_size": 2}, file)
    assert [problem.rpartition("$.")[2].split(":")[0] for problem in caught.value.problems] == [
        "enable_lora",
        "tensor_parallel_size",
    ]
    with pytest.raises(ConfigError) as wrong:
        gather({"seed": -1}, file)
    assert not isinstance(wrong.value, NotServedError)
    assert len(wrong.value.problems) == 2


def test_keys_that_are_no_texts_are_refused_by_path(tmp_path: Path) -> None:
    file = write(tmp_path, "3: 2\non: 3\n", "a.yaml")
    assert [problem.split(":")[1].strip() for problem in problems_of({}, file)] == ["$.3", "$.True"]


# A text survives every source when it has no comma, blank edge, control letter or NUL.
words = st.text(
    st.characters(codec="utf-8", exclude_characters=",", exclude_categories=("C", "Z")), min_size=1
)
word_lists = st.lists(words, min_size=1, max_size=3, unique=True)
numbers = st.integers(1, 2**40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": words,
    "load_format": st.sampled_from(("auto", "dummy")),
    "served_model_name": word_lists,
    "default_chat_template_kwargs": st.dictionaries(words, st.booleans() | numbers | words, max_size=2),
    "seed": st.integers(0, 2**63 - 1),
    "max_model_len": st.integers(2, 2**40) | st.just("auto"),
    "gpu_memory_utilization": st.floats(0.01, 1.0),
    "enable_prefix_caching": st.booleans(),
    "enforce_eager": st.booleans(),
    "kv_cache_memory_bytes": numbers,
    "plugin_files": word_lists,
    "plugin_owners": st.dictionaries(words, words, max_size=2),
}


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {as_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@settings(max_examples=60)
@given(
    data=st.fixed_dictionaries({}, optional=VALUES),
    split=st.lists(st.sampled_from(("keyword", "file", "environment")), min_size=12, max_size=12),
)
def test_options_are_the_same_from_whatever_source(
    folder: Path, data: dict[str, Any], split: list[str]
) -> None:
    """Each option stands in one source and has the value that it has as a keyword."""
    expected = gather(data).options
    place = dict(zip(VALUES, split, strict=True))
    for kind in ("toml", "yaml"):
        in_file = {name: value for name, value in data.items() if place[name] == "file"}
        if kind == "yaml":
            text = yaml.safe_dump({name.replace("_", "-"): value for name, value in in_file.items()})
        else:
            text = "\n".join(f"{name} = {as_toml(value)}" for name, value in in_file.items())
        found = gather(
            {name: value for name, value in data.items() if place[name] == "keyword"},
            write(folder, text, f"a.{kind}"),
            {
                f"VTCORE_{name.upper()}": as_text(value)
                for name, value in data.items()
                if place[name] == "environment"
            },
        )
        assert found.options == expected
        assert set(found.sources) == set(data)


CHILD = """
import json, sys
from vtcore.config.env import Environment
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.config.structure import options_from_json

options, environment = json.load(sys.stdin)
facts = ArchFacts(name="a", vocab_size=9, max_position_embeddings=99, is_recurrent=False,
                  default_token_budget=lambda max_num_seqs: 64, checkpoint_dtype="float32")
config = resolve_config(options_from_json(options), facts, Environment.from_json(environment))
print(config.digest(), config.cache.prefix_caching_hash_seed)
"""


@pytest.mark.parametrize("seed", ["random", "text"])
def test_a_child_process_resolves_what_it_is_sent_to_an_equal_digest(seed: str, tmp_path: Path) -> None:
    env = read_environment({"VLLM_PREFIX_CACHING_HASH_SEED": seed, "VTCORE_SEED": "7", "VT_ASYNC_SCHED": "0"})
    file = write(tmp_path, 'served_model_name = ["a"]\n[override_generation_config]\ntop_p = 0.5\n')
    found = gather_options({"kv_cache_memory_bytes": 10**6}, config_file=file, environment=env)
    facts = ArchFacts(
        name="a",
        vocab_size=9,
        max_position_embeddings=99,
        is_recurrent=False,
        default_token_budget=lambda max_num_seqs: 64,
        checkpoint_dtype="float32",
    )
    config = resolve_config(found.options, facts, env, sources=found.sources)
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([options_to_json(found.options), env.to_json()]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.split() == [config.digest(), config.cache.prefix_caching_hash_seed]
    assert (config.cache.prefix_caching_hash_seed == "text") is (seed == "text")
