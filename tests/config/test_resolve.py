"""Every default, every refusal and every origin of the engine's settings."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve, fields

from vtcore.config.engine_config import GROUPS, EngineConfig, Origin
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.config.resolve import ArchFacts, resolve_config
from vtcore.errors import CheckpointError, ConfigError, DeviceError, NotServedError
from vtcore.host.gpu import GpuFacts

PLAIN = ArchFacts(
    name="some_arch",
    vocab_size=1000,
    max_position_embeddings=4096,
    is_recurrent=False,
    default_token_budget=lambda max_num_seqs: 2048,
    checkpoint_dtype="bfloat16",
)
RECURRENT = evolve(PLAIN, is_recurrent=True)

# Each option with a value that is kept as it is, alone.
KEPT: dict[str, Any] = {
    "model": "dir",
    "revision": "v1",
    "download_dir": "there",
    "load_format": "dummy",
    "tokenizer": "other",
    "skip_tokenizer_init": True,
    "served_model_name": ("a",),
    "chat_template": "a.jinja",
    "default_chat_template_kwargs": {"enable_thinking": False},
    "generation_config": "neutral",
    "override_generation_config": {"temperature": 0.7},
    "dtype": "float64",
    "device": "cpu",
    "seed": 5,
    "max_model_len": 100,
    "enforce_eager": True,
    "async_scheduling": False,
    "enable_jump_forward": False,
    "op_overrides": {"rms_norm": "naive"},
    "block_size": 16,
    "num_blocks": 9,
    "kv_cache_memory_bytes": 10**9,
    "enable_prefix_caching": False,
    "prefix_caching_hash_seed": "s",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 77,
    "scheduling_policy": "any_name",
    "policy_config": {"weights": {"a": 2}},
    "policy_time_limit_ms": 7.5,
    "starvation_s": 0.5,
    "num_state_checkpoints": 3,
    "state_checkpoint_interval": 640,
    "plugin_files": ("a.py",),
    "plugin_owners": {"arch:a": "b"},
}
# These options are for GPUs.
OF_GPUS = {"gpu_memory_utilization": 0.5, "batch_invariant": True, "enforce_eager": False}
KEPT |= {name: value for name, value in OF_GPUS.items() if name not in KEPT}
# These options are for recurrent state with prefix caching.
OF_STATES = ("num_state_checkpoints", "state_checkpoint_interval")


def resolve(
    facts: ArchFacts = PLAIN,
    env: Environment | None = None,
    gpu: GpuFacts | None = None,
    sources: dict[str, Origin] | None = None,
    **options: Any,
) -> EngineConfig:
    return resolve_config(UserOptions(**options), facts, env or Environment(), sources=sources or {}, gpu=gpu)


def kept(name: str, **more: Any) -> EngineConfig:
    """A config with the one option, where it is served."""
    if name in OF_GPUS and KEPT[name] == OF_GPUS[name]:
        return resolve(device="cuda", **{name: KEPT[name]}, **more)
    if name in OF_STATES:
        return resolve(RECURRENT, enable_prefix_caching=True, **{name: KEPT[name]}, **more)
    return resolve(**{name: KEPT[name]}, **more)


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
        "model.revision": None,
        "model.download_dir": None,
        "model.load_format": "auto",
        "model.max_model_len": 4096,
        "model.max_model_len_pinned": False,
        "model.seed": 0,
        "model.enforce_eager": True,
        "model.batch_invariant": False,
        "model.op_overrides": {},
        "frontend.tokenizer": None,
        "frontend.skip_tokenizer_init": False,
        "frontend.served_model_name": ("some_arch",),
        "frontend.chat_template": None,
        "frontend.default_chat_template_kwargs": {},
        "frontend.generation_config": "auto",
        "frontend.override_generation_config": {},
        "cache.block_size": 32,
        "cache.num_blocks": 256,
        "cache.kv_cache_memory_bytes": None,
        "cache.gpu_memory_utilization": None,
        "cache.enable_prefix_caching": True,
        "cache.prefix_caching_hash_seed": None,
        "cache.num_state_checkpoints": 0,
        "cache.state_checkpoint_interval": 2048,
        "scheduler.max_num_seqs": 8,
        "scheduler.max_num_batched_tokens": 2048,
        "scheduler.scheduling_policy": "fcfs",
        "scheduler.policy_config": {},
        "scheduler.policy_time_limit_ms": 5.0,
        "scheduler.starvation_s": 30.0,
        "scheduler.async_scheduling": False,
        "scheduler.enable_jump_forward": False,
        "plugin_files": (),
        "plugin_owners": {},
    }


def test_every_option_has_a_value_in_the_config_and_every_value_an_origin() -> None:
    config = resolve(max_num_seqs=3, model="some/dir")
    names = [path.rpartition(".")[2] for path in config.values()]
    assert len(set(names)) == len(names)
    assert {option.name for option in fields(UserOptions)} == set(names) - {"arch", "max_model_len_pinned"}
    assert set(config.origins) == set(config.values())
    assert all(origin.source for origin in config.origins.values())


def test_the_groups_are_the_parts_of_a_config() -> None:
    nested = {part.name for part in fields(EngineConfig)} - {"origins", "plugin_files", "plugin_owners"}
    assert set(GROUPS) == nested


def test_the_cases_below_cover_every_option() -> None:
    assert set(KEPT) == {option.name for option in fields(UserOptions)}


@pytest.mark.parametrize("name", KEPT)
def test_a_users_value_is_kept_with_its_source(name: str) -> None:
    source = Origin("config file", "a.toml")
    for sources, origin in (({}, Origin("user")), ({name: source}, source)):
        config = kept(name, sources=sources)
        [path] = [path for path in config.values() if path.rpartition(".")[2] == name]
        assert config.values()[path] == KEPT[name]
        assert config.origins[path] == origin


@pytest.mark.parametrize("name", KEPT)
def test_another_value_has_another_digest(name: str) -> None:
    default = resolve(RECURRENT, enable_prefix_caching=True) if name in OF_STATES else resolve()
    [path] = [path for path in default.values() if path.rpartition(".")[2] == name]
    config = kept(name)
    assert (config.digest() != default.digest()) is (config.values() != default.values())
    if KEPT[name] != default.values()[path]:
        assert config.digest() != default.digest()


def test_a_digest_knows_values_and_not_their_sources() -> None:
    assert resolve().digest() == resolve().digest()
    assert resolve(block_size=32).digest() == resolve().digest()
    assert resolve(env=Environment(prefix_caching_hash_seed="s")).digest() != resolve().digest()


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("model.model", "default: tensors in memory"),
        ("model.max_model_len", "checkpoint: max_position_embeddings"),
        ("model.enforce_eager", "device: cpu captures no graphs"),
        ("frontend.served_model_name", "default: the arch"),
        ("cache.block_size", "default"),
        ("cache.kv_cache_memory_bytes", "default: num_blocks sizes the cache"),
        ("cache.prefix_caching_hash_seed", "default: the built-in root"),
        ("scheduler.max_num_batched_tokens", "arch: of some_arch"),
        ("scheduler.async_scheduling", "device: cpu, it computes on the host's own cores"),
    ],
)
def test_a_default_says_why(path: str, origin: str) -> None:
    assert str(resolve().origins[path]) == origin


def test_a_model_is_called_what_the_user_called_it() -> None:
    config = resolve(model="org/name")
    assert config.frontend.served_model_name == ("org/name",)
    assert str(config.origins["frontend.served_model_name"]) == "default: MODEL as given"


@pytest.mark.parametrize(
    ("option", "length", "pinned"), [(None, 4096, False), ("auto", 4096, False), (4096, 4096, True)]
)
def test_only_a_number_pins_the_length(option: int | str | None, length: int, pinned: bool) -> None:
    model = resolve(max_model_len=option).model
    assert (model.max_model_len, model.max_model_len_pinned) == (length, pinned)


def test_bytes_leave_the_number_of_blocks_to_the_memory_plan() -> None:
    cache = resolve(kv_cache_memory_bytes=10**9).cache
    assert (cache.num_blocks, cache.kv_cache_memory_bytes) == (None, 10**9)


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


USABLE = GpuFacts(("A100",))
BROKEN = GpuFacts(("A100",), "1 GPU (A100) cannot be used: no driver", "load the driver")


@pytest.mark.parametrize(
    ("asked", "gpu", "origin"),
    [
        (None, None, "default"),
        ("auto", GpuFacts(), "default: no usable GPU is here"),
        ("cpu", USABLE, "user"),
        ("cpu", BROKEN, "user"),
    ],
)
def test_the_device_is_the_cpu_with_the_reason(asked: str | None, gpu: GpuFacts | None, origin: str) -> None:
    config = resolve(device=asked, gpu=gpu)
    assert (config.model.device, str(config.origins["model.device"])) == ("cpu", origin)


TWO = GpuFacts(("OLD", "H200"), unusable={0: "the installed torch has no kernels for OLD"})


@pytest.mark.parametrize("asked", [None, "auto", "cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("gpu", [USABLE, TWO, GpuFacts(("A100", "H200"))])
def test_the_device_is_the_first_usable_gpu_or_the_one_asked_for(asked: str | None, gpu: GpuFacts) -> None:
    number = int(asked.partition(":")[2] or 0) if asked and asked.startswith("cuda") else gpu.first_usable
    assert number is not None
    if number >= len(gpu.names) or number in gpu.unusable:
        with pytest.raises(DeviceError):
            resolve(device=asked, gpu=gpu)
        return
    config = resolve(device=asked, gpu=gpu)
    assert config.model.is_gpu
    if asked in (None, "auto"):
        assert config.model.device == ("cuda:1" if number else "cuda")
        assert str(config.origins["model.device"]) == f"device: {gpu.names[number]}"
    else:
        assert (config.model.device, str(config.origins["model.device"])) == (asked, "user")


@pytest.mark.parametrize(
    ("asked", "gpu", "hidden", "sentence"),
    [
        (
            "cuda",
            GpuFacts(),
            False,
            "device 'cuda': no NVIDIA GPU is here; see what `vtcore doctor` says, or ",
        ),
        ("cuda:1", GpuFacts(), True, "device 'cuda:1': CUDA_VISIBLE_DEVICES hides every GPU; unset it, or "),
        ("cuda:2", TWO, False, "device 'cuda:2': the GPUs here have the numbers 0 to 1; give one of them"),
        ("cuda", TWO, False, "device 'cuda': the installed torch has no kernels for OLD; choose another GPU"),
        ("cuda", BROKEN, False, "1 GPU (A100) cannot be used: no driver; load the driver, or choose device"),
    ],
)
def test_a_gpu_that_is_asked_for_and_cannot_be_used_stops_a_start_and_no_plan(
    asked: str, gpu: GpuFacts, hidden: bool, sentence: str
) -> None:
    env = Environment(gpus_hidden=hidden)
    with pytest.raises(DeviceError) as caught:
        resolve(device=asked, gpu=gpu, env=env)
    assert str(caught.value).startswith(sentence)
    plan = resolve_config(UserOptions(device=asked), PLAIN, env, gpu=gpu, only_plan=True)
    assert plan.model.device == asked


def test_defaults_of_a_gpu() -> None:
    cpu, gpu = resolve().values(), resolve(device="cuda").values()
    assert {path: value for path, value in gpu.items() if value != cpu[path]} == {
        "model.device": "cuda",
        "model.enforce_eager": False,
        "cache.num_blocks": None,
        "cache.gpu_memory_utilization": 0.92,
        "scheduler.max_num_seqs": 256,
        "scheduler.max_num_batched_tokens": 8192,
        "scheduler.async_scheduling": True,
    }
    states = resolve(RECURRENT, device="cuda", enable_prefix_caching=True).cache.num_state_checkpoints
    assert states == 64


@pytest.mark.parametrize(("device", "is_on"), [("cpu", False), ("cuda", True)])
@pytest.mark.parametrize(
    ("env", "forced"),
    [({}, None), ({"async_sched": "0"}, False), ({"async_runner": "0"}, False), ({"async_sched": "1"}, True)],
)
def test_the_environment_may_switch_asynchronous_scheduling(
    device: str, is_on: bool, env: dict[str, Any], forced: bool | None
) -> None:
    scheduler = resolve(env=Environment(**env), device=device).scheduler
    assert scheduler.async_scheduling is (is_on if forced is None else forced)


def test_a_batch_invariant_budget_holds_a_chunk() -> None:
    config = resolve(device="cuda", batch_invariant=True, max_num_seqs=4, max_num_batched_tokens=8)
    assert config.scheduler.max_num_batched_tokens == 67


def test_a_checkpoint_in_float64_is_served_in_float32_on_a_gpu() -> None:
    config = resolve(evolve(PLAIN, checkpoint_dtype="float64"), device="cuda")
    assert config.model.dtype == "float32"
    assert str(config.origins["model.dtype"]) == "default: the checkpoint says float64, which is not served"
    assert resolve(evolve(PLAIN, checkpoint_dtype="float64")).model.dtype == "float64"


@pytest.mark.parametrize("asked", [None, "auto"])
def test_an_unusable_gpu_is_an_error_with_both_ways_out(asked: str | None) -> None:
    with pytest.raises(DeviceError) as caught:
        resolve(device=asked, gpu=BROKEN)
    assert str(caught.value) == (
        "1 GPU (A100) cannot be used: no driver; load the driver, "
        'or choose device "cpu" to compute without it'
    )


def test_wrong_options_are_reported_before_an_unusable_gpu() -> None:
    with pytest.raises(ConfigError, match=r"\$\.max_model_len"):
        resolve(max_model_len=5000, gpu=BROKEN)


@pytest.mark.parametrize(
    ("options", "env", "start"),
    [
        ({"enable_jump_forward": True}, {}, "$.enable_jump_forward: true is not served by this version"),
        ({"enforce_eager": False}, {}, "$.enforce_eager: false is not served on device 'cpu'"),
        ({"gpu_memory_utilization": 0.9}, {}, "$.gpu_memory_utilization: 0.9 is not served on device 'cpu'"),
        ({}, {"jump_forward": "1"}, "VT_ENABLE_JUMP_FORWARD: '1' switches jump-forward on"),
        ({"batch_invariant": True}, {}, "$.batch_invariant: true is not served on device 'cpu'"),
        ({"dtype": "float64", "device": "cuda"}, {}, "$.dtype: 'float64' is not served on device 'cuda'"),
    ],
)
def test_what_this_version_has_no_machinery_for_is_one_sentence(
    options: dict[str, Any], env: dict[str, Any], start: str
) -> None:
    with pytest.raises(NotServedError) as caught:
        resolve(RECURRENT, Environment(**env), **options)
    [problem] = caught.value.problems
    assert problem.startswith(start)
    assert problem.endswith(
        ("leave it out", "unset the variable", "instead", "tokens are the same", "or device cpu")
    )


def test_a_refusal_says_where_the_value_stands() -> None:
    with pytest.raises(NotServedError, match=r"true \(from environment: VTCORE_BATCH_INVARIANT\) is not"):
        resolve(
            batch_invariant=True,
            sources={"batch_invariant": Origin("environment", "VTCORE_BATCH_INVARIANT")},
        )


def test_blocks_and_bytes_do_not_go_together() -> None:
    [problem] = problems_of(num_blocks=3, kv_cache_memory_bytes=10**6)
    assert problem == (
        "$.num_blocks: 3 and kv_cache_memory_bytes 1000000 both size the cache; leave one of them out"
    )


def test_all_problems_are_reported_at_once_as_a_wrong_config() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(
            RECURRENT,
            Environment(jump_forward="1"),
            num_state_checkpoints=3,
            max_model_len=5000,
            num_blocks=3,
            kv_cache_memory_bytes=10**6,
        )
    assert not isinstance(caught.value, NotServedError)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "$.max_model_len",
        "$.num_blocks",
        "$.num_state_checkpoints",
        "VT_ENABLE_JUMP_FORWARD",
    ]


def test_several_things_that_are_not_served_are_still_not_served() -> None:
    with pytest.raises(NotServedError) as caught:
        resolve(enforce_eager=False, batch_invariant=True)
    assert len(caught.value.problems) == 2


def test_illegal_values_are_refused_even_without_structuring() -> None:
    assert problems_of(block_size=0, dtype="int3")[0].startswith("$.dtype")


def test_a_budget_below_max_num_seqs_is_raised_and_says_so() -> None:
    config = resolve(max_num_batched_tokens=7)
    assert config.scheduler.max_num_batched_tokens == 8
    assert str(config.origins["scheduler.max_num_batched_tokens"]) == (
        "user: 7 raised to max_num_seqs, so that none starves"
    )


def test_the_arch_decides_its_default_from_max_num_seqs() -> None:
    facts = evolve(PLAIN, default_token_budget=lambda seqs: 8192 if seqs >= 32 else 4096)
    assert resolve(facts, max_num_seqs=32).scheduler.max_num_batched_tokens == 8192
    assert resolve(facts, max_num_seqs=31).scheduler.max_num_batched_tokens == 4096


def test_several_names_need_a_server() -> None:
    with pytest.raises(NotServedError) as caught:
        resolve(served_model_name=("a", "b"))
    assert caught.value.problems == (
        "$.served_model_name: 2 names are not served, since only a server answers to several; give one, "
        "which metrics show",
    )


@pytest.mark.parametrize("name", ["tokenizer", "chat_template", "default_chat_template_kwargs"])
def test_an_option_about_text_is_not_ignored_where_there_is_no_text(name: str) -> None:
    where = {name: Origin("environment", "VAR")}
    with pytest.raises(ConfigError) as caught:
        resolve(sources=where, skip_tokenizer_init=True, **{name: KEPT[name]})
    assert caught.value.problems == (
        f"$.skip_tokenizer_init: true makes no text, but {name} (from environment: VAR) asks for some; leave "
        f"one of them out",
    )
    assert not resolve(skip_tokenizer_init=False, **{name: KEPT[name]}).frontend.skip_tokenizer_init


def test_an_empty_mapping_asks_for_no_text() -> None:
    assert resolve(skip_tokenizer_init=True, default_chat_template_kwargs={}).frontend.skip_tokenizer_init


def test_a_random_hash_seed_is_the_one_that_the_environment_drew() -> None:
    env = Environment()
    config = resolve(env=env, prefix_caching_hash_seed="random")
    assert config.cache.prefix_caching_hash_seed == env.random_hash_seed
    assert resolve(prefix_caching_hash_seed="random").digest() != config.digest()


@pytest.mark.parametrize(("seqs", "checkpoints"), [(None, 32), (1, 4), (100, 400)])
def test_state_checkpoints_grow_with_the_requests_that_run(seqs: int | None, checkpoints: int) -> None:
    cache = resolve(RECURRENT, enable_prefix_caching=True, max_num_seqs=seqs).cache
    assert (cache.num_state_checkpoints, cache.state_checkpoint_interval) == (checkpoints, 2048)
    assert resolve(RECURRENT, max_num_seqs=seqs).cache.num_state_checkpoints == 0


def test_a_setting_of_states_without_effect_says_where_it_stands() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(
            RECURRENT,
            num_state_checkpoints=4,
            state_checkpoint_interval=512,
            sources={"num_state_checkpoints": Origin("environment", "VTCORE_NUM_STATE_CHECKPOINTS")},
        )
    rest = (
        "would have no effect, for prefix caching is off; leave it out, or start with enable_prefix_caching"
    )
    assert caught.value.problems == (
        f"$.num_state_checkpoints: 4 (from environment: VTCORE_NUM_STATE_CHECKPOINTS) {rest}",
        f"$.state_checkpoint_interval: 512 {rest}",
    )
