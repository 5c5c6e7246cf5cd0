"""`vtcore make-checkpoint`: a small checkpoint of real form with random weights, or a config.json alone.

Does not: know an architecture; sizes, shapes and draws are the plugin's.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vtcore.checked_arch import CheckedArch, naming_arch
from vtcore.checkpoint.json_file import read_json_object
from vtcore.checkpoint.random_weights import random_tensors
from vtcore.checkpoint.staged_folder import STAGING_PREFIX, staged_folder
from vtcore.checkpoint.writer import write_json, write_shards
from vtcore.cli.engine_flags import add_plugin_flags, given_from_args
from vtcore.cli.interruption import say_interrupted
from vtcore.errors import ConfigError, HostError, PluginError, VtcoreError
from vtcore.interfaces.model_arch import ModelArch
from vtcore.interfaces.registry_entries import ArchEntry
from vtcore.plugins import build_registry, registry_for
from vtcore.registry import PluginRegistry, Registered
from vtcore.suggest import did_you_mean
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import END_OF_TEXT, END_OF_TURN, chat_template, train_tokenizer

RANDOM_WEIGHTS_KEY = "vtcore_random_weights"
"""True in the config.json of every checkpoint written here; text made from it is gibberish."""

_TOKENIZER_VOCAB = {"tiny": 512}
_DEFAULT_TOKENIZER_VOCAB = 4096
# Releases pad the embedding beyond the tokenizer, so rows exist without a token. Source: Qwen3.5 config.json.
_VOCAB_MULTIPLE = 64
_NUM_SHARDS = 2
_CONFIG_FILE = "config.json"
_CONFIG_ONLY_VOCAB = 512
"""Rows of the embedding where a small config is written without a tokenizer."""


def make_checkpoint(
    arch_name: str,
    size: str,
    out: Path,
    seed: int = 0,
    registry: PluginRegistry | None = None,
    force: bool = False,
) -> int:
    """Write a checkpoint; the same arguments and torch version give the same bytes.

    Args:
        arch_name: Registry name of an architecture.
        size: A size that it offers.
        out: Directory; made if absent.
        seed: 0 <= seed < 2**63.
        registry: Where the architecture is looked up; None builds one from what is installed.
        force: Whether an earlier checkpoint of this command, or a broken-off one, is overwritten in `out`.

    Returns:
        Number of parameters.

    Raises:
        ConfigError: Unknown arch or size, bad seed, or `out` holds something else.
        HostError: `out` cannot be written.
        KeyboardInterrupt: Ctrl-C; `out` is as it was, unless the text says that it is whole.
    """
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed must be in [0, 2**63), got {seed}")
    registry = registry if registry is not None else build_registry()
    registered = _find_arch(arch_name, registry)
    # The size is judged before the tokenizer is trained, which takes longest.
    _config_of(registered, registry, size, _VOCAB_MULTIPLE)
    with _writing(out, force) as staging:
        tokenizer = train_tokenizer(_TOKENIZER_VOCAB.get(size, _DEFAULT_TOKENIZER_VOCAB))
        padded = (tokenizer.vocab_size // _VOCAB_MULTIPLE + 1) * _VOCAB_MULTIPLE
        config = _with_core_keys(_config_of(registered, registry, size, padded), tokenizer)
        arch = CheckedArch(registry.make_arch(registered, config), str(registered))
        with naming_arch(str(registered)):
            num_bytes = write_shards(staging, random_tensors(arch, seed, torch.bfloat16), _NUM_SHARDS)
        _write_tokenizer(staging, tokenizer)
        write_json(staging / _CONFIG_FILE, config)
    return num_bytes // torch.bfloat16.itemsize


def make_config(
    arch_name: str, size: str, out: Path, registry: PluginRegistry | None = None, force: bool = False
) -> None:
    """Write config.json alone: of a released size, else of a size for tests.

    It is enough for `check`, `warmup` and `bench`, and for `load_format=dummy` with `skip_tokenizer_init`.

    Args:
        arch_name, out, registry, force: As for `make_checkpoint`.
        size: A size that the architecture knows.

    Raises:
        ConfigError: Unknown arch or size, or `out` holds something else.
        HostError: `out` cannot be written.
    """
    registry = registry if registry is not None else build_registry()
    registered = _find_arch(arch_name, registry)
    config = _published(registered, registry, size)
    if isinstance(config, str):
        try:
            config = _config_of(registered, registry, size, _CONFIG_ONLY_VOCAB)
        except ConfigError as error:
            raise ConfigError(f"{error}; {config}") from error
    with _writing(out, force) as staging:
        write_json(staging / _CONFIG_FILE, {**config, RANDOM_WEIGHTS_KEY: True})


def _published(
    registered: Registered[ArchEntry], registry: PluginRegistry, size: str
) -> Mapping[str, Any] | str:
    """The config of a release, or why there is none."""
    try:
        return _asked(registered, registry, "published_config", size)
    except ValueError as error:
        return str(error)


def add_parser(subparsers: Any) -> None:
    """Add `make-checkpoint` to the command line."""
    parser = subparsers.add_parser(
        "make-checkpoint", help="write a small checkpoint with random weights", description=__doc__
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="directory to write")
    parser.add_argument("--arch", required=True, help="architecture, as `vtcore plugins list` names it")
    parser.add_argument(
        "--size",
        required=True,
        help="a size the architecture offers (tiny, small, bench); with --config-only also a release's",
    )
    parser.add_argument(
        "--config-only", action="store_true", help="write config.json alone, for dummy weights"
    )
    parser.add_argument("--seed", type=int, default=0, help="0 <= seed < 2**63 (default 0)")
    parser.add_argument(
        "--force", action="store_true", help="overwrite an earlier checkpoint of this command"
    )
    add_plugin_flags(parser)


def needs_stdout(args: argparse.Namespace) -> bool:
    """What it makes is a directory."""
    return False


def run(args: argparse.Namespace) -> int:
    """Run the parsed command; returns the exit code."""
    try:
        _write(args)
    except KeyboardInterrupt as interrupt:
        return say_interrupted(interrupt, "nothing was written")
    return 0


def _write(args: argparse.Namespace) -> None:
    given = given_from_args(args)
    registry = registry_for(given.options, given.environment)
    if args.config_only:
        make_config(args.arch, args.size, args.out, registry, args.force)
        print(f"{args.out}: {args.arch} {args.size}, config.json alone")
        return
    count = make_checkpoint(args.arch, args.size, args.out, args.seed, registry, args.force)
    print(f"{args.out}: {args.arch} {args.size}, {count:,} random parameters, bfloat16, seed {args.seed}")


def _find_arch(name: str, registry: PluginRegistry) -> Registered[ArchEntry]:
    if name not in registry.archs:
        installed = ", ".join(sorted(registry.archs)) or "none"
        raise ConfigError(
            f"--arch: {name!r} is offered by no installed plugin{did_you_mean(name, registry.archs)} "
            f"(installed: {installed})"
        )
    return registry.archs[name]


def _config_of(
    registered: Registered[ArchEntry], registry: PluginRegistry, size: str, vocab_size: int
) -> Mapping[str, Any]:
    try:
        return _asked(registered, registry, "checkpoint_config", size, vocab_size)
    except ValueError as error:
        remedy = ""
        if not isinstance(_published(registered, registry, size), str):
            remedy = f"; of the release {size!r} only the config is written, by --config-only"
        raise ConfigError(f"--size: {error}{remedy}") from error


def _asked(
    registered: Registered[ArchEntry], registry: PluginRegistry, member: str, *args: str | int
) -> Mapping[str, Any]:
    """What the arch's class answers.

    Raises:
        ValueError: It has no such size.
        PluginError: It fails, or answers anything but a mapping.
    """
    arch_class: type[ModelArch] = registry.load(registered)
    fault = f"arch {registered}: {member}({', '.join(map(repr, args))})"
    try:
        config = getattr(arch_class, member)(*args)
    except (ValueError, VtcoreError):
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{fault} failed: {type(error).__name__}: {error}; report it to the plugin's authors"
        ) from error
    if not isinstance(config, Mapping):
        raise PluginError(f"{fault} is {config!r}, not a mapping; report it to the plugin's authors")
    return config


@contextmanager
def _writing(out: Path, force: bool) -> Iterator[Path]:
    """Give a folder to write to, whose files become those of `out` when all are whole."""
    try:
        _check_out(out, force)
        # Last, so that a broken-off directory is never taken for a checkpoint.
        with staged_folder(out, last=_CONFIG_FILE) as staging:
            yield staging
    except OSError as error:
        where = str(error.filename or out)
        # The hidden folder is none of the user's words.
        place = out if STAGING_PREFIX in where else where
        raise HostError(
            f"OUT: {place} cannot be written: {error.strerror or error}; mend that or give another directory"
        ) from error


_OWN_FILE = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|model\.safetensors\.index)\.json"
    rf"|chat_template\.jinja|model-\d+-of-\d+\.safetensors|{re.escape(STAGING_PREFIX)}\w+"
)
"""What this command writes, and so may overwrite."""


def _check_out(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"OUT: {out} is a file; give a directory")
    if out.is_dir() and any(out.iterdir()):
        if not force:
            raise ConfigError(f"OUT: {out} is not empty; give another directory or --force")
        if strange := sorted(path.name for path in out.iterdir() if not _OWN_FILE.fullmatch(path.name)):
            raise ConfigError(
                f"OUT: {out} holds {strange[0]}, which is no part of a checkpoint; give another directory"
            )
        config_path = out / _CONFIG_FILE
        if config_path.is_file() and read_json_object(config_path).get(RANDOM_WEIGHTS_KEY) is not True:
            raise ConfigError(
                f"OUT: {out} holds a real checkpoint, which --force does not overwrite; give another "
                f"directory"
            )


def _with_core_keys(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Add the end-of-document id where releases have it, and the mark of random weights."""
    eos = {"eos_token_id": tokenizer.token_id(END_OF_TEXT)}
    inner = config.get("text_config")
    extended = (
        {**config, "text_config": {**inner, **eos}} if isinstance(inner, Mapping) else {**config, **eos}
    )
    return {**extended, RANDOM_WEIGHTS_KEY: True}


def _write_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    end_of_text, end_of_turn = tokenizer.token_id(END_OF_TEXT), tokenizer.token_id(END_OF_TURN)
    # The library's own `save` raises a plain Exception where the disk is full.
    (out / "tokenizer.json").write_text(tokenizer.backend.to_str(pretty=True), encoding="utf-8")
    write_json(
        out / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    )
    (out / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
    # Source: generation_config.json of the Qwen3.5 releases.
    write_json(
        out / "generation_config.json",
        {
            "bos_token_id": end_of_text,
            "do_sample": True,
            "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    )
