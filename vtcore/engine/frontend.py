"""The text side of an engine as its config asks for it: tokenizer, sampling defaults, chat template file.

Does not: load weights; `load_text_parts` is called before any is read, so that a mistake here costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from vtcore.checkpoint.source import CheckpointDir
from vtcore.config.engine_config import EngineConfig
from vtcore.engine.engine import Engine
from vtcore.engine.sampling_defaults import GENERATION_CONFIG, SamplingDefaults, load_sampling_defaults
from vtcore.errors import CheckpointError, ConfigError, RequestError
from vtcore.tokenization.chat_template import ChatTemplate, compiled, read_chat_template
from vtcore.tokenization.plain_data import to_plain
from vtcore.tokenization.tokenizer import Tokenizer, require_tokenizer_file

if TYPE_CHECKING:
    from vtcore.loader import LoadedCore

_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
_DEFAULT_KWARGS = "default_chat_template_kwargs"


@frozen
class TextParts:
    """What an engine needs beside its core; the tokenizer is None where only ids are served."""

    tokenizer: Tokenizer | None
    sampling_defaults: SamplingDefaults


def load_text_parts(config: EngineConfig, checkpoint: CheckpointDir | None) -> TextParts:
    """Read tokenizer, templates and sampling defaults.

    Args:
        checkpoint: None for tensors in memory.

    Raises:
        CheckpointError: The tokenizer is unusable, or as `check_frontend`.
        ConfigError: As `check_frontend`.
    """
    check_frontend(config, checkpoint)
    directory = _tokenizer_directory(config, checkpoint)
    tokenizer = None if directory is None else Tokenizer.from_directory(directory)
    return TextParts(tokenizer, sampling_defaults_of(config, checkpoint))


def build_frontend(loaded: LoadedCore, parts: TextParts | None = None) -> Engine:
    """Put the tokenizer and the request processing on a core; if that fails, the core is closed.

    Args:
        parts: As `load_text_parts` made them of the core's config and checkpoint; None makes them now.

    Raises:
        VtcoreError: As `load_text_parts`.
    """
    try:
        parts = parts or load_text_parts(loaded.config, loaded.checkpoint)
        return Engine(loaded, parts.tokenizer, parts.sampling_defaults)
    except BaseException:
        loaded.close()
        raise


def check_frontend(
    config: EngineConfig, checkpoint: CheckpointDir | None, *, only_configs: bool = False
) -> None:
    """Look for whatever `load_text_parts` would stumble over, at the cost of a few small files.

    Args:
        checkpoint: None for tensors in memory.
        only_configs: The checkpoint's own tokenizer.json may be missing; files that options name never may.

    Raises:
        CheckpointError: There is no tokenizer.json though text is wanted, or the sampling defaults of the
            checkpoint are illegal.
        ConfigError: The directory of the option `tokenizer` has none, the options about sampling defaults are
            illegal, the file of the option `chat_template` is no readable template, or the option
            `default_chat_template_kwargs` has what no template is given.
    """
    directory = _tokenizer_directory(config, checkpoint)
    option = config.frontend.tokenizer
    if directory is not None and (option is not None or not only_configs):
        try:
            require_tokenizer_file(directory)
        except CheckpointError:
            if option is None:
                raise
            raise ConfigError(
                f"$.tokenizer: {option!r} is no directory with a tokenizer.json; give one, or leave it out "
                f"for the model's own"
            ) from None
    sampling_defaults_of(config, checkpoint)
    load_template_option(config)
    default_template_kwargs(config)


def sampling_defaults_of(config: EngineConfig, checkpoint: CheckpointDir | None) -> SamplingDefaults:
    """What a request gets that brings no parameters.

    Args:
        checkpoint: None for tensors in memory.

    Raises:
        CheckpointError, ConfigError: As `load_sampling_defaults`.
    """
    return load_sampling_defaults(
        config.frontend.generation_config,
        config.frontend.override_generation_config,
        {} if checkpoint is None else checkpoint.generation_config,
        GENERATION_CONFIG if checkpoint is None else checkpoint.directory / GENERATION_CONFIG,
    )


def load_template_option(config: EngineConfig) -> ChatTemplate | None:
    """The template of the option `chat_template`; None without.

    Raises:
        ConfigError: The file is no readable template.
    """
    file = config.frontend.chat_template
    if file is None:
        return None
    path = Path(file).expanduser()
    try:
        source = read_chat_template(path)
    except CheckpointError as error:
        raise ConfigError(f"$.chat_template: {error}") from error
    try:
        return compiled(source)
    except CheckpointError as error:
        raise ConfigError(f"$.chat_template: {path}: {error}") from error


def default_template_kwargs(config: EngineConfig) -> dict[str, Any]:
    """Variables of the option `default_chat_template_kwargs`.

    Raises:
        ConfigError: One has the name of an argument, or is not plain data.
    """
    try:
        return check_template_kwargs(config.frontend.default_chat_template_kwargs, _DEFAULT_KWARGS)
    except RequestError as error:
        raise ConfigError(f"$.{error}") from error


def check_template_kwargs(given: Any, name: str) -> dict[str, Any]:
    """Variables for a template, as plain data.

    Args:
        given: By name; None for none.
        name: Of the argument or option, for errors.

    Raises:
        RequestError: They are no mapping, or one has the name of an argument, or is not plain data.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} is of type {type(given).__name__}; give variables by name")
    for key in given:
        if key in _OWN_VARIABLES:
            raise RequestError(f"{name}.{key}: each request has an argument for this; leave it out here")
    plain: dict[str, Any] = to_plain(given, name)
    return plain


def _tokenizer_directory(config: EngineConfig, checkpoint: CheckpointDir | None) -> Path | None:
    frontend = config.frontend
    if frontend.skip_tokenizer_init:
        return None
    if frontend.tokenizer is not None:
        return Path(frontend.tokenizer).expanduser()
    return None if checkpoint is None else checkpoint.directory
