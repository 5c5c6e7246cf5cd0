"""The text side of an engine as its config asks for it: tokenizer, sampling defaults, chat template file.

Does not: load weights; what is wrong here is found before they are read, by `check_frontend`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vtcore.checkpoint.source import CheckpointDir
from vtcore.config.engine_config import EngineConfig
from vtcore.engine.engine import Engine
from vtcore.engine.sampling_defaults import GENERATION_CONFIG, SamplingDefaults, load_sampling_defaults
from vtcore.tokenization.chat_template import ChatTemplate, compiled, read_chat_template
from vtcore.tokenization.tokenizer import Tokenizer, require_tokenizer_file

if TYPE_CHECKING:
    from vtcore.loader import LoadedCore


def build_frontend(loaded: LoadedCore) -> Engine:
    """Put the tokenizer and the request processing on a core; if that fails, the core is closed.

    Raises:
        CheckpointError: The tokenizer is unusable, or as `check_frontend`.
        ConfigError: As `check_frontend`.
    """
    try:
        directory = _tokenizer_directory(loaded.config, loaded.checkpoint)
        tokenizer = None if directory is None else Tokenizer.from_directory(directory)
        return Engine(loaded, tokenizer, sampling_defaults_of(loaded.config, loaded.checkpoint))
    except BaseException:
        loaded.close()
        raise


def check_frontend(config: EngineConfig, checkpoint: CheckpointDir | None) -> None:
    """Look for whatever `build_frontend` would stumble over, at the cost of a few small files.

    Args:
        checkpoint: None for tensors in memory.

    Raises:
        CheckpointError: There is no tokenizer.json though text is wanted, the sampling defaults of the
            checkpoint are illegal, or the file of the option `chat_template` is no readable template.
        ConfigError: The options about sampling defaults are illegal.
    """
    directory = _tokenizer_directory(config, checkpoint)
    if directory is not None:
        require_tokenizer_file(directory)
    sampling_defaults_of(config, checkpoint)
    load_template_option(config)


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
        CheckpointError: The file is no readable template.
    """
    file = config.frontend.chat_template
    return None if file is None else compiled(read_chat_template(Path(file).expanduser()))


def _tokenizer_directory(config: EngineConfig, checkpoint: CheckpointDir | None) -> Path | None:
    frontend = config.frontend
    if frontend.skip_tokenizer_init:
        return None
    if frontend.tokenizer is not None:
        return Path(frontend.tokenizer).expanduser()
    return None if checkpoint is None else checkpoint.directory
