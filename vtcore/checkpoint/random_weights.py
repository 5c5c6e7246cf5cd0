"""Draws random parameters as an architecture asks for them, each from its own seed.

Does not: choose distributions; `ModelArch.random_init` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch

from vtcore.checkpoint.parameters import source_shape
from vtcore.errors import PluginError
from vtcore.interfaces.model_arch import ModelArch


def draw_tensor(
    init: Mapping[str, float | str], shape: tuple[int, ...], seed: int, name: str, device: str = "cpu"
) -> torch.Tensor:
    """One random tensor, float32; depends on the arguments only.

    Args:
        init: As `ModelArch.random_init` returns it.
        seed, name: Together they key the noise, so that no tensor depends on the order of drawing.
        device: Where it is drawn and stays; each kind of device has noise of its own.

    Raises:
        PluginError: The kind is unknown or its numbers are unusable.
    """
    kind, generator = init.get("kind"), _generator(seed, name, device)
    numbers = {key: float(v) for key, v in init.items() if isinstance(v, int | float)}
    match (kind, numbers):
        case ("zeros", {}):
            return torch.zeros(shape, device=device)
        case ("ones", {}):
            return torch.ones(shape, device=device)
        case ("normal", {"std": std}) if std >= 0:
            return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)
        case ("log_uniform", {"low": low, "high": high}) if 0 < low < high:
            return torch.empty(shape, device=device).uniform_(low, high, generator=generator).log_()
    raise PluginError(f"the architecture asks for an unknown random draw for {name}: {dict(init)!r}")


def random_tensors(arch: ModelArch, seed: int, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a fresh checkpoint of released form, in the order of the rules, without repeats.

    Args:
        arch: Its rules for no names give sources and shapes.
        seed: 0 <= seed < 2**63.
        dtype: Of the tensors.

    Raises:
        PluginError: The architecture's draw is unusable.
    """
    done: set[str] = set()
    for rule in arch.param_rules(()):
        init = arch.random_init(rule)
        for part in rule.parts:
            if part.source not in done:
                done.add(part.source)
                yield part.source, draw_tensor(init, source_shape(rule, part), seed, part.source).to(dtype)


def _generator(seed: int, name: str, device: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
