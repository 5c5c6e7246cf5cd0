"""Which function serves each op, decided once at load by device and override.

Does not: get called while a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from vtcore.errors import ConfigError, PluginLoadError

CORE_OPS: Mapping[str, Mapping[str, str]] = {
    "rms_norm": {"naive": "vtcore.ops.rms_norm.naive:rms_norm"},
    "rms_norm_acc": {"naive": "vtcore.ops.rms_norm.naive:rms_norm_acc"},
    "add_rms_norm": {"naive": "vtcore.ops.add_rms_norm.naive:add_rms_norm"},
    "rope": {"naive": "vtcore.ops.rope.naive:rope"},
    "kv_write": {"naive": "vtcore.ops.kv_write.naive:kv_write"},
    "paged_attention": {"naive": "vtcore.ops.paged_attention.naive:paged_attention"},
}
"""Ops that two or more plugins use: op name -> {device type or "naive": module:function}."""


def resolve_ops(
    device_type: str,
    overrides: Mapping[str, str] | None = None,
    arch_ops: Mapping[str, Mapping[str, str]] | None = None,
) -> Mapping[str, Callable[..., Any]]:
    """Import one implementation of every op.

    Args:
        device_type: "cpu", "cuda"; an op without an implementation for it runs its naive one.
        overrides: Op name -> implementation name ("naive", a device type) or dotted path `module:function`.
        arch_ops: The arch's own ops; a name shared with a core op is refused.

    Returns:
        Op name -> function.

    Raises:
        ConfigError: An override names an unknown op or implementation, or an op is claimed twice.
        PluginLoadError: One of the arch's own ops cannot be imported.
    """
    arch_ops = arch_ops or {}
    overrides = overrides or {}
    table = {**CORE_OPS, **arch_ops}
    problems = [
        f"$.ops.{name}: the arch and the core both define this op" for name in CORE_OPS.keys() & arch_ops
    ]
    for name, choice in overrides.items():
        if name not in table:
            problems.append(f"$.ops.{name}: no such op; known are {', '.join(sorted(table))}")
        elif ":" not in choice and choice not in table[name]:
            known = ", ".join(sorted(table[name]))
            problems.append(
                f"$.ops.{name}: no implementation {choice!r}; known are {known} or module:function"
            )
    if problems:
        raise ConfigError(*sorted(problems))
    resolved = {}
    for name, implementations in table.items():
        choice = overrides.get(name, device_type if device_type in implementations else "naive")
        path = implementations.get(choice, choice)
        try:
            resolved[name] = _import(path)
        except Exception as error:
            if name in arch_ops and name not in overrides:
                raise PluginLoadError(f"op {name!r}: {path!r} {error}; report it to its authors") from error
            raise ConfigError(f"$.ops.{name}: {path!r} {error}") from error
    return resolved


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
