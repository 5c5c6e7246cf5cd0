"""One pure function per setting whose value follows from more than a default.

Does not: know the other settings, collect problems or raise; `resolve.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcore.config.decision import Decision, Given
from vtcore.config.engine_config import Origin, is_gpu
from vtcore.config.env import RANDOM, Environment
from vtcore.scheduling.token_budget import resolve_token_budget

DEFAULT_NUM_BLOCKS = 256
"""Blocks on a CPU. Source: vllm.cpp model_loader.h, EngineParams."""

DEFAULT_MAX_NUM_SEQS = 8
"""Requests at once on a CPU. Source: vllm.cpp model_loader.h, EngineParams."""

DEFAULT_GPU_MAX_NUM_SEQS = 256
"""Requests at once on a GPU: up to here a decode step of each Qwen3.5 is bound by memory, not arithmetic."""

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92
"""Share of a GPU's memory: the rest is for the driver, other processes and what no measurement foresees."""

DEFAULT_GPU_TOKEN_BUDGET = 8192
"""Least default token budget of a step on a GPU: below it a prompt's matrix products leave units idle."""

CHECKPOINTS_PER_SEQ = 4
"""State checkpoints kept for each request that may run: its own, and some of prompts that come back."""

MOST_GPU_CHECKPOINTS = 64
"""State checkpoints by default on a GPU at most, where four for each request would fill the memory: 9.2 GiB
for Qwen3.5 27B."""

JUMP_FORWARD_ON: tuple[str, ...] = ("1", "true", "TRUE", "on")
"""Texts of VT_ENABLE_JUMP_FORWARD that mean on. Source: vllm.cpp model_loader.h, JumpForwardEnabled."""


def resolve_max_model_len(option: Given[int | str], limit: int) -> Decision[int]:
    """A given number is kept or refused; else the checkpoint's limit, which the memory plan may lower.

    Args:
        option: A number, or "auto", which says what None says.
        limit: max_position_embeddings.
    """
    if not isinstance(option.value, int):
        return Decision(value=limit, origin=Origin("checkpoint", "max_position_embeddings"))
    problem = ""
    if option.value > limit:
        problem = (
            f"$.max_model_len: {option.value}{option.where} is above max_position_embeddings {limit} of the "
            f"checkpoint; lower it, or leave it out"
        )
    return Decision(value=option.value, origin=option.origin, problem=problem)


def resolve_served_model_name(
    option: Given[tuple[str, ...]], name: str, note: str
) -> Decision[tuple[str, ...]]:
    """The user's one name, else that of the model.

    Args:
        option: One name; several are for a server, which answers to each of them.
        name, note: Of the model, and whence.
    """
    not_served: tuple[str, ...] = ()
    if option.value is not None and len(option.value) > 1:
        not_served = (
            f"$.served_model_name: {len(option.value)} names{option.where} are not served, since only a "
            f"server answers to several; give one, which metrics show",
        )
    return Decision(
        value=(name,) if option.value is None else option.value,
        origin=option.origin_or("default", note),
        not_served=not_served,
    )


def resolve_skip_tokenizer_init(option: Given[bool], texts: Mapping[str, Given[Any]]) -> Decision[bool]:
    """The user's word, else off; on leaves options about text without effect, so they exclude each other.

    Args:
        option: skip_tokenizer_init.
        texts: Options that only text needs, by name.
    """
    problem = ""
    given = [f"{name}{text.where}" for name, text in texts.items() if text.value]
    if option.value and given:
        problem = (
            f"$.skip_tokenizer_init: true{option.where} makes no text, but {' and '.join(given)} asks for "
            f"some; leave one of them out"
        )
    return Decision(value=bool(option.value), origin=option.origin_or("default"), problem=problem)


def resolve_budget(
    option: Given[int],
    max_num_seqs: int,
    max_model_len: int,
    arch: str,
    arch_default: int,
    device: str = "cpu",
    chunk: int = 1,
) -> Decision[int]:
    """`resolve_token_budget` with its reason; on a GPU the default is `DEFAULT_GPU_TOKEN_BUDGET` at least.

    Args:
        chunk: Multiple at which prompts' chunks end: beside the others' tokens there is room for a whole one.
    """
    least = max_num_seqs + chunk - 1
    default = max(arch_default, DEFAULT_GPU_TOKEN_BUDGET) if is_gpu(device) else arch_default
    budget = max(least, resolve_token_budget(option.value, max_num_seqs, max_model_len, default))
    if option.value is None:
        is_raised = default != arch_default
        note = f"{device}, for the {arch_default} of {arch}" if is_raised else f"of {arch}"
        if budget != default:
            note += f" ({default}), fitted to max_num_seqs and max_model_len"
        return Decision(value=budget, origin=Origin("device" if is_raised else "arch", note))
    if budget == option.value:
        return Decision(value=budget, origin=option.origin)
    beside = f" + {chunk - 1}" if chunk > 1 else ""
    return Decision(
        value=budget,
        origin=option.origin.because(f"{option.value} raised to max_num_seqs{beside}, so that none starves"),
    )


def resolve_prefix_caching(option: Given[bool], arch: str, is_recurrent: bool) -> Decision[bool]:
    """The user's word, else on exactly for archs without recurrent state.

    Source: vllm.cpp model_loader.h, ResolveEnablePrefixCaching.
    """
    if option.value is None:
        kind = "recurrent" if is_recurrent else "a plain decoder"
        return Decision(value=not is_recurrent, origin=Origin("arch", f"{arch} is {kind}"))
    return Decision(value=option.value, origin=option.origin)


def resolve_state_checkpoints(
    num: Given[int],
    interval: Given[int],
    *,
    is_recurrent: bool,
    caching: Decision[bool],
    defaults: tuple[int, int],
) -> tuple[Decision[int], Decision[int]]:
    """How many recurrent states are kept for prefix hits, and how many tokens apart inside a long prompt.

    Args:
        num: num_state_checkpoints; 0 asks for none.
        interval: state_checkpoint_interval.
        caching: Whether prefix caching is on.
        defaults: Of both.

    Returns:
        The number, 0 where there is nothing to keep, and the interval.
    """
    if not is_recurrent or not caching.value:
        why = "prefix caching is off" if is_recurrent else "the arch has no recurrent state"
        remedy = "leave it out" + (", or start with enable_prefix_caching" if is_recurrent else "")
        return (
            Decision(
                value=0,
                origin=Origin("default", why),
                problem=_useless("num_state_checkpoints", num, why, remedy),
            ),
            Decision(
                value=defaults[1],
                origin=Origin("default", f"unused: {why}"),
                problem=_useless("state_checkpoint_interval", interval, why, remedy),
            ),
        )
    problem = ""
    if num.value == 0:
        problem = (
            f"$.num_state_checkpoints: 0{num.where} leaves prefix caching without the recurrent states that "
            f"a hit starts from, so nothing could ever hit; raise it, or go without enable_prefix_caching"
        )
    return (
        Decision(
            value=defaults[0] if num.value is None else num.value,
            origin=num.origin_or("default"),
            problem=problem,
        ),
        Decision(
            value=defaults[1] if interval.value is None else interval.value,
            origin=interval.origin_or("default"),
        ),
    )


def _useless(name: str, option: Given[int], why: str, remedy: str) -> str:
    """Why a number that asks for something has no effect, or ""."""
    return (
        f"$.{name}: {option.value}{option.where} would have no effect, for {why}; {remedy}"
        if option.value
        else ""
    )


def resolve_jump_forward(option: Given[bool], variable: str | None) -> Decision[bool]:
    """The environment's word, else the user's, else off.

    Args:
        option: enable_jump_forward.
        variable: VT_ENABLE_JUMP_FORWARD, None where unset; a text that is not in `JUMP_FORWARD_ON` is off,
            the empty one too.

    Source: vllm.cpp model_loader.h, JumpForwardEnabled.
    """
    if variable is not None:
        origin = Origin("environment", "VT_ENABLE_JUMP_FORWARD")
        if variable not in JUMP_FORWARD_ON:
            return Decision(value=False, origin=origin)
        return Decision(
            value=True,
            origin=origin,
            not_served=(
                f"VT_ENABLE_JUMP_FORWARD: {variable!r} switches jump-forward on, which this version, having "
                f"no grammars, does not serve; unset the variable",
            ),
        )
    not_served: tuple[str, ...] = ()
    if option.value:
        not_served = (
            f"$.enable_jump_forward: true{option.where} is not served by this version, which has no "
            f"grammars; set it to false or leave it out",
        )
    return Decision(value=bool(option.value), origin=option.origin_or("default"), not_served=not_served)


def resolve_async_scheduling(
    option: Given[bool], device: str, async_runner: str | None, async_sched: str | None
) -> Decision[bool]:
    """The environment's word, else the user's, else on where the host would wait for a GPU.

    Args:
        option: async_scheduling.
        device: torch device string.
        async_runner: VT_ASYNC_RUNNER; a text that begins with 0 switches it off, any other changes nothing.
        async_sched: VT_ASYNC_SCHED; a text that begins with 0 switches it off, any other, the empty one too,
            on, whatever the others say.

    Source: vllm.cpp model_loader.h, ResolveAsyncEnabled; its default is on wherever the runner can.
    """
    if async_sched is not None and not async_sched.startswith("0"):
        return Decision(value=True, origin=Origin("environment", "VT_ASYNC_SCHED"))
    if option.value is not False:
        for name, text in (("VT_ASYNC_SCHED", async_sched), ("VT_ASYNC_RUNNER", async_runner)):
            if (text or "").startswith("0"):
                return Decision(value=False, origin=Origin("environment", name))
    note = "the host schedules while it computes" if is_gpu(device) else "it computes on the host's own cores"
    return Decision(
        value=is_gpu(device) if option.value is None else option.value,
        origin=option.origin_or("device", f"{device}, {note}"),
    )


def resolve_hash_seed(option: Given[str], env: Environment, caching: Decision[bool]) -> Decision[str | None]:
    """The user's text, else the environment's, else the built-in root.

    An option without prefix caching is refused. A variable is not: it may stand for several processes.

    `RANDOM` from any of them is what was drawn while the environment was read: this function stays pure, and
    a child process that is sent the environment hashes alike.

    Source: vllm.cpp model_loader.h, EnsureNoneHash.
    """
    text, origin, problem = option.value, option.origin, ""
    if text is not None and not caching.value and origin.source != "environment":
        problem = (
            f"$.prefix_caching_hash_seed: {text!r}{option.where} would have no effect, for prefix caching is "
            f"off; leave it out, or start with enable_prefix_caching"
        )
    if text is None:
        text = env.prefix_caching_hash_seed
        origin = Origin("environment", env.prefix_caching_hash_seed_from)
    if text is None:
        return Decision(value=None, origin=Origin("default", "the built-in root"))
    if text == RANDOM:
        text, origin = env.random_hash_seed, origin.because("random, drawn at the start")
    return Decision(value=text, origin=origin, problem=problem)


def resolve_enforce_eager(option: Given[bool], device: str) -> Decision[bool]:
    """Eager on a cpu, which has no graphs to capture; with graphs on a GPU."""
    not_served: tuple[str, ...] = ()
    if option.value is False and not is_gpu(device):
        not_served = (
            f"$.enforce_eager: false{option.where} is not served on device {device!r}, which captures no "
            f"graphs; set it to true or leave it out",
        )
    return Decision(
        value=not is_gpu(device) if option.value is None else option.value,
        origin=option.origin_or("device", f"{device} captures {'graphs' if is_gpu(device) else 'no graphs'}"),
        not_served=not_served,
    )


def resolve_batch_invariant(option: Given[bool], device: str) -> Decision[bool]:
    """Off, unless a GPU is asked for it; a cpu's matrix products choose their tiles by the batch."""
    not_served: tuple[str, ...] = ()
    if option.value and not is_gpu(device):
        not_served = (
            f"$.batch_invariant: true{option.where} is not served on device {device!r}, whose matrix "
            f"products depend on the batch in the last bits; leave it out, choose device cuda, or dtype "
            f"float64, in which tokens are the same",
        )
    return Decision(value=bool(option.value), origin=option.origin_or("default"), not_served=not_served)


def resolve_gpu_memory_utilization(option: Given[float], device: str) -> Decision[float | None]:
    """A share of a GPU's memory; nothing to share out on a cpu."""
    not_served: tuple[str, ...] = ()
    if option.value is not None and not is_gpu(device):
        not_served = (
            f"$.gpu_memory_utilization: {option.value}{option.where} is not served on device {device!r}, "
            f"which has no memory of its own to share; set kv_cache_memory_bytes or num_blocks instead",
        )
    if option.value is None and is_gpu(device):
        return Decision(value=DEFAULT_GPU_MEMORY_UTILIZATION, origin=Origin("default"))
    return Decision(value=option.value, origin=option.origin_or("device", device), not_served=not_served)


def resolve_max_num_seqs(option: Given[int], device: str) -> Decision[int]:
    """The user's number, else few on a cpu and many on a GPU, which serves a batch in the time of one."""
    if option.value is not None:
        return Decision(value=option.value, origin=option.origin)
    if is_gpu(device):
        return Decision(value=DEFAULT_GPU_MAX_NUM_SEQS, origin=Origin("device", device))
    return Decision(value=DEFAULT_MAX_NUM_SEQS, origin=Origin("default"))


def default_state_checkpoints(max_num_seqs: int, device: str) -> int:
    """State checkpoints where prefix caching is on and the user gives no number."""
    wanted = CHECKPOINTS_PER_SEQ * max_num_seqs
    return min(wanted, MOST_GPU_CHECKPOINTS) if is_gpu(device) else wanted


def resolve_cache_size(
    num_blocks: Given[int], num_bytes: Given[int], is_bounded: bool = False, device: str = "cpu"
) -> tuple[Decision[int | None], Decision[int | None]]:
    """Blocks or bytes, never both; by default blocks on a cpu, and on a GPU what its memory holds.

    Args:
        is_bounded: Whether max_num_seqs alone sizes every pool. A number of blocks is refused then; bytes
            still are the most that pools and tables may take.
        device: torch device string.

    Returns:
        num_blocks, 0 of a bounded cache, and kv_cache_memory_bytes, one of them None; both on a GPU where
        neither is given, for gpu_memory_utilization sizes the cache then.

    Source: vllm.cpp model_loader.h, EngineParams, and its later kv_cache_memory_bytes, which there loses
    silently against num_blocks.
    """
    if is_bounded and num_blocks.value is not None:
        why = "every cache of the arch is bounded (windows, slots)"
        useless = _useless("num_blocks", num_blocks, why, "leave it out, or lower max_num_seqs")
        return (
            Decision(value=0, origin=num_blocks.origin, problem=useless),
            Decision(value=None, origin=num_bytes.origin_or("default")),
        )
    if is_bounded and num_bytes.value is None:
        sized = Origin("default", "max_num_seqs sizes the cache")
        return Decision(value=0, origin=sized), Decision(value=None, origin=sized)
    if num_bytes.value is None and num_blocks.value is None and is_gpu(device):
        sized = Origin("device", "gpu_memory_utilization sizes the cache")
        return Decision(value=None, origin=sized), Decision(value=None, origin=sized)
    if num_bytes.value is None:
        blocks = DEFAULT_NUM_BLOCKS if num_blocks.value is None else num_blocks.value
        origin = num_blocks.origin_or("default")
        return (
            Decision(value=blocks, origin=origin),
            Decision(value=None, origin=Origin("default", "num_blocks sizes the cache")),
        )
    problem = ""
    if num_blocks.value is not None:
        problem = (
            f"$.num_blocks: {num_blocks.value}{num_blocks.where} and kv_cache_memory_bytes "
            f"{num_bytes.value}{num_bytes.where} both size the cache; leave one of them out"
        )
    return (
        Decision(value=None, origin=num_bytes.origin.because("from kv_cache_memory_bytes"), problem=problem),
        Decision(value=num_bytes.value, origin=num_bytes.origin),
    )
