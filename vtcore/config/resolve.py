"""The one pure function from options, the arch's facts and the environment to an engine's settings.

Does not: touch a device, read a file or the environment, or measure memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen

from vtcore.config import rules
from vtcore.config.decision import Decision, Given
from vtcore.config.engine_config import (
    CacheConfig,
    EngineConfig,
    FrontendConfig,
    ModelConfig,
    Origin,
    SchedulerConfig,
    is_gpu,
)
from vtcore.config.env import Environment
from vtcore.config.options import DTYPES, UserOptions, option_problems, unserved_problems
from vtcore.errors import CheckpointError, ConfigError, DeviceError, NotServedError
from vtcore.scheduling.chunk_end import INVARIANT_CHUNK

if TYPE_CHECKING:
    from vtcore.host.gpu import GpuFacts

T = TypeVar("T")

DEFAULT_BLOCK_SIZE = 32
"""Tokens per block. Source: vllm.cpp model_loader.h, EngineParams."""
DEFAULT_SEED = 0
"""A fixed seed: runs repeat unless asked otherwise. Source: vLLM config/model.py, ModelConfig.seed."""
DEFAULT_POLICY = "fcfs"
"""First come, first served. Source: vllm.cpp model_loader.h, EngineParams."""
DEFAULT_GENERATION_CONFIG = "auto"
"""The checkpoint's sampling defaults. Source: vLLM config/model.py, ModelConfig.generation_config."""
DEFAULT_STATE_CHECKPOINT_INTERVAL = 2048
"""Tokens between state checkpoints inside a long prompt: one default token budget of the Qwen3.5 archs."""
DEFAULT_POLICY_TIME_LIMIT_MS = 5.0
"""Longest `order` of a policy may take: a tenth of a usual decode step on a CPU."""
DEFAULT_STARVATION_S = 30.0
"""After that long a request goes first, whatever the policy says."""
_TEXT_OPTIONS = ("tokenizer", "chat_template", "default_chat_template_kwargs")


@frozen(kw_only=True)
class ArchFacts:
    """What an arch and its checkpoint say before any weight is read.

    Args:
        name: Registry name of the arch.
        vocab_size: Token ids are below it.
        max_position_embeddings: Longest sequence in tokens.
        is_recurrent: Whether any cache group has the lifetime `Slot`.
        is_bounded: Whether no cache group has the lifetime `Whole`.
        default_token_budget: max_num_seqs -> the arch's own token budget per step.
        checkpoint_dtype: As config.json has it, unchecked: "bfloat16", or torch's "torch.bfloat16"; None when
            the checkpoint does not say.
    """

    name: str
    vocab_size: int
    max_position_embeddings: int
    is_recurrent: bool
    default_token_budget: Callable[[int], int]
    checkpoint_dtype: Any = None
    is_bounded: bool = False


class _Decisions:
    """Collects values with their origins, and what is wrong with them."""

    def __init__(self, options: UserOptions, sources: Mapping[str, Origin]) -> None:
        self.origins: dict[str, Origin] = {}
        self.problems: list[str] = []
        self.is_served = True
        self._options = options
        self._sources = sources

    def given(self, name: str) -> Given[Any]:
        """What the user said about an option."""
        return Given(getattr(self._options, name), self._sources.get(name, Origin("user")))

    def add(self, path: str, decision: Decision[T]) -> T:
        """The value of a decision."""
        self.origins[path] = decision.origin
        if decision.problem:
            self.is_served = False
            self.problems.append(decision.problem)
        self.problems += decision.not_served
        return decision.value

    def take(self, path: str, default: Any, source: str = "default", note: str = "") -> Any:
        """The given value if there is one, else the default."""
        given = self.given(path.rpartition(".")[2])
        value = default if given.value is None else given.value
        return self.add(path, Decision(value=value, origin=given.origin_or(source, note)))

    def check(self) -> None:
        """Raise what is wrong, all at once."""
        if self.problems:
            raise (NotServedError if self.is_served else ConfigError)(*self.problems)


def resolve_config(
    options: UserOptions,
    facts: ArchFacts,
    env: Environment,
    *,
    sources: Mapping[str, Origin] = MappingProxyType({}),
    gpu: GpuFacts | None = None,
    only_plan: bool = False,
) -> EngineConfig:
    """Decide every setting.

    Args:
        options: The user's; None means "decide for me".
        facts: The arch's.
        env: As read once by `read_environment`.
        sources: Option -> where its value came from, as `gather_options` says; "user" for those left out.
        gpu: What the machine has; None when nobody looked, then there is no word on it.
        only_plan: Whether nothing will run, so that the GPU that the user names need not be here.

    Returns:
        The settings; `max_model_len` is final only if pinned, and `num_blocks` None if bytes size the cache.

    Raises:
        ConfigError: Every illegal value and every pair that does not go together, at once.
        NotServedError: The same, when each is merely something that this version does not serve.
        CheckpointError: The checkpoint's dtype is no name.
        DeviceError: A GPU is present but unusable, and the user did not choose the cpu; or the one that the
            user chose is not here.
    """
    problems = option_problems(options)
    not_served = unserved_problems(options)
    if problems or not_served:
        raise (ConfigError if problems else NotServedError)(*problems, *not_served)
    decisions = _Decisions(options, sources)
    model = _resolve_model(options, facts, gpu, decisions)
    config = EngineConfig(
        model=model,
        frontend=_resolve_frontend(options, facts, decisions),
        cache=_resolve_cache(facts, env, model.device, decisions),
        scheduler=_resolve_scheduler(facts, env, model, decisions),
        plugin_files=decisions.take("plugin_files", ()),
        plugin_owners=decisions.take("plugin_owners", {}),
        origins=decisions.origins,
    )
    decisions.check()
    if gpu is not None and not (only_plan and options.device not in (None, "auto")):
        _check_device(options.device, model.device, gpu, env)
    return config


def _resolve_model(
    options: UserOptions, facts: ArchFacts, gpu: GpuFacts | None, decisions: _Decisions
) -> ModelConfig:
    device = decisions.add("model.device", _decide_device(decisions.given("device"), gpu))
    arch = decisions.add("model.arch", Decision(value=facts.name, origin=Origin("checkpoint")))
    length = rules.resolve_max_model_len(decisions.given("max_model_len"), facts.max_position_embeddings)
    pinned = isinstance(options.max_model_len, int)
    return ModelConfig(
        model=decisions.take("model.model", None, note="tensors in memory"),
        arch=arch,
        dtype=decisions.add(
            "model.dtype", _decide_dtype(decisions.given("dtype"), facts.checkpoint_dtype, device)
        ),
        device=device,
        revision=decisions.take("model.revision", None, note="the main branch"),
        download_dir=decisions.take("model.download_dir", None, note="huggingface_hub's cache"),
        load_format=decisions.take("model.load_format", "auto"),
        max_model_len=decisions.add("model.max_model_len", length),
        max_model_len_pinned=decisions.add(
            "model.max_model_len_pinned", Decision(value=pinned, origin=length.origin)
        ),
        seed=decisions.take("model.seed", DEFAULT_SEED),
        enforce_eager=decisions.add(
            "model.enforce_eager", rules.resolve_enforce_eager(decisions.given("enforce_eager"), device)
        ),
        batch_invariant=decisions.add(
            "model.batch_invariant",
            rules.resolve_batch_invariant(decisions.given("batch_invariant"), device),
        ),
        op_overrides=decisions.take("model.op_overrides", {}),
    )


def _decide_device(option: Given[str], gpu: GpuFacts | None) -> Decision[str]:
    """The user's, else the first usable GPU, else the cpu."""
    if option.value not in (None, "auto"):
        return Decision(value=str(option.value), origin=option.origin)
    if gpu is None or gpu.first_usable is None:
        return Decision(value="cpu", origin=Origin("default", "" if gpu is None else "no usable GPU is here"))
    number = gpu.first_usable
    device = f"cuda:{number}" if number else "cuda"
    return Decision(value=device, origin=Origin("device", gpu.names[number]))


def _check_device(asked: str | None, device: str, gpu: GpuFacts, env: Environment) -> None:
    """Whether the GPU that is asked for, or that is here, can be used: nothing falls back in silence.

    Raises:
        DeviceError: It cannot.
    """
    if gpu.problem is not None and (is_gpu(device) or asked in (None, "auto")):
        raise DeviceError(f'{gpu.problem}; {gpu.remedy}, or choose device "cpu" to compute without it')
    if not is_gpu(device):
        return
    if not gpu.names:
        hidden = "CUDA_VISIBLE_DEVICES hides every GPU" if env.gpus_hidden else "no NVIDIA GPU is here"
        remedy = "unset it" if env.gpus_hidden else "see what `vtcore doctor` says"
        raise DeviceError(f'device {device!r}: {hidden}; {remedy}, or choose device "cpu"')
    number = int(device.partition(":")[2] or 0)
    if number >= len(gpu.names):
        raise DeviceError(
            f"device {device!r}: the GPUs here have the numbers 0 to {len(gpu.names) - 1}; give one of them"
        )
    if number in gpu.unusable:
        raise DeviceError(f'device {device!r}: {gpu.unusable[number]}; choose another GPU, or device "cpu"')


def _decide_dtype(option: Given[str], found: Any, device: str) -> Decision[str]:
    """The checkpoint's own dtype if it is served: weights are then used as they are stored."""
    if found is not None and not isinstance(found, str):
        raise CheckpointError(
            f"config.json: `dtype` is {found!r}, not the name of a dtype; use the config.json that the model "
            f"was published with"
        )
    unserved = ("auto", "float64") if is_gpu(device) else ("auto",)
    if option.value not in (None, "auto"):
        not_served: tuple[str, ...] = ()
        if option.value in unserved:
            not_served = (
                f"$.dtype: {option.value!r}{option.where} is not served on device {device!r}: it is the "
                f"dtype of exact tests on the cpu; use bfloat16 or float32, or device cpu",
            )
        return Decision(value=str(option.value), origin=option.origin, not_served=not_served)
    stored = (found or "").removeprefix("torch.")
    if stored in DTYPES and stored not in unserved:
        return Decision(value=stored, origin=Origin("checkpoint"))
    note = f"the checkpoint says {stored}, which is not served" if stored else "the checkpoint says none"
    return Decision(value="float32", origin=Origin("default", note))


def _resolve_frontend(options: UserOptions, facts: ArchFacts, decisions: _Decisions) -> FrontendConfig:
    name, why = (facts.name, "the arch") if options.model is None else (options.model, "MODEL as given")
    return FrontendConfig(
        tokenizer=decisions.take("frontend.tokenizer", None, note="the model's own"),
        skip_tokenizer_init=decisions.add(
            "frontend.skip_tokenizer_init",
            rules.resolve_skip_tokenizer_init(
                decisions.given("skip_tokenizer_init"),
                {text: decisions.given(text) for text in _TEXT_OPTIONS},
            ),
        ),
        served_model_name=decisions.add(
            "frontend.served_model_name",
            rules.resolve_served_model_name(decisions.given("served_model_name"), name, why),
        ),
        chat_template=decisions.take("frontend.chat_template", None, note="the checkpoint's own"),
        default_chat_template_kwargs=decisions.take("frontend.default_chat_template_kwargs", {}),
        generation_config=decisions.take("frontend.generation_config", DEFAULT_GENERATION_CONFIG),
        override_generation_config=decisions.take("frontend.override_generation_config", {}),
    )


def _resolve_cache(facts: ArchFacts, env: Environment, device: str, decisions: _Decisions) -> CacheConfig:
    given, add = decisions.given, decisions.add
    blocks, num_bytes = rules.resolve_cache_size(
        given("num_blocks"), given("kv_cache_memory_bytes"), facts.is_bounded, device
    )
    utilization = rules.resolve_gpu_memory_utilization(given("gpu_memory_utilization"), device)
    caching = rules.resolve_prefix_caching(given("enable_prefix_caching"), facts.name, facts.is_recurrent)
    seqs = rules.resolve_max_num_seqs(given("max_num_seqs"), device).value
    checkpoints, interval = rules.resolve_state_checkpoints(
        given("num_state_checkpoints"),
        given("state_checkpoint_interval"),
        is_recurrent=facts.is_recurrent,
        caching=caching,
        defaults=(rules.default_state_checkpoints(seqs, device), DEFAULT_STATE_CHECKPOINT_INTERVAL),
    )
    hash_seed = rules.resolve_hash_seed(given("prefix_caching_hash_seed"), env, caching)
    return CacheConfig(
        block_size=decisions.take("cache.block_size", DEFAULT_BLOCK_SIZE),
        num_blocks=add("cache.num_blocks", blocks),
        kv_cache_memory_bytes=add("cache.kv_cache_memory_bytes", num_bytes),
        gpu_memory_utilization=add("cache.gpu_memory_utilization", utilization),
        enable_prefix_caching=add("cache.enable_prefix_caching", caching),
        prefix_caching_hash_seed=add("cache.prefix_caching_hash_seed", hash_seed),
        num_state_checkpoints=add("cache.num_state_checkpoints", checkpoints),
        state_checkpoint_interval=add("cache.state_checkpoint_interval", interval),
    )


def _resolve_scheduler(
    facts: ArchFacts, env: Environment, model: ModelConfig, decisions: _Decisions
) -> SchedulerConfig:
    given, add = decisions.given, decisions.add
    seqs = add("scheduler.max_num_seqs", rules.resolve_max_num_seqs(given("max_num_seqs"), model.device))
    budget = rules.resolve_budget(
        given("max_num_batched_tokens"),
        seqs,
        model.max_model_len,
        facts.name,
        facts.default_token_budget(seqs),
        model.device,
        INVARIANT_CHUNK if model.batch_invariant else 1,
    )
    overlap = rules.resolve_async_scheduling(
        given("async_scheduling"), model.device, env.async_runner, env.async_sched
    )
    jump = rules.resolve_jump_forward(given("enable_jump_forward"), env.jump_forward)
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=add("scheduler.max_num_batched_tokens", budget),
        scheduling_policy=decisions.take("scheduler.scheduling_policy", DEFAULT_POLICY),
        policy_config=decisions.take("scheduler.policy_config", {}),
        policy_time_limit_ms=decisions.take("scheduler.policy_time_limit_ms", DEFAULT_POLICY_TIME_LIMIT_MS),
        starvation_s=decisions.take("scheduler.starvation_s", DEFAULT_STARVATION_S),
        async_scheduling=add("scheduler.async_scheduling", overlap),
        enable_jump_forward=add("scheduler.enable_jump_forward", jump),
    )
