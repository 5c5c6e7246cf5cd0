"""Measured configurations of kernels: JSON files that lie beside the ops of a package, one for each GPU.

A file `tuned/NAME_OF_GPU.json` holds {"device": name, "made": {...}, "entries": {op: [entry, ...]}}; what an
entry holds is the op's, the measured microseconds among it. Scripts in tools/ make them.
Does not: measure, or read a file while a step runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from vtcore.errors import ConfigError

DEFAULT_DEVICE = "NVIDIA H200"
"""Whose entries serve where there is no GPU and none is named."""
TARGETS: Mapping[str, str] = {"NVIDIA H200": "sm_90"}
"""GPU with a file of the core's -> what kernels are compiled for there. Source: CUDA C++ Programming Guide,
compute capabilities."""
PACKAGE = "vtcore.ops"
"""Of the core's files."""
REMEDY = "measure it anew with the tools/tune_*.py of its op, or delete the file: rules serve then"

_KEYS = {"device", "made", "entries"}


_named: ContextVar[str | None] = ContextVar("_named", default=None)


def device_name() -> str:
    """Whose entries serve: the GPU that `tuned_for` names, else the current one, else `DEFAULT_DEVICE`."""
    return _named.get() or _current_name()


@contextmanager
def tuned_for(device: str) -> Iterator[None]:
    """Inside, launches are planned as on another GPU.

    Args:
        device: As torch names it; one without a file is planned for by rules.
    """
    token = _named.set(device)
    try:
        yield
    finally:
        _named.reset(token)


def choose_device(target: str, named: str | None) -> str:
    """Whose entries serve kernels for a target; a name without a file, so that rules serve, where none fits.

    Args:
        target: One of `compile_target.TARGETS`.
        named: The GPU that the user names; None takes this machine's if it is of the target, else the only
            one of the target that has a file.

    Raises:
        ConfigError: The named GPU is of another target.
    """
    if named is not None:
        if (own := TARGETS.get(named, target)) != target:
            raise ConfigError(
                f"--device-name: {named!r} is {own}, not the {target} of --target; give a GPU of {target}, "
                f"or --target {own}"
            )
        return named
    if torch.cuda.is_available() and _capability() == target:
        return _current_name()
    fitting = [name for name, own in TARGETS.items() if own == target]
    return fitting[0] if len(fitting) == 1 else target


def has_file(device: str) -> bool:
    """Whether the core's ops were measured on a GPU."""
    return files(PACKAGE).joinpath("tuned", file_name(device)).is_file()


@cache
def _current_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_DEVICE


def _capability() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def file_name(device: str) -> str:
    """Name of a GPU's file in the folder `tuned`."""
    return f"{device.replace(' ', '_').replace('/', '_')}.json"


@cache
def tuned_entries(package: str, device: str, op: str) -> Sequence[Mapping[str, Any]]:
    """What was measured for an op on a GPU; nothing if that GPU has no file.

    Args:
        package: Import name of the package that has the folder `tuned`.
        device: As torch names the GPU.
        op: Name of the op.

    Raises:
        ConfigError: The file is no JSON of that form, or of another GPU.
    """
    name = file_name(device)
    path = files(package).joinpath("tuned", name)
    if not path.is_file():
        return ()
    where = f"{package}: tuned/{name}"
    try:
        parsed = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}; {REMEDY}") from error
    keys = set(parsed) if isinstance(parsed, dict) else None
    if keys != _KEYS:
        found = type(parsed).__name__ if keys is None else sorted(keys)
        raise ConfigError(f"{where} holds {found}, not exactly {sorted(_KEYS)}; {REMEDY}")
    if parsed["device"] != device:
        raise ConfigError(f"{where} was measured on {parsed['device']!r}, not on {device!r}; {REMEDY}")
    by_op = parsed["entries"]
    entries = by_op.get(op, []) if isinstance(by_op, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: $.entries.{op} is no list of objects; {REMEDY}")
    return tuple(entries)
