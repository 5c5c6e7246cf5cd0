"""Sampling defaults of a model: generation_config.json, and the options that replace or override it.

Does not: decide which ids end a text (tokenization/eos.py), or touch a SamplingParams that a caller made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import fields, frozen

from vtcore.checkpoint.json_file import read_json_object
from vtcore.errors import CheckpointError, ConfigError, RequestError
from vtcore.request import SamplingParams, name_problem

# Source: vLLM, ModelConfig.get_diff_sampling_param; the last one is transformers' name of max_tokens.
_FILE_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
_MAX_NEW_TOKENS = "max_new_tokens"
# Source: transformers, GenerationConfig: without do_sample decoding is greedy, whatever the temperature.
_DO_SAMPLE = "do_sample"
_OVERRIDE = "$.override_generation_config"

GENERATION_CONFIG = "generation_config.json"
"""The file's name."""
AUTO = "auto"
"""Value of the option `generation_config`: the checkpoint's own file."""
NEUTRAL = "neutral"
"""Value of the option `generation_config`: no file; `SamplingParams()`."""


@frozen
class SamplingDefaults:
    """What a request gets that brings no parameters.

    Args:
        given: Parameter -> value, of those that a file or an option sets.
        origins: Parameter -> where its value came from, one for each parameter.
    """

    given: Mapping[str, Any]
    origins: Mapping[str, str]

    def params(self, **over: Any) -> SamplingParams:
        """The defaults as parameters.

        Args:
            **over: Values that win, by parameter.

        Raises:
            RequestError: The values do not go together, or one of `over` is illegal.
        """
        return SamplingParams(**{**self.given, **over})

    def rows(self) -> dict[str, tuple[Any, str]]:
        """Parameter -> (value, origin), every parameter in order of declaration."""
        params = self.params()
        return {name: (getattr(params, name), origin) for name, origin in self.origins.items()}


def load_sampling_defaults(
    option: str | None,
    override: Mapping[str, Any] | None,
    checkpoint_config: Mapping[str, Any],
    checkpoint_file: str | Path = GENERATION_CONFIG,
) -> SamplingDefaults:
    """Defaults by the options `generation_config` and `override_generation_config`.

    Args:
        option: "auto" (None too), "neutral", or a directory that has a generation_config.json.
        checkpoint_config: The checkpoint's generation_config.json as parsed; {} when there is none.
        checkpoint_file: Its path, for errors and origins.

    Raises:
        ConfigError: The directory has no such file, or as `combine_sampling_defaults`.
        CheckpointError: The directory's file is malformed, or as `combine_sampling_defaults`.
    """
    if option is None or option == AUTO:
        return combine_sampling_defaults(checkpoint_config, override, str(checkpoint_file))
    if option == NEUTRAL:
        return combine_sampling_defaults({}, override)
    path = Path(option).expanduser() / GENERATION_CONFIG
    if not path.is_file():
        raise ConfigError(
            f"$.generation_config: {option!r} is no directory with a {GENERATION_CONFIG}; give one, or "
            f"auto or neutral"
        )
    return combine_sampling_defaults(read_json_object(path), override, str(path))


def combine_sampling_defaults(
    generation_config: Mapping[str, Any],
    override: Mapping[str, Any] | None = None,
    file: str = GENERATION_CONFIG,
) -> SamplingDefaults:
    """The file's values, those of `override` over them, and SamplingParams' own for the rest.

    A null is no value. Keys of the file that are no sampling parameter are other people's and stay unread;
    `do_sample: false` is temperature 0, whatever temperature stands beside it. A min_tokens above the usual
    max_tokens leaves the context as the only limit, where nothing sets max_tokens.

    Args:
        file: Path of the file, for errors and origins.

    Raises:
        CheckpointError: A value of the file is illegal.
        ConfigError: A key of `override` is no sampling parameter, a value is illegal, or values do not go
            together; all are named at once.
    """
    given: dict[str, Any] = {}
    origins = {attribute.name: "default" for attribute in fields(SamplingParams)}
    problems: list[str] = []
    for key, (name, value) in _from_file(generation_config).items():
        sentence = value_problem(name, value)
        if sentence is not None:
            problems.append(f"{file}: {key}: {sentence}")
            continue
        given[name] = value
        origins[name] = f"{file}, {key}" if key != name else file
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)} (mend the file, or start with generation_config=neutral)"
        )
    over, problems = _from_override(override or {})
    if problems:
        raise ConfigError(*problems)
    for name, value in over.items():
        given[name] = value
        origins[name] = "override_generation_config"
    usual = SamplingParams().max_tokens
    if "max_tokens" not in given and usual is not None and given.get("min_tokens", 0) > usual:
        given["max_tokens"] = None
        origins["max_tokens"] = f"default: min_tokens is above {usual}, so the context is the limit"
    elif "max_tokens" not in given:
        origins["max_tokens"] = "default; in chat and on the command line the context is the limit"
    defaults = SamplingDefaults(given, origins)
    try:
        defaults.params()
    except RequestError as error:
        raise ConfigError(f"{_OVERRIDE}: {error}") from error
    return defaults


def _from_file(generation_config: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Key of the file -> (parameter, value)."""
    found: dict[str, tuple[str, Any]] = {}
    for key in _FILE_KEYS:
        value = generation_config.get(key)
        if value is not None:
            found[key] = ("max_tokens" if key == _MAX_NEW_TOKENS else key, value)
    if generation_config.get(_DO_SAMPLE) is False:
        found.pop("temperature", None)
        found[_DO_SAMPLE] = ("temperature", 0.0)
    return found


def _from_override(override: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(parameter -> value, one sentence per problem)."""
    over: dict[str, Any] = {}
    problems: list[str] = []
    if override.get(_DO_SAMPLE) is False:
        over["temperature"] = 0.0
    for key, value in override.items():
        name = "max_tokens" if key == _MAX_NEW_TOKENS else key
        if key == _DO_SAMPLE and isinstance(value, bool):
            continue
        if key == _DO_SAMPLE:
            problems.append(f"{_OVERRIDE}.{key}: {value!r} is not true or false")
        elif (sentence := name_problem(name)) is not None:
            problems.append(f"{_OVERRIDE}.{key}: {sentence}")
        elif name in over:
            problems.append(f"{_OVERRIDE}.{key}: {name} is set by two keys; give one")
        elif (sentence := value_problem(name, value)) is not None:
            problems.append(f"{_OVERRIDE}.{key}: {sentence}")
        else:
            over[name] = value
    return over, problems


def value_problem(name: str, value: Any) -> str | None:
    """What is wrong with one parameter by itself, to be said after its name; None when nothing is."""
    try:
        SamplingParams(**({name: value} if name != "min_tokens" else {name: value, "max_tokens": None}))
    except RequestError as error:
        return str(error).removeprefix(f"{name}=")
    return None
