"""Distributions that strangers might write, as folders from which wheels are built.

Does not: use anything of vtcore but what docs/plugins.md lets a plugin import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import build_dist


def build_stranger(
    name: str, modules: Mapping[str, str], folder: Path, version: str = "1.0", plugin: str = ""
) -> Path:
    """Write a distribution and build its wheel.

    Args:
        name: Of the distribution, `vtcore-NAME`; its package is `vtcore_NAME`.
        modules: Module -> source; `plugin` is the one that is announced.
        folder: Where it is written; must not exist.
        plugin: Name of the entry point; default NAME.

    Returns:
        The wheel.
    """
    short = name.removeprefix("vtcore-").replace("-", "_")
    package = folder / "src" / f"vtcore_{short}"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["vtcore>=0.1"]\n\n[project.entry-points."vtcore.plugins"]\n'
        f'{plugin or short} = "vtcore_{short}.plugin"\n\n[tool.setuptools.packages.find]\nwhere = ["src"]\n'
    )
    for module, source in {"__init__": "", **modules}.items():
        (package / f"{module}.py").write_text(source)
    command = [sys.executable, "-c", build_dist.CALL, "build_wheel", str(folder)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def policy_plugin(name: str, implementation: str, api: str = "0.2") -> str:
    """The module `plugin` of a distribution with one policy."""
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {{"scheduler_policies": "{api}"}}

@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="{name}", implementation="{implementation}")]
"""


LAST_FIRST = """
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

class LastFirst(SchedulerPolicy):
    \"\"\"Admits whoever came last; as written before policies had options.\"\"\"

    def __init__(self):
        self.seen = 0

    def key(self, view):
        return (-view.arrival_s,)
"""

UNRULY = """
import time
from vtcore.interfaces.scheduler_policy import SchedulerPolicy

class Raising(SchedulerPolicy):
    static = False
    def order(self, window, ctx):
        raise ZeroDivisionError("no share")

class Losing(SchedulerPolicy):
    static = False
    def order(self, window, ctx):
        return [0] * len(window) + [1]

class Slow(SchedulerPolicy):
    static = False
    def order(self, window, ctx):
        time.sleep(0.02)
        return range(len(window))

class Sorting(SchedulerPolicy):
    def key(self, view):
        return [view]

class Unmakable(SchedulerPolicy):
    def __init__(self):
        raise KeyError("weights")
"""
"""Policies that break their contract, each in one way."""

UNRULY_PLUGIN = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {"scheduler_policies": "0.1"}

@hookimpl
def vtcore_register_scheduler_policies():
    return [
        SchedulerPolicyEntry(name=name.lower(), implementation=f"vtcore_unruly.policies:{name}")
        for name in ("Raising", "Losing", "Slow", "Sorting", "Unmakable", "Absent")
    ]
"""


def arch_plugin(package: str, classes: Mapping[str, str], api: str = "0.1") -> str:
    """The module `plugin` of a distribution with archs: model type -> class of its module `arch`."""
    entries = ", ".join(
        f'ArchEntry(name="{model_type}", model_types=("{model_type}",), '
        f'implementation="{package}.arch:{name}")'
        for model_type, name in classes.items()
    )
    specs = ", ".join(
        f'KVCacheSpecEntry(name="toy_{kind}", implementation="vtcore.testing.toy_arch:Toy{kind.title()}")'
        for kind in ("blocks", "window", "state")
    )
    return f"""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry, KVCacheSpecEntry

VTCORE_API = {{"archs": "{api}", "kv_cache_specs": "0.1"}}

@hookimpl
def vtcore_register_archs():
    return [{entries}]

@hookimpl
def vtcore_register_kv_cache_specs():
    return [{specs}]
"""


ECHO = """
from vtcore.testing.toy_arch import ToyArch

class Echo(ToyArch):
    \"\"\"The toy under a stranger's name.\"\"\"
"""

FAULTY = """
import torch
from attrs import evolve
from vtcore.testing.toy_arch import ToyArch, ToyModel

class Odd(ToyModel):
    def forward(self, step):
        return self.spoil(super().forward(step))

class Raises(Odd):
    def spoil(self, output):
        raise IndexError("layer 7 of 6")

class Short(Odd):
    def spoil(self, output):
        return evolve(output, hidden=output.hidden[1:])

class Wide(Odd):
    def spoil(self, output):
        return evolve(output, hidden=torch.cat((output.hidden, output.hidden), dim=1))

class Half(Odd):
    def spoil(self, output):
        return evolve(output, hidden=output.hidden.to(torch.float16))

class Elsewhere(Odd):
    def spoil(self, output):
        return evolve(output, hidden=output.hidden.to("meta"))

class Bare(Odd):
    def spoil(self, output):
        return output.hidden

class Mixed(ToyModel):
    def logits(self, hidden):
        return super().logits(hidden).to(torch.int64)

class Narrow(ToyModel):
    def logits(self, hidden):
        return super().logits(hidden)[:, 1:]

class Lost(ToyModel):
    def logits(self, hidden):
        return super().logits(hidden).to("meta")

class Failing(ToyModel):
    def logits(self, hidden):
        raise IndexError("head 3 of 2")

class Clean(ToyModel):
    pass

class Base(ToyArch):
    model = Clean
    def build(self, ctx):
        return self.model(self.parts, self.window, self.dims.vocab_size)

for model in (Raises, Short, Wide, Half, Elsewhere, Bare, Mixed, Narrow, Lost, Failing):
    globals()[f"{model.__name__}Arch"] = type(f"{model.__name__}Arch", (Base,), {"model": model})
"""
"""Archs whose models break their contract, each in one way."""

FAULTS = ("Raises", "Short", "Wide", "Half", "Elsewhere", "Bare", "Mixed", "Narrow", "Lost", "Failing")


def write_checkpoint(folder: Path, model_type: str) -> Path:
    """A checkpoint of a toy under some model type; it has no weights."""
    folder.mkdir()
    config = {"model_type": model_type, "vocab_size": 64, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder
