"""Every default, every refusal and every origin of the engine's settings."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from vtcore.config.engine_config import EngineConfig
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.errors import CheckpointError, ConfigError
from vtcore.scheduling.token_budget import resolve_token_budget

PLAIN = ArchFacts(
    name="some_arch",
    vocab_size=1000,
    max_position_embeddings=4096,
    is_recurrent=False,
    default_token_budget=lambda max_num_seqs: 2048,
    checkpoint_dtype="bfloat16",
)
RECURRENT = evolve(PLAIN, is_recurrent=True)


def resolve(facts: ArchFacts = PLAIN, env: Environment | None = None, **options: Any) -> EngineConfig:
    return resolve_config(UserOptions(**options), facts, env or Environment())


def problems_of(facts: ArchFacts = PLAIN, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve(facts, **options)
    return caught.value.problems


def test_defaults() -> None:
    assert resolve().values() == {
        "model.model": None,
        "model.arch": "some_arch",
        "model.dtype": "bfloat16",
        "model.device": "cpu",
        "model.max_model_len": 4096,
        "model.max_model_len_pinned": False,
        "model.seed": 0,
        "model.skip_tokenizer_init": False,
        "cache.block_size": 32,
        "cache.num_blocks": 256,
        "cache.enable_prefix_caching": True,
        "cache.prefix_caching_hash_seed": None,
        "scheduler.max_num_seqs": 8,
        "scheduler.max_num_batched_tokens": 2048,
        "scheduler.scheduling_policy": "fcfs",
        "plugin_files": (),
        "plugin_owners": {},
    }


def test_every_value_has_an_origin() -> None:
    config = resolve(max_num_seqs=3, model="some/dir")
    assert set(config.origins) == set(config.values())
    assert config.origins["scheduler.max_num_seqs"].source == "user"
    assert config.origins["cache.block_size"].source == "default"
    assert str(config.origins["model.max_model_len"]) == "checkpoint: max_position_embeddings"
    assert str(config.origins["scheduler.max_num_batched_tokens"]) == "arch: of some_arch"


def test_a_users_value_is_kept_with_its_origin() -> None:
    given_options: dict[str, Any] = {
        "block_size": 16,
        "num_blocks": 9,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 77,
        "enable_prefix_caching": False,
        "scheduling_policy": "any_name",
        "seed": 5,
        "skip_tokenizer_init": True,
        "dtype": "float64",
        "device": "cpu",
        "max_model_len": 100,
        "model": "dir",
        "plugin_files": ("a.py",),
        "plugin_owners": {"arch:a": "b"},
    }
    config = resolve(**given_options)
    by_name = {name.rpartition(".")[2]: (name, value) for name, value in config.values().items()}
    for name, value in given_options.items():
        path, kept = by_name[name]
        assert kept == value
        assert config.origins[path].source == "user"


def test_a_length_beyond_the_checkpoint_is_refused() -> None:
    [problem] = problems_of(max_model_len=4097)
    assert problem.startswith("$.max_model_len: 4097 is above max_position_embeddings 4096")
    assert resolve(max_model_len=4096).model.max_model_len_pinned


@pytest.mark.parametrize("given_value", [None, False])
def test_prefix_caching_is_off_for_recurrent_archs(given_value: bool | None) -> None:
    config = resolve(RECURRENT, enable_prefix_caching=given_value)
    assert config.cache.enable_prefix_caching is False
    expected = "arch: some_arch is recurrent" if given_value is None else "user"
    assert str(config.origins["cache.enable_prefix_caching"]) == expected


def test_prefix_caching_asked_for_on_a_recurrent_arch_is_refused_with_the_remedy() -> None:
    [problem] = problems_of(RECURRENT, enable_prefix_caching=True)
    assert problem.startswith("$.enable_prefix_caching: true is not served for arch 'some_arch'")
    assert problem.endswith("set it to false or leave it out")


@pytest.mark.parametrize(
    ("stored", "asked", "dtype", "source"),
    [
        ("bfloat16", None, "bfloat16", "checkpoint"),
        ("torch.float32", "auto", "float32", "checkpoint"),
        ("float16", None, "float32", "default"),
        ("auto", None, "float32", "default"),
        (None, None, "float32", "default"),
        ("bfloat16", "float64", "float64", "user"),
    ],
)
def test_dtype_is_the_checkpoints_unless_asked(
    stored: str | None, asked: str | None, dtype: str, source: str
) -> None:
    config = resolve(evolve(PLAIN, checkpoint_dtype=stored), dtype=asked)
    assert (config.model.dtype, config.origins["model.dtype"].source) == (dtype, source)


@pytest.mark.parametrize("stored", [5, 0, ["bfloat16"], {"dtype": "bfloat16"}, True])
@pytest.mark.parametrize("asked", [None, "float32"])
def test_a_checkpoint_whose_dtype_is_no_name_is_refused(stored: object, asked: str | None) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: `dtype` is .*, not the name of a dtype"):
        resolve(evolve(PLAIN, checkpoint_dtype=stored), dtype=asked)


def test_auto_device_is_the_cpu_by_default() -> None:
    config = resolve(device="auto")
    assert (config.model.device, config.origins["model.device"].source) == ("cpu", "default")


def test_the_hash_seed_comes_from_the_environment() -> None:
    config = resolve(env=Environment(prefix_caching_hash_seed="s"))
    assert config.cache.prefix_caching_hash_seed == "s"
    assert config.origins["cache.prefix_caching_hash_seed"].source == "environment"


def test_what_does_not_go_together_is_reported_at_once() -> None:
    problems = problems_of(
        RECURRENT, enable_prefix_caching=True, max_model_len=5000, max_num_seqs=8, max_num_batched_tokens=7
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "$.max_model_len",
        "$.enable_prefix_caching",
        "$.max_num_batched_tokens",
    ]


def test_illegal_values_are_refused_even_without_structuring() -> None:
    assert problems_of(block_size=0, dtype="int3")[0].startswith("$.dtype")


@pytest.mark.parametrize(
    ("explicit", "seqs", "length", "default", "budget"),
    [
        (None, 8, 4096, 2048, 2048),
        (None, 32, 4096, 8192, 8192),
        (None, 2, 10, 2048, 20),
        (None, 8, 1, 2048, 8),
        (None, 4000, 4096, 2048, 4000),
        (100_000, 2, 10, 2048, 100_000),
        (8, 8, 4096, 2048, 8),
    ],
)
def test_the_token_budget_rule(
    explicit: int | None, seqs: int, length: int, default: int, budget: int
) -> None:
    assert resolve_token_budget(explicit, seqs, length, default) == budget


@given(st.integers(1, 10**4), st.integers(1, 10**6), st.integers(1, 10**5))
def test_the_default_budget_serves_every_request_and_no_more_than_all_can_hold(
    seqs: int, length: int, default: int
) -> None:
    budget = resolve_token_budget(None, seqs, length, default)
    assert seqs <= budget <= max(default, seqs)
    assert budget <= seqs * length


def test_a_budget_below_max_num_seqs_is_refused_not_raised() -> None:
    with pytest.raises(ConfigError, match=r"7 is below max_num_seqs 8.*raise it to 8 or lower max_num_seqs"):
        resolve_token_budget(7, 8, 4096, 2048)


def test_the_arch_decides_its_default_from_max_num_seqs() -> None:
    facts = evolve(PLAIN, default_token_budget=lambda seqs: 8192 if seqs >= 32 else 4096)
    assert resolve(facts, max_num_seqs=32).scheduler.max_num_batched_tokens == 8192
    assert resolve(facts, max_num_seqs=31).scheduler.max_num_batched_tokens == 4096


def test_equal_settings_have_equal_digests_and_others_not() -> None:
    assert resolve().digest() == resolve().digest()
    assert resolve(block_size=32).digest() == resolve().digest()
    assert resolve(block_size=16).digest() != resolve().digest()
    assert resolve(plugin_owners={"arch:a": "b"}).digest() != resolve().digest()
    assert resolve(env=Environment(prefix_caching_hash_seed="s")).digest() != resolve().digest()
