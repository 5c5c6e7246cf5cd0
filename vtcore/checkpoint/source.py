"""Opens a checkpoint directory and refuses, before any weight is read, what cannot be served.

Does not: read weights, choose an architecture or check its fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vtcore.checkpoint.json_file import read_json_object, read_json_object_if_present
from vtcore.errors import CheckpointError, UnsupportedFeatureError

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


def open_checkpoint(path: str | os.PathLike[str]) -> CheckpointDir:
    """Read a checkpoint directory's configs.

    Args:
        path: A local directory with config.json and *.safetensors.

    Raises:
        UnsupportedFeatureError: GGUF, quantized weights, an adapter or a drafter.
        CheckpointError: Anything else that is missing or malformed, with the remedy.
    """
    directory = Path(path)
    _check_is_directory(directory)
    _refuse_adapter(directory)
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise _no_config_error(directory)
    hf_config = read_json_object(config_path)
    _refuse_drafter(directory, hf_config)
    _refuse_quantized(directory, hf_config)
    _check_architectures(config_path, hf_config)
    _check_has_weights(directory)
    return CheckpointDir(
        directory=directory,
        hf_config=hf_config,
        generation_config=read_json_object_if_present(directory / "generation_config.json"),
        tokenizer_config=read_json_object_if_present(directory / "tokenizer_config.json"),
    )


def _check_is_directory(path: Path) -> None:
    if path.is_dir():
        return
    if path.name.lower().endswith(".gguf"):
        raise _gguf_error(path)
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the directory that holds config.json and the weights")
    raise CheckpointError(
        f"{path} does not exist; give a local directory (a model of a hub must be downloaded first)"
    )


def _gguf_error(path: Path) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{path} is a GGUF checkpoint, which no installed plugin reads; use the safetensors form of the model"
    )


def _files(directory: Path, *suffixes: str) -> list[str]:
    return sorted(f.name for f in directory.iterdir() if f.is_file() and f.name.lower().endswith(suffixes))


def _refuse_adapter(directory: Path) -> None:
    """Full weights beside an adapter's files are a merged model and pass."""
    weights = _files(directory, *_WEIGHT_SUFFIXES)
    if any(not name.startswith(_ADAPTER_WEIGHTS) for name in weights):
        return
    evidence = [_ADAPTER_CONFIG] if (directory / _ADAPTER_CONFIG).is_file() else weights
    if evidence:
        raise UnsupportedFeatureError(
            f"{directory} is an adapter ({evidence[0]}, no full weights), which is not served; merge it into "
            f"its base model and give that directory"
        )


def _no_config_error(directory: Path) -> CheckpointError:
    if (directory / "speculators_config.json").is_file():
        return _drafter_error(directory, "it has speculators_config.json")
    if _files(directory, ".gguf") and not _files(directory, ".safetensors"):
        return _gguf_error(directory / _files(directory, ".gguf")[0])
    return CheckpointError(f"{directory} has no config.json; give the directory of a complete checkpoint")


def _drafter_error(directory: Path, evidence: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{directory} is a drafter, not a model ({evidence}); give the target model's directory instead"
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


def _check_has_weights(directory: Path) -> None:
    if _files(directory, *_WEIGHT_SUFFIXES):
        return
    pickles = _files(directory, *_PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedFeatureError(
            f"{directory} has only pickled weights ({pickles[0]}), which are never read because loading them "
            f"can run code; convert them to safetensors"
        )
    ggufs = _files(directory, ".gguf")
    if ggufs:
        raise _gguf_error(directory / ggufs[0])
    raise CheckpointError(f"{directory} has config.json but no *.safetensors; the download is incomplete")
