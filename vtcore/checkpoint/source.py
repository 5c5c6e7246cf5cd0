"""Opens a checkpoint directory and refuses, before any weight is read, what cannot be served.

Does not: read weights, choose an architecture, check its fields or fetch anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from vtcore.checkpoint.json_file import read_json_object, read_json_object_if_present
from vtcore.checkpoint.shards import find_missing_shards
from vtcore.errors import CheckpointError, IncompleteCheckpointError, UnsupportedFeatureError

_CONFIG_FILE = "config.json"
_DRAFTER_ARCHITECTURE = re.compile(r"DFlash|Eagle|Medusa|Speculator|Draft(er)?Model", re.IGNORECASE)
# Source: config.json of public DFlash, EAGLE and speculators releases.
_DRAFTER_KEYS = ("dflash_config", "speculators_config", "eagle_config")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json")
# Source: peft, CONFIG_NAME and SAFETENSORS_WEIGHTS_NAME.
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model"


@frozen
class CheckpointDir:
    """A directory that holds a model in the published form.

    Args:
        directory: Existing directory.
        hf_config: config.json, outer form.
        generation_config: generation_config.json; empty when there is none.
        tokenizer_config: tokenizer_config.json; empty when there is none.
    """

    directory: Path
    hf_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]

    @property
    def architectures(self) -> tuple[str, ...]:
        """The config's `architectures`; empty when only `model_type` is given."""
        return tuple(self.hf_config.get("architectures") or ())


def open_checkpoint(path: str | os.PathLike[str], *, needs_weights: bool = True) -> CheckpointDir:
    """Read a checkpoint directory's configs.

    Args:
        path: A local directory with config.json and *.safetensors.
        needs_weights: Whether every weight file must be there; False asks for config.json only.

    Raises:
        UnsupportedFeatureError: GGUF, quantized weights, an adapter or a drafter.
        IncompleteCheckpointError: Weight files are missing.
        CheckpointError: Anything else that is missing or malformed, with the remedy.
    """
    directory = Path(path)
    check_is_directory(directory)
    names = [file.name for file in directory.iterdir() if file.is_file()]
    _check_names(directory, names)
    config_path = directory / "config.json"
    hf_config = read_json_object(config_path)
    _refuse_drafter(directory, hf_config)
    _refuse_quantized(directory, hf_config)
    _check_architectures(config_path, hf_config)
    if needs_weights:
        _check_has_weights(directory, names)
        if missing := find_missing_shards(directory):
            raise IncompleteCheckpointError(
                f"{directory} lacks {len(missing.files)} of {missing.total} weight files, first "
                f"{missing.files[0]} ({missing.reason}); the download broke off, run it again (for a model "
                f"of the hub: vtcore pull MODEL)"
            )
    return CheckpointDir(
        directory=directory,
        hf_config=hf_config,
        generation_config=read_json_object_if_present(directory / "generation_config.json"),
        tokenizer_config=read_json_object_if_present(directory / "tokenizer_config.json"),
    )


@contextmanager
def naming_config(directory: Path | None) -> Iterator[None]:
    """Archs judge values of config.json and do not know where it lies; their errors get its directory.

    Args:
        directory: None for a config in memory; its errors stay as they are.
    """
    try:
        yield
    except CheckpointError as error:
        if directory is None or not str(error).startswith(_CONFIG_FILE):
            raise
        raise type(error)(f"{directory / _CONFIG_FILE}{str(error).removeprefix(_CONFIG_FILE)}") from error


def check_listed_files(where: str, names: Collection[str], *, needs_weights: bool = True) -> None:
    """Judge a checkpoint by the names of its files alone, before any is fetched.

    Args:
        where: What to call the checkpoint.
        names: Files of its outermost folder.
        needs_weights: Whether there must be *.safetensors.

    Raises:
        CheckpointError: As `open_checkpoint` raises it.
    """
    _check_names(where, names)
    if needs_weights:
        _check_has_weights(where, names)


def check_is_directory(path: Path) -> None:
    """Refuse a path that is no directory.

    Raises:
        UnsupportedFeatureError: It names a GGUF file.
        CheckpointError: It is a file, or nothing.
    """
    if path.is_dir():
        return
    if path.name.lower().endswith(".gguf"):
        raise _gguf_error(path)
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the directory that holds config.json and the weights")
    raise CheckpointError(f"{path} does not exist; give the directory of a checkpoint")


def _gguf_error(path: object) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{path} is a GGUF checkpoint, which no installed plugin reads; use the safetensors form of the model"
    )


def _ending(names: Collection[str], *suffixes: str) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(suffixes))


def _check_names(where: object, names: Collection[str]) -> None:
    """Full weights beside an adapter's files are a merged model and pass."""
    weights = _ending(names, *_WEIGHT_SUFFIXES)
    if not any(not name.startswith(_ADAPTER_WEIGHTS) for name in weights):
        evidence = [_ADAPTER_CONFIG] if _ADAPTER_CONFIG in names else weights
        if evidence:
            raise UnsupportedFeatureError(
                f"{where} is an adapter ({evidence[0]}, no full weights), which is not served; merge it into "
                f"its base model and give that directory"
            )
    if "config.json" not in names:
        raise _no_config_error(where, names)


def _no_config_error(where: object, names: Collection[str]) -> CheckpointError:
    if "speculators_config.json" in names:
        return _drafter_error(where, "it has speculators_config.json")
    if _ending(names, ".gguf") and not _ending(names, ".safetensors"):
        return _gguf_error(f"{where}/{_ending(names, '.gguf')[0]}")
    return CheckpointError(f"{where} has no config.json; give the directory of a complete checkpoint")


def _drafter_error(where: object, evidence: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{where} is a drafter, not a model ({evidence}); give the target model's directory instead"
    )


def _refuse_drafter(directory: Path, hf_config: Mapping[str, Any]) -> None:
    for key in _DRAFTER_KEYS:
        if hf_config.get(key) is not None:
            raise _drafter_error(directory, f"config.json has `{key}`")
    for name in _names(hf_config.get("architectures")):
        if _DRAFTER_ARCHITECTURE.search(name):
            raise _drafter_error(directory, f"its architecture is {name}")


def _refuse_quantized(directory: Path, hf_config: Mapping[str, Any]) -> None:
    inner = hf_config.get("text_config")
    places = [("config.json", hf_config)]
    if isinstance(inner, Mapping):
        places.append(("config.json, text_config", inner))
    for place, config in places:
        found = config.get("quantization_config")
        if found is not None:
            method = found.get("quant_method", "unnamed") if isinstance(found, Mapping) else "unnamed"
            raise _quantized_error(directory, f"quantization_config in {place}", str(method))
    extra = directory / "hf_quant_config.json"
    if extra.is_file():
        found = read_json_object(extra).get("quantization")
        method = found.get("quant_algo", "unnamed") if isinstance(found, Mapping) else "unnamed"
        raise _quantized_error(directory, extra.name, str(method))


def _quantized_error(directory: Path, place: str, method: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{directory} is quantized ({place}: method {method}), which is not served; use the bfloat16 release"
    )


def _names(value: object) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _check_architectures(config_path: Path, hf_config: Mapping[str, Any]) -> None:
    value = hf_config.get("architectures")
    if value is not None and (not isinstance(value, list) or len(_names(value)) != len(value)):
        raise CheckpointError(f"{config_path}: `architectures` must be a list of strings, found {value!r}")
    if not value and not hf_config.get("model_type"):
        raise CheckpointError(
            f"{config_path} has neither `architectures` nor `model_type`, so the kind of model is unknown; "
            f"use the config.json that the model was published with"
        )


def _check_has_weights(where: object, names: Collection[str]) -> None:
    if _ending(names, *_WEIGHT_SUFFIXES):
        return
    pickles = _ending(names, *_PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedFeatureError(
            f"{where} has only pickled weights ({pickles[0]}), which are never read because loading them "
            f"can run code; convert them to safetensors"
        )
    ggufs = _ending(names, ".gguf")
    if ggufs:
        raise _gguf_error(f"{where}/{ggufs[0]}")
    raise IncompleteCheckpointError(
        f"{where} has config.json but no *.safetensors; if it is a download that broke off, run it again; or "
        f"give load_format=dummy for random weights"
    )
