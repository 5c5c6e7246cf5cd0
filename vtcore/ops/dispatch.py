"""Which function serves each op, decided once at load by device and override.

Does not: get called while a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from vtcore.errors import ConfigError, PluginLoadError
from vtcore.suggest import did_you_mean

CORE_OPS: Mapping[str, Mapping[str, str]] = {
    "prepare_rows": {
        "naive": "vtcore.ops.prepare_step.naive:prepare_rows",
        "cuda": "vtcore.ops.prepare_step.triton:prepare_rows",
    },
    "prepare_blocks": {
        "naive": "vtcore.ops.prepare_step.naive:prepare_blocks",
        "cuda": "vtcore.ops.prepare_step.triton:prepare_blocks",
    },
    "prepare_slots": {
        "naive": "vtcore.ops.prepare_step.naive:prepare_slots",
        "cuda": "vtcore.ops.prepare_step.triton:prepare_slots",
    },
    "commit_step": {
        "naive": "vtcore.ops.commit_step.naive:commit_step",
        "cuda": "vtcore.ops.commit_step.triton:commit_step",
    },
    "argmax": {
        "naive": "vtcore.ops.argmax.naive:argmax",
        "cuda": "vtcore.ops.argmax.triton:argmax",
    },
    "sample_tokens": {
        "naive": "vtcore.ops.sample_tokens.naive:sample_tokens",
        "cuda": "vtcore.ops.sample_tokens.triton:sample_tokens",
    },
    "linear": {
        "naive": "vtcore.ops.linear.naive:linear",
        "cuda": "vtcore.ops.linear.triton:linear",
        "cuda_batch_invariant": "vtcore.ops.linear.triton:linear_batch_invariant",
    },
    "rms_norm": {
        "naive": "vtcore.ops.rms_norm.naive:rms_norm",
        "cuda": "vtcore.ops.rms_norm.triton:rms_norm",
    },
    "add_rms_norm": {
        "naive": "vtcore.ops.add_rms_norm.naive:add_rms_norm",
        "cuda": "vtcore.ops.add_rms_norm.triton:add_rms_norm",
    },
    "silu_mul": {
        "naive": "vtcore.ops.silu_mul.naive:silu_mul",
        "cuda": "vtcore.ops.silu_mul.triton:silu_mul",
    },
    "rope": {"naive": "vtcore.ops.rope.naive:rope"},
    "kv_write": {
        "naive": "vtcore.ops.kv_write.naive:kv_write",
        "cuda": "vtcore.ops.kv_write.triton:kv_write",
    },
    "qk_norm_rope_write": {
        "naive": "vtcore.ops.qk_norm_rope_write.naive:qk_norm_rope_write",
        "cuda": "vtcore.ops.qk_norm_rope_write.triton:qk_norm_rope_write",
    },
    "paged_attention": {
        "naive": "vtcore.ops.paged_attention.naive:paged_attention",
        "cuda": "vtcore.ops.paged_attention.triton:paged_attention",
        "cuda_batch_invariant": "vtcore.ops.paged_attention.triton:paged_attention_batch_invariant",
    },
}
"""Ops that two or more plugins use: op name -> {device type or "naive": module:function}.

"cuda_batch_invariant" serves instead of "cuda" where every row must get the same bits in any batch.
"""


def resolve_ops(
    device_type: str,
    overrides: Mapping[str, str] | None = None,
    arch_ops: Mapping[str, Mapping[str, str]] | None = None,
    *,
    batch_invariant: bool = False,
) -> Mapping[str, Callable[..., Any]]:
    """Import one implementation of every op.

    Args:
        device_type: "cpu", "cuda"; an op without an implementation for it runs its naive one.
        overrides: Op name -> implementation name ("naive", a device type) or dotted path `module:function`;
            with `batch_invariant` only what serves without them.
        arch_ops: The arch's own ops; a name shared with a core op is refused.
        batch_invariant: Where an op has an implementation "<device type>_batch_invariant", it serves.

    Returns:
        Op name -> function.

    Raises:
        ConfigError: An override names an unknown op or implementation, or an op is claimed twice.
        PluginLoadError: One of the arch's own ops cannot be imported.
    """
    arch_ops = arch_ops or {}
    overrides = overrides or {}
    check_overrides(device_type, overrides, arch_ops, batch_invariant=batch_invariant)
    table = {**CORE_OPS, **arch_ops}
    resolved = {}
    for name, implementations in table.items():
        choice = overrides.get(name, _served(implementations, device_type, batch_invariant)[0])
        path = implementations.get(choice, choice)
        try:
            resolved[name] = _import(path)
        except Exception as error:
            if name in arch_ops and name not in overrides:
                raise PluginLoadError(f"op {name!r}: {path!r} {error}; report it to its authors") from error
            raise ConfigError(f"$.op_overrides.{name}: {path!r} {error}") from error
    return resolved


def check_overrides(
    device_type: str,
    overrides: Mapping[str, str],
    arch_ops: Mapping[str, Mapping[str, str]],
    *,
    batch_invariant: bool = False,
    imports: bool = False,
) -> None:
    """Check that each override names an op, and an implementation that serves it on the device.

    With `batch_invariant` that is the one that serves without an override: of no other form, and of no
    function of the user's, is it known that a row's bits do not depend on the batch.

    Args:
        device_type, overrides, arch_ops, batch_invariant: As for `resolve_ops`.
        imports: Whether functions given as `module:function` are imported too.

    Raises:
        ConfigError: All that do not, or an op is claimed twice.
    """
    table = {**CORE_OPS, **arch_ops}
    problems = [
        f"$.ops.{name}: the arch and the core both define this op" for name in CORE_OPS.keys() & arch_ops
    ]
    for name, choice in overrides.items():
        path = f"$.op_overrides.{name}"
        if name not in table:
            guess = did_you_mean(name, table, list_all=False) or f"; known: {', '.join(sorted(table))}"
            problems.append(f"{path}: no such op{guess}")
            continue
        runs = _served(table[name], device_type, batch_invariant)
        if ":" not in choice and choice not in runs:
            where = f" on {device_type}" if choice in table[name] else ""
            if batch_invariant:
                remedy = f"leave it out, and {runs[0]} serves, or leave batch_invariant out"
            else:
                remedy = f"choose {' or '.join(runs)}, or give module:function"
            problems.append(f"{path}: no implementation {choice!r} serves it{where}; {remedy}")
        elif batch_invariant and choice not in (runs[0], table[name][runs[0]]):
            problems.append(
                f"{path}: {choice!r} may give a row other bits in another batch, which batch_invariant rules "
                f"out; leave it out, and {runs[0]} serves, or leave batch_invariant out"
            )
        elif ":" in choice and imports:
            try:
                _import(choice)
            except ImportError as error:
                problems.append(f"{path}: {choice!r} {error}; give the module:function of an op")
    if problems:
        raise ConfigError(*sorted(problems))


def _served(implementations: Mapping[str, str], device_type: str, batch_invariant: bool) -> list[str]:
    """Names of the forms that run on the device, the one that serves without an override first."""
    exact = f"{device_type}_batch_invariant"
    order = (exact, device_type, "naive") if batch_invariant else (device_type, "naive", exact)
    return [name for name in order if name in implementations]


def _import(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ImportError(f"cannot be imported ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise ImportError("is not a function")
    return found  # type: ignore[no-any-return]
