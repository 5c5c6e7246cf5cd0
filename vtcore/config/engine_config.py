"""The engine's settings after every decision was made, each with where it came from.

Does not: decide, or hold anything measured; what memory holds is the memory plan's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen


@frozen
class Origin:
    """Where a value came from.

    Args:
        source: "user", "default", "arch", "checkpoint" or "environment".
        note: Why, in a few words; may be empty.
    """

    source: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.note}" if self.note else self.source


@frozen(kw_only=True)
class ModelConfig:
    """What is computed.

    Args:
        model: Checkpoint directory; None for tensors in memory.
        arch: Registry name.
        dtype: "float64", "float32" or "bfloat16".
        device: torch device string.
        max_model_len: Tokens per request, prompt and output. Unless pinned, the memory plan may lower it.
        max_model_len_pinned: Whether the user gave it: then it is kept or refused, never lowered.
        seed: Of requests that bring none.
        skip_tokenizer_init: Whether only token ids are served.
    """

    model: str | None
    arch: str
    dtype: str
    device: str
    max_model_len: int
    max_model_len_pinned: bool
    seed: int
    skip_tokenizer_init: bool


@frozen(kw_only=True)
class CacheConfig:
    """How KV memory is cut.

    Args:
        block_size: Tokens per block.
        num_blocks: Blocks per pool of blocks.
        enable_prefix_caching: Whether blocks of equal prefixes are shared.
        prefix_caching_hash_seed: Text that seeds the hash chain's root; None leaves it to the core.
    """

    block_size: int
    num_blocks: int
    enable_prefix_caching: bool
    prefix_caching_hash_seed: str | None


@frozen(kw_only=True)
class SchedulerConfig:
    """How much runs at once, and in which order.

    Args:
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Token budget of a step, >= max_num_seqs.
        scheduling_policy: Registry name.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling_policy: str


@frozen(kw_only=True)
class EngineConfig:
    """All settings of one engine.

    Args:
        plugin_files, plugin_owners: As the user gave them; empty without.
        origins: Dotted name ("cache.block_size") -> where its value came from; one for each value.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    plugin_files: tuple[str, ...] = ()
    plugin_owners: Mapping[str, str] = field(factory=dict)
    origins: Mapping[str, Origin] = field(factory=dict)

    def values(self) -> dict[str, Any]:
        """Dotted name -> value, in order of declaration, origins left out."""
        flat: dict[str, Any] = {}
        for group, content in asdict(self).items():
            if group in ("model", "cache", "scheduler"):
                flat |= {f"{group}.{name}": value for name, value in content.items()}
            elif group != "origins":
                flat[group] = content
        return flat

    def digest(self) -> str:
        """sha256 (hex) over the values as canonical JSON; two processes compare it."""
        text = json.dumps(self.values(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
