"""Ways to break a checkpoint, and plugins that misbehave.

Does not: run anything; `error_cases.py` says what each must lead to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

Break = Callable[[Path], object]
"""Changes the directory of a checkpoint."""

DROPPED = object()
"""In place of a value: the key goes."""
SHARD = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def put(name: str, content: bytes) -> Break:
    """A file with other content, or one more."""
    return lambda model: (model / name).write_bytes(content)


def drop(*names: str) -> Break:
    """Files that are missing."""
    return lambda model: [(model / name).unlink() for name in names]


def keep(*names: str) -> Break:
    """All other files are missing."""
    return lambda model: [file.unlink() for file in model.iterdir() if file.name not in names]


def instead(files: Mapping[str, bytes]) -> Break:
    """Other files, and none of the checkpoint's."""

    def change(model: Path) -> None:
        keep()(model)
        for name, content in files.items():
            (model / name).write_bytes(content)

    return change


def cut(name: str, num_bytes: int) -> Break:
    """A file that lacks its last bytes."""
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:-num_bytes])


def both(*breaks: Break) -> Break:
    """One after the other."""
    return lambda model: [change(model) for change in breaks]


def values(name: str, **changes: Any) -> Break:
    """A JSON file with other values at its outer level."""
    return lambda model: _edit(model / name, lambda data: data, changes)


def text_values(**changes: Any) -> Break:
    """A config.json with other values in its text section."""
    return lambda model: _edit(model / "config.json", lambda data: data["text_config"], changes)


def rope_values(**changes: Any) -> Break:
    """A config.json with other rope parameters."""
    return lambda model: _edit(
        model / "config.json", lambda data: data["text_config"]["rope_parameters"], changes
    )


def _edit(path: Path, part: Callable[[Any], dict[str, Any]], changes: Mapping[str, Any]) -> None:
    data = json.loads(path.read_text())
    inner = part(data)
    inner.update(changes)
    for key in [key for key, value in inner.items() if value is DROPPED]:
        del inner[key]
    path.write_text(json.dumps(data))


def header(change: Callable[[dict[str, Any]], object], name: str = SHARD) -> Break:
    """A safetensors file whose header says something else."""

    def rewrite(model: Path) -> None:
        raw = (model / name).read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        data = json.loads(raw[8:end])
        change(data)
        text = json.dumps(data).encode()
        (model / name).write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])

    return rewrite


def rename_tensor(old: str, new: str) -> Break:
    """A tensor under another name, in the index too."""

    def rename(model: Path) -> None:
        index = json.loads((model / INDEX).read_text())
        file = index["weight_map"].pop(old)
        index["weight_map"][new] = file
        (model / INDEX).write_text(json.dumps(index))
        header(lambda data: data.update({new: data.pop(old)}), file)(model)

    return rename


def repeat_shard(model: Path) -> None:
    """A second copy of a shard, and no index that chooses."""
    (model / INDEX).unlink()
    shutil.copy(model / SHARD, model / "again.safetensors")


_HEAD = "from vtcore import hookimpl\nfrom vtcore.interfaces.registry_entries import *\n"


def plugin(kind: str, entry: str, api: str = "0.1") -> str:
    """Source of a plugin file that registers one entry of a kind."""
    return (
        f"{_HEAD}VTCORE_API = {{{kind!r}: {api!r}}}\n"
        f"@hookimpl\ndef vtcore_register_{kind}():\n    return [{entry}]\n"
    )


POLICY = 'SchedulerPolicyEntry(name="mine", implementation="vtcore.scheduling.policies.fcfs:FcfsPolicy")'

MODULE = """
from vtcore.interfaces.checkpoint_source import CheckpointSource
from vtcore.interfaces.scheduler_policy import SchedulerPolicy
from vtcore.testing.toy_arch import ToyArch, ToyModel

class BadSource(CheckpointSource):
    def fetch(self, request):
        raise ZeroDivisionError("by zero")

class BadPolicy(SchedulerPolicy):
    def __init__(self):
        raise ValueError("no luck")

class Raising(ToyArch):
    def __init__(self, hf_config):
        raise KeyError("wheels")

class Faulty(ToyArch):
    def build(self, ctx):
        raise KeyError("axles")

class Narrow(ToyModel):
    def logits(self, hidden):
        return super().logits(hidden)[:, 1:]

class Wrong(ToyArch):
    def build(self, ctx):
        return Narrow(self.parts, self.window, self.dims.vocab_size)
"""
"""Implementations, as a module `vtcore_bad_parts`."""

TOY_CONFIG = json.dumps(
    {"architectures": ["Toy"], "model_type": "toy", "vocab_size": 64, "max_position_embeddings": 64}
).encode()


def toy_plugin(arch: str, kinds: Collection[str] = ("blocks", "window", "state")) -> str:
    """Source of a plugin file that serves TOY_CONFIG by a class of MODULE."""
    specs = ", ".join(
        f'KVCacheSpecEntry(name="toy_{kind}", implementation="vtcore.testing.toy_arch:Toy{kind.title()}")'
        for kind in kinds
    )
    return (
        f'{_HEAD}VTCORE_API = {{"archs": "0.1", "kv_cache_specs": "0.1"}}\n'
        f'@hookimpl\ndef vtcore_register_archs():\n    return [ArchEntry(name="toy", model_types=("toy",), '
        f'implementation="vtcore_bad_parts:{arch}")]\n'
        f"@hookimpl\ndef vtcore_register_kv_cache_specs():\n    return [{specs}]\n"
    )
