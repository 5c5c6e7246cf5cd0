"""vLLM's names: the data file is sound, and each entry becomes what it says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from vtcore.config.options import UserOptions
from vtcore.config.vllm_names import (
    ALWAYS,
    KINDS,
    KNOWN_NAMES,
    NOT_SERVED,
    RENAMED,
    SAME,
    TAKES,
    VLLM_FLAGS,
    VllmFlag,
    normalised,
    translate_options,
)

OWN = {option.name for option in fields(UserOptions)}
WHAT_TO_DO = re.compile(r"[;,] (and )?(leave it out|give|use|set|choose|read)\b")
TABLES: Mapping[str, Any] = tomllib.loads(
    files("vtcore.data").joinpath("vllm_serve_flags.toml").read_text(encoding="utf-8")
)

EVERY_FLAG = pytest.mark.parametrize("flag", VLLM_FLAGS.values(), ids=list(VLLM_FLAGS))
SAMPLES: Mapping[str, Any] = {
    "none": True,
    "bool": True,
    "one": "something",
    "optional": "something",
    "many": ["something"],
    "json": {"key": "something"},
}


def test_every_table_and_key_of_the_file_is_known() -> None:
    assert set(TABLES) == {"sentences", *KINDS}
    keys = {kind: set().union(*(entry.keys() for entry in TABLES[kind].values())) for kind in KINDS}
    assert keys[SAME] == {"takes", "short", "read"}
    assert keys[RENAMED] == {"takes", "to"}
    assert keys[ALWAYS] == {"takes", "short", "values", "why", "sentence", "group"}
    assert keys[NOT_SERVED] == {"takes", "short", "values", "even_false", "sentence", "group"}


def test_no_name_or_spelling_is_listed_twice() -> None:
    names = [name for kind in KINDS for name in TABLES[kind]]
    spellings = [short for flag in VLLM_FLAGS.values() for short in flag.short]
    assert len(names) == len(set(names)) == len(VLLM_FLAGS) == 316
    assert len(spellings) == len(set(spellings))
    assert not {normalised(short.removeprefix("--")) for short in spellings if short[:2] == "--"} & set(
        spellings
    )


def test_each_group_is_used_and_exists() -> None:
    used = {entry["group"] for kind in KINDS for entry in TABLES[kind].values() if "group" in entry}
    assert used == set(TABLES["sentences"])


@EVERY_FLAG
def test_an_entry_says_all_that_its_kind_needs(flag: VllmFlag) -> None:
    entry = TABLES[flag.kind][flag.name]
    assert flag.takes in TAKES
    assert re.fullmatch(r"[a-z][a-z0-9_]*", flag.name)
    assert all(re.fullmatch(r"-[a-zA-Z]+|--[a-z-]+", short) for short in flag.short)
    assert (flag.to in OWN) == (flag.kind in (SAME, RENAMED))
    assert (flag.name in OWN) == (flag.kind == SAME)
    assert (flag.why is not None) == (flag.kind == ALWAYS)
    assert not {"group", "sentence"} <= set(entry)
    can_be_refused = flag.kind == NOT_SERVED or (flag.kind == ALWAYS and "values" in entry)
    assert (flag.sentence is not None) == can_be_refused


@EVERY_FLAG
def test_a_sentence_is_one_and_says_what_to_do(flag: VllmFlag) -> None:
    for text in filter(None, (flag.sentence, flag.why)):
        assert text == text.strip()
        assert text[-1].isalnum() or text[-1] in "`)"
        assert "\n" not in text
        assert ". " not in text
        assert "$." not in text
    if flag.sentence is not None:
        assert WHAT_TO_DO.search(flag.sentence)


@EVERY_FLAG
def test_an_entry_ends_as_its_kind_says(flag: VllmFlag) -> None:
    sample = SAMPLES[flag.takes]
    found = translate_options({flag.name: sample})
    assert found == translate_options({flag.name.replace("_", "-"): sample})
    assert not found.problems
    if flag.to is not None:
        assert (found.options, found.not_served, found.notes) == ({flag.to: sample}, (), ())
        return
    assert found.options == {}
    if flag.accepts(sample):
        assert flag.kind == ALWAYS
        assert found.notes == (f"$.{flag.name}: accepted; {flag.why}",)
        assert found.not_served == ()
    else:
        [refusal] = found.not_served
        named = (
            ""
            if flag.values is None or flag.takes not in ("one", "optional")
            else f"{sample!r} is not served: "
        )
        assert refusal == f"$.{flag.name}: {named}{flag.sentence}"
        assert found.notes == ()


@EVERY_FLAG
def test_values_that_are_so_are_accepted_and_others_are_not(flag: VllmFlag) -> None:
    for value in flag.values or ():
        for spelled in (value, str(value), [value], {"key": value}):
            found = translate_options({flag.name: spelled})
            assert not found.not_served
            assert len(found.notes) == 1
    if flag.values is not None:
        assert len(translate_options({flag.name: "something else"}).not_served) == 1


@EVERY_FLAG
def test_what_asks_for_nothing_leaves_no_trace(flag: VllmFlag) -> None:
    nothing: tuple[Any, ...] = (None, "", [], {})
    for empty in nothing:
        found = translate_options({flag.name: empty})
        assert (found.not_served, found.notes, found.problems) == ((), (), ())
        assert set(found.options) == ({flag.to} if flag.to else set())


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (
            {"tensor_parallel_size": 2},
            "$.tensor_parallel_size: 2 is not served: for several devices or engines, and this version runs "
            "one engine on one device; leave it out",
        ),
        (
            {"enable-chunked-prefill": False},
            "$.enable_chunked_prefill: chunked prefill cannot be switched off; leave it out, or "
            "set max_num_batched_tokens to max_model_len so that no chunk is cut",
        ),
        (
            {"limit_mm_per_prompt": {"image": 0, "video": {"count": 1}}},
            "$.limit_mm_per_prompt: for images, audio or video, and this version serves text "
            "alone; leave it out and send text",
        ),
        (
            {"hf_token": "secret"},
            "$.hf_token: tokens are not taken as options, which end up in process lists and "
            "logs; leave it out and set the environment variable HF_TOKEN",
        ),
        (
            {"cohere_is_reasoning_model": False},
            "$.cohere_is_reasoning_model: an option of a server, which this version does not "
            "have; leave it out and use `vtcore generate` or `vtcore chat`",
        ),
    ],
)
def test_a_refusal_names_the_option_the_reason_and_the_remedy(data: dict[str, Any], refusal: str) -> None:
    assert translate_options(data).not_served == (refusal,)


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("generation_config", "vllm", "neutral"),
        ("generation_config", "auto", "auto"),
        ("dtype", "float", "float32"),
        ("dtype", "bfloat16", "bfloat16"),
        ("load_format", "safetensors", "auto"),
        ("max_model_len", -1, "auto"),
        ("max_model_len", "-1", "auto"),
        ("max_model_len", 4096, 4096),
        ("device_memory_utilization", 0.5, 0.5),
    ],
)
def test_values_that_we_write_otherwise_are_translated(name: str, theirs: Any, ours: Any) -> None:
    assert list(translate_options({name: theirs}).options.values()) == [ours]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            {"max_num_seqs": 3, "max-num-seqs": 4},
            "$.max_num_seqs: given twice, as 'max_num_seqs' and as 'max-num-seqs'; keep one",
        ),
        (
            {"num-gpu-blocks-override": 3, "num_blocks": 4},
            "$.num_blocks: given twice, as 'num-gpu-blocks-override' and as 'num_blocks'; keep one",
        ),
        (
            {"device_memory_utilization": 0.5, "gpu_memory_utilization": 0.5},
            "$.gpu_memory_utilization: given twice, as 'device_memory_utilization' and as "
            "'gpu_memory_utilization'; keep one",
        ),
    ],
)
def test_an_option_under_two_names_is_a_problem(data: dict[str, Any], problem: str) -> None:
    assert translate_options(data).problems == (problem,)


def test_unknown_names_are_left_for_the_structure() -> None:
    assert translate_options({"max_num_sequences": 8, 3: 4}).options == {"max_num_sequences": 8, 3: 4}


def test_known_names_are_ours_and_vllms() -> None:
    assert OWN < KNOWN_NAMES
    assert {"tensor_parallel_size", "speculative_config", "device_memory_utilization"} <= KNOWN_NAMES
    assert not {name for name in KNOWN_NAMES if "-" in name}


@given(
    st.dictionaries(
        st.sampled_from(sorted(KNOWN_NAMES)), st.none() | st.booleans() | st.text() | st.integers()
    )
)
def test_each_name_ends_in_one_place(data: dict[str, Any]) -> None:
    found = translate_options(data)
    ends = [*found.options, *found.problems, *found.not_served, *found.notes]
    asks_nothing = [
        name
        for name, value in data.items()
        if value in (None, "") and VLLM_FLAGS.get(normalised(name), VLLM_FLAGS["model"]).to is None
    ]
    assert len(ends) + len(asks_nothing) == len(data)
    assert set(found.options) <= OWN
