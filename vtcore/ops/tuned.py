"""Measured configurations of kernels: JSON files that lie beside the ops of a package, one for each GPU.

A file `tuned/NAME_OF_GPU.json` holds {"device": name, "made": {...}, "entries": {op: [entry, ...]}}; what an
entry holds is the op's, the measured microseconds among it. Scripts in tools/ make them.
Does not: measure, or read a file while a step runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from vtcore.errors import ConfigError

DEFAULT_DEVICE = "NVIDIA H200"
"""Whose entries serve where kernels are compiled for a GPU that is elsewhere."""
REMEDY = "measure it anew with the tools/tune_*.py of its op, or delete the file: rules serve then"

_KEYS = {"device", "made", "entries"}


@cache
def device_name() -> str:
    """The current GPU's name; `DEFAULT_DEVICE` where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_DEVICE


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
