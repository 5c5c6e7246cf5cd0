"""The engine's settings after every decision was made, each with where it came from.

Does not: decide, or hold anything measured; what memory holds is the memory plan's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve, field, frozen

from vtcore.config.frozen_dict import freeze

GROUPS: tuple[str, ...] = ("model", "frontend", "cache", "scheduler")
"""The parts of an `EngineConfig` whose fields are settings of their own."""


def is_gpu(device: str) -> bool:
    """Whether a torch device string names a GPU."""
    return device.partition(":")[0] == "cuda"


@frozen
class Origin:
    """Where a value came from.

    Args:
        source: Who said so: "keyword", "command line", "config file", "environment" or, for options that came
            without their sources, "user"; else "default", "arch", "checkpoint", "device" or
            "memory plan".
        note: Which file or variable, or why, in a few words; may be empty.
    """

    source: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.note}" if self.note else self.source

    def because(self, reason: str) -> Origin:
        """The same origin with a reason behind its note."""
        return Origin(self.source, f"{self.note}, {reason}" if self.note else reason)


@frozen(kw_only=True)
class ModelConfig:
    """What is computed, and how.

    Args:
        model: Directory, checkpoint source or Hub id, as given; None for tensors in memory.
        arch: Registry name.
        dtype: "float64", "float32" or "bfloat16".
        device: torch device string: "cpu", "cuda" or "cuda:N".
        revision: Branch, tag or commit of a Hub model; None is its main branch.
        download_dir: Where Hub models are kept; None is huggingface_hub's own cache.
        load_format: "auto", the checkpoint's weights, or "dummy", random ones.
        max_model_len: Tokens per request, prompt and output. Unless pinned, the memory plan may lower it.
        max_model_len_pinned: Whether the user gave a number: then it is kept or refused, never lowered.
        seed: Of requests that bring none.
        enforce_eager: Whether no graph is captured.
        batch_invariant: Whether a request's bits are independent of what it is batched with. Chunks then end
            on multiples of 64 tokens.
        op_overrides: Op -> the name of an implementation ("naive", a device type) or `module:function`.
    """

    model: str | None
    arch: str
    dtype: str
    device: str
    revision: str | None
    download_dir: str | None
    load_format: str
    max_model_len: int
    max_model_len_pinned: bool
    seed: int
    enforce_eager: bool
    batch_invariant: bool = False
    op_overrides: Mapping[str, str] = field(factory=dict, converter=freeze)

    @property
    def is_gpu(self) -> bool:
        """Whether the model computes on a GPU."""
        return is_gpu(self.device)


@frozen(kw_only=True)
class FrontendConfig:
    """What turns texts into requests and tokens into answers.

    Args:
        tokenizer: Directory with a tokenizer.json; None is the model's own.
        skip_tokenizer_init: Whether only token ids are served.
        served_model_name: Names in metrics and answers, at least one, the first one shown.
        chat_template: File with a Jinja chat template; None is the checkpoint's own.
        default_chat_template_kwargs: Variables for the chat template; a request's own win.
        generation_config: "auto", the checkpoint's sampling defaults, "neutral", none, or a directory.
        override_generation_config: Sampling defaults that win over generation_config.
    """

    tokenizer: str | None
    skip_tokenizer_init: bool
    served_model_name: tuple[str, ...]
    chat_template: str | None
    default_chat_template_kwargs: Mapping[str, Any] = field(converter=freeze)
    generation_config: str
    override_generation_config: Mapping[str, Any] = field(converter=freeze)


@frozen(kw_only=True)
class CacheConfig:
    """How KV memory is cut.

    Args:
        block_size: Tokens per block.
        num_blocks: Usable blocks per pool of blocks that live as long as requests, 0 without one; None
            when kv_cache_memory_bytes or, on a GPU, gpu_memory_utilization sizes the pools: then the memory
            plan has the number.
        kv_cache_memory_bytes: Most bytes of all pools and tables; None when they do not size the pools.
        gpu_memory_utilization: Share of a GPU's memory that the whole engine may use; None on a cpu. It
            sizes the pools where neither of the two above does, and limits them where one does.
        enable_prefix_caching: Whether blocks of equal prefixes are shared.
        prefix_caching_hash_seed: Text that seeds the hash chain's root; None is the built-in root.
        num_state_checkpoints: Recurrent states kept for prefix hits; 0 without recurrent state or caching.
        state_checkpoint_interval: Tokens between the checkpoints of one long prompt.
    """

    block_size: int
    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float | None
    enable_prefix_caching: bool
    prefix_caching_hash_seed: str | None
    num_state_checkpoints: int
    state_checkpoint_interval: int


@frozen(kw_only=True)
class SchedulerConfig:
    """How much runs at once, and in which order.

    Args:
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Token budget of a step, >= max_num_seqs.
        scheduling_policy: Registry name.
        policy_config: The policy's own settings, as given; the policy checks them.
        policy_time_limit_ms: Longest `order` of a policy may take, in milliseconds.
        starvation_s: Seconds after which a waiting request goes first, whatever the policy says.
        async_scheduling: Whether a step is scheduled while the last one runs.
        enable_jump_forward: Whether tokens that a grammar forces are emitted without a forward.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling_policy: str
    policy_config: Mapping[str, Any] = field(converter=freeze)
    policy_time_limit_ms: float
    starvation_s: float
    async_scheduling: bool
    enable_jump_forward: bool


@frozen(kw_only=True)
class EngineConfig:
    """All settings of one engine; nothing in it can be changed, mappings included.

    Args:
        plugin_files, plugin_owners: As the user gave them; empty without.
        origins: Dotted name ("cache.block_size") -> where its value came from; one for each value.
    """

    model: ModelConfig
    frontend: FrontendConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    plugin_files: tuple[str, ...] = ()
    plugin_owners: Mapping[str, str] = field(factory=dict, converter=freeze)
    origins: Mapping[str, Origin] = field(factory=dict, converter=freeze)

    def fitted(self, max_model_len: int) -> EngineConfig:
        """The same settings with the length that the memory plan allows.

        Args:
            max_model_len: At most the present one, which is the checkpoint's if it is more.
        """
        if max_model_len == self.model.max_model_len:
            return self
        note = f"the cache holds no more; the checkpoint allows {self.model.max_model_len}"
        return evolve(
            self,
            model=evolve(self.model, max_model_len=max_model_len),
            origins={**self.origins, "model.max_model_len": Origin("memory plan", note)},
        )

    def values(self) -> dict[str, Any]:
        """Dotted name -> value, in order of declaration, origins left out."""
        flat: dict[str, Any] = {}
        for group, content in asdict(self).items():
            if group in GROUPS:
                flat |= {f"{group}.{name}": value for name, value in content.items()}
            elif group != "origins":
                flat[group] = content
        return flat

    def digest(self) -> str:
        """sha256 (hex) over the values as canonical JSON; two processes compare it, before `fitted`."""
        text = json.dumps(self.values(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
