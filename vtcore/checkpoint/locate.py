"""From what MODEL says to a directory: a directory wins, then a checkpoint source by name, then a bare id.

Does not: know a source; the registry says which there are and which of them serves bare ids.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from attrs import evolve

from vtcore.checkpoint.source import check_is_directory, naming_config, open_checkpoint
from vtcore.errors import (
    ConfigError,
    HubUnreachableError,
    ModelNotFoundError,
    OfflineError,
    PluginError,
    VtcoreError,
)
from vtcore.interfaces.checkpoint_source import CheckpointSource, FetchRequest
from vtcore.interfaces.registry_entries import CheckpointSourceEntry
from vtcore.registry import PluginRegistry, Registered
from vtcore.suggest import did_you_mean

_SCHEME_END = "://"
_BARE_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_FILE_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin")


def locate_checkpoint(
    model: str,
    registry: PluginRegistry,
    *,
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
    only_configs: bool = False,
    show_progress: bool = True,
) -> Path:
    """Find or fetch the directory of a model.

    What no installed arch serves is refused before its weights are fetched, where any arch is installed.

    Args:
        model: A directory (`~` is the home), a checkpoint source's name, `NAME://...`, or an id of the source
            that serves bare ids.
        revision: Version of a model that is fetched; None is the source's default.
        download_dir: Where downloads are kept; None is the source's default.
        only_configs: The weights may be missing.
        show_progress: Lines and bars about a download may go to stderr.

    Raises:
        ConfigError: No such source, or a revision of a local directory.
        ModelNotFoundError: MODEL is a path that does not exist, or an id that the source does not know.
        PluginError: The source fails in a way that is no error of vtcore.
        VtcoreError: As the source's `fetch` and `open_checkpoint` raise it.
    """
    if not model:
        raise ConfigError("$.model: the text is empty; give a directory or an id")
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):
        if revision is not None:
            raise ConfigError(
                f"$.revision: {model} is a local directory, which has no revisions; leave the option out"
            )
        return path
    registered, rest = _source_of(model, path, registry)
    request = FetchRequest(
        model=rest,
        revision=revision,
        download_dir=None if download_dir is None else Path(os.path.expanduser(download_dir)),
        only_configs=only_configs,
        show_progress=show_progress,
    )
    try:
        return _fetch(registered, request, registry)
    except (ModelNotFoundError, OfflineError, HubUnreachableError) as error:
        if rest != model:
            raise
        raise type(error)(
            f"{error}; there is no local directory of that name either{_close_sibling(path)}"
        ) from error


def _source_of(
    model: str, path: Path, registry: PluginRegistry
) -> tuple[Registered[CheckpointSourceEntry], str]:
    """The source that is asked, and what it is asked for."""
    name, scheme_end, rest = model.partition(_SCHEME_END)
    if scheme_end:
        if name not in registry.checkpoint_sources and name.lower() in ("http", "https"):
            raise ConfigError(
                f"$.model: {model!r} is a URL, which is not fetched; give the model's id, ORG/NAME"
            )
        return registry.checkpoint_source(name), rest
    if model in registry.checkpoint_sources:
        return registry.checkpoint_sources[model], ""
    is_file = os.path.exists(path)
    if is_file or not _BARE_ID.fullmatch(model) or model.lower().endswith(_FILE_SUFFIXES):
        if is_file or path.suffix.lower() == _FILE_SUFFIXES[0]:
            check_is_directory(path)
        raise ModelNotFoundError(f"{model} does not exist{_missing_part(path)}")
    if registry.bare_id_source is None:
        raise ModelNotFoundError(
            f"{model} is no local directory, and no installed plugin serves ids of models"
            f"{_close_sibling(path)}"
        )
    return registry.checkpoint_sources[registry.bare_id_source], model


def _fetch(
    registered: Registered[CheckpointSourceEntry], request: FetchRequest, registry: PluginRegistry
) -> Path:
    source: CheckpointSource = registry.load(registered)()
    if not request.only_configs and registry.archs:
        _refuse_unserved(_ask(source, registered, evolve(request, only_configs=True)), registry)
    return _ask(source, registered, request)


def _ask(
    source: CheckpointSource, registered: Registered[CheckpointSourceEntry], request: FetchRequest
) -> Path:
    owner = f"checkpoint source {registered}, plugin {registered.plugin!r}"
    try:
        directory = source.fetch(request)
    except (VtcoreError, OSError):
        raise
    except Exception as error:
        raise PluginError(f"{owner}: fetch failed: {type(error).__name__}: {error}") from error
    if not isinstance(directory, Path) or not directory.is_dir():
        raise PluginError(f"{owner}: fetch returned {directory!r}, which is no Path of a directory")
    return directory


def _refuse_unserved(directory: Path, registry: PluginRegistry) -> None:
    """Let the arch read the config, as the loader will."""
    hf_config = open_checkpoint(directory, needs_weights=False).hf_config
    with naming_config(directory):
        registry.build_arch(hf_config)


def _missing_part(path: Path) -> str:
    """Where an absent path leaves what is there, and a guess at what was meant."""
    path = Path(os.path.abspath(path))
    for ancestor in path.parents:
        if os.path.isdir(ancestor):
            name = path.parts[len(ancestor.parts)]
            return f": there is no {name} in {ancestor}{_close_sibling(ancestor / name)}"
    return ""


def _close_sibling(path: Path) -> str:
    """A directory beside `path` whose name is close to its own."""
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    except OSError:
        return ""
    return did_you_mean(path.name, names, list_all=False)
