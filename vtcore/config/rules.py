"""One pure function per setting whose value follows from more than a default.

Does not: know the other settings, collect problems or raise; `resolve.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcore.config.decision import Decision, Given
from vtcore.config.engine_config import Origin
from vtcore.config.env import RANDOM, Environment
from vtcore.scheduling.token_budget import resolve_token_budget

DEFAULT_NUM_BLOCKS = 256
"""Blocks on a CPU. Source: vllm.cpp model_loader.h, EngineParams."""

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
    option: Given[int], max_num_seqs: int, max_model_len: int, arch: str, arch_default: int
) -> Decision[int]:
    """`resolve_token_budget` with its reason."""
    budget = resolve_token_budget(option.value, max_num_seqs, max_model_len, arch_default)
    if option.value is None:
        note = f"of {arch}"
        if budget != arch_default:
            note += f" ({arch_default}), fitted to max_num_seqs and max_model_len"
        return Decision(value=budget, origin=Origin("arch", note))
    if budget == option.value:
        return Decision(value=budget, origin=option.origin)
    return Decision(
        value=budget,
        origin=option.origin.because(f"{option.value} raised to max_num_seqs, so that none starves"),
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
    option: Given[bool], runner_supports: bool, async_runner: str | None, async_sched: str | None
) -> Decision[bool]:
    """On where the runner can, unless the user or the environment says off.

    Args:
        option: async_scheduling.
        runner_supports: Whether the runner of this version can overlap steps.
        async_runner: VT_ASYNC_RUNNER; a text that begins with 0 takes the runner's support away.
        async_sched: VT_ASYNC_SCHED; a text that begins with 0 forces off. Any other, which forces on in
            vllm.cpp even where the runner cannot, is refused.

    Source: vllm.cpp model_loader.h, ResolveAsyncEnabled. That one lets `True` fall back to off where the
    runner lacks support; here it is refused.
    """
    not_served: tuple[str, ...] = ()
    if async_sched is not None and not async_sched.startswith("0"):
        not_served += (
            f"VT_ASYNC_SCHED: {async_sched!r} would force asynchronous scheduling on even where the runner "
            f"lacks it, which is not served; unset the variable, or set it to 0 to force it off",
        )
    if option.value is not False:
        for name, text in (("VT_ASYNC_SCHED", async_sched), ("VT_ASYNC_RUNNER", async_runner)):
            if (text or "").startswith("0"):
                return Decision(value=False, origin=Origin("environment", name), not_served=not_served)
    if option.value and not runner_supports:
        not_served += (
            f"$.async_scheduling: true{option.where} is not served by this version, whose runner has one "
            f"step in flight; set it to false or leave it out",
        )
    value = runner_supports if option.value is None else option.value
    note = "the runner overlaps steps" if runner_supports else "this version's runner has one step in flight"
    return Decision(value=value, origin=option.origin_or("default", note), not_served=not_served)


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
    """Eager on a cpu, which has no graphs to capture."""
    not_served: tuple[str, ...] = ()
    if option.value is False:
        not_served = (
            f"$.enforce_eager: false{option.where} is not served on device {device!r}, which captures no "
            f"graphs; set it to true or leave it out",
        )
    return Decision(
        value=True if option.value is None else option.value,
        origin=option.origin_or("device", f"{device} captures no graphs"),
        not_served=not_served,
    )


def resolve_gpu_memory_utilization(option: Given[float], device: str) -> Decision[float | None]:
    """Nothing to share out on a cpu."""
    not_served: tuple[str, ...] = ()
    if option.value is not None:
        not_served = (
            f"$.gpu_memory_utilization: {option.value}{option.where} is not served on device {device!r}, "
            f"which has no memory of its own to share; set kv_cache_memory_bytes or num_blocks instead",
        )
    return Decision(value=option.value, origin=option.origin_or("device", device), not_served=not_served)


def resolve_cache_size(
    num_blocks: Given[int], num_bytes: Given[int], is_bounded: bool = False
) -> tuple[Decision[int | None], Decision[int | None]]:
    """Blocks or bytes, never both; blocks by default.

    Args:
        is_bounded: Whether max_num_seqs alone sizes every pool. A number of blocks is refused then; bytes
            still are the most that pools and tables may take.

    Returns:
        num_blocks, 0 of a bounded cache, and kv_cache_memory_bytes, one of them None.

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
