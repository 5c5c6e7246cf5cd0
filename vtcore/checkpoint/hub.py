"""The checkpoint source `hub`: models of the Hugging Face Hub, through its own client library and cache.

Does not: read the environment (the library reads HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and more),
decide what an arch serves, or speak HTTP.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

try:
    from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
except ValueError as cause:
    # It reads numbers and addresses from its variables while it is imported.
    raise ImportError(
        f"huggingface_hub stops at one of its variables, HF_ENDPOINT or another: {cause}"
    ) from cause

import vtcore
from vtcore.checkpoint.hub_errors import explain_hub_error, pull_command, strange_answer
from vtcore.checkpoint.shards import INDEX_FILE, WEIGHT_SUFFIX, find_missing_shards, index_files
from vtcore.checkpoint.sizes import size_text
from vtcore.checkpoint.source import check_listed_files
from vtcore.errors import (
    CheckpointError,
    ConfigError,
    DiskSpaceError,
    HubUnreachableError,
    IncompleteCheckpointError,
    OfflineError,
    RevisionNotFoundError,
    VtcoreError,
)
from vtcore.interfaces.checkpoint_source import CheckpointSource, FetchRequest

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_CONFIG = "config.json"
_SINGLE_FILE = "model.safetensors"
_SMALL_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|hf_quant_config)\.json|chat_template\.jinja"
    rf"|{re.escape(INDEX_FILE)}"
)
"""What vtcore reads beside the weights."""

# The library makes paths of what the hub sends; these lead nowhere else.
_PLAIN_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]+")
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

_log = logging.getLogger(__name__)


@frozen
class _File:
    """One file of a listing.

    Args:
        size: Bytes; 0 where the hub does not say.
        content: Hash under which the cache keeps the content, whatever the commit; None where unknown.
    """

    size: int
    content: str | None


@frozen
class _Listing:
    """A model at one commit.

    Args:
        commit: Its full hash.
        files: Those of the outermost folder, by name.
    """

    commit: str
    files: Mapping[str, _File]


class HubSource(CheckpointSource):
    """Fetches the files that vtcore reads, small ones first, so that whoever has weights has all."""

    def __init__(self) -> None:
        self._listing: _Listing | None = None
        self._problem: VtcoreError | None = None

    def fetch(self, request: FetchRequest) -> Path:
        """See `CheckpointSource.fetch`. A whole copy in the cache will do when the hub cannot be asked.

        Raises:
            ConfigError: No id.
            DiskSpaceError: The files do not fit the cache's disk; said before any weight is fetched.
            VtcoreError: One class per failure, see `hub_errors`.
        """
        if not request.model:
            raise ConfigError("$.model: the hub needs an id: ORG/NAME")
        try:
            return self._fetch(request)
        except VtcoreError:
            raise
        except Exception as error:
            raise _explained(error, request) from error

    def _fetch(self, request: FetchRequest) -> Path:
        listing = self._list_once(request)
        if listing is None:
            assert self._problem is not None
            return _cached_copy(request, self._problem)
        names = listing.files.keys()
        check_listed_files(request.model, names, needs_weights=not request.only_configs)
        # The config first: it tells what a directory that broke off here was going to be.
        small = sorted(filter(_SMALL_FILES.fullmatch, names), key=lambda name: name != _CONFIG)
        _download(request, listing, small)
        if _cached_commit(request) is None:
            _remember_revision(request)
        if not request.only_configs:
            weights = _weight_files(_snapshot(request, listing.commit), names)
            with _progress_bars(request.show_progress):
                _download(request, listing, weights, announce=request.show_progress)
            # Only now, so that an update that breaks off leaves the old copy usable without a network.
            if _cached_commit(request) != listing.commit:
                _remember_revision(request)
        return _snapshot(request, listing.commit)

    def _list_once(self, request: FetchRequest) -> _Listing | None:
        """The files and their sizes; None when the hub cannot be asked, and why in `_problem`."""
        if self._listing is None and self._problem is None:
            try:
                self._listing = _list_files(request)
            except Exception as error:
                problem = _explained(error, request)
                if isinstance(problem, RevisionNotFoundError) or _cached_commit(request) is None:
                    raise problem from error
                self._problem = problem
                if not isinstance(problem, OfflineError):
                    _log.warning("%s is taken from the cache, because %s", request.model, problem)
        return self._listing


def _explained(error: Exception, request: FetchRequest) -> VtcoreError:
    found = explain_hub_error(error, request.model, request.revision, _cache_dir(request))
    if found is None:
        raise error
    return found


def _list_files(request: FetchRequest) -> _Listing:
    api = HfApi(library_name="vtcore", library_version=vtcore.__version__)
    try:
        info = api.model_info(
            request.model,
            revision=request.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        files = {
            file.rfilename: _File(max(0, file.size) if isinstance(file.size, int) else 0, _content_hash(file))
            for file in info.siblings or ()
            if _PLAIN_NAME.fullmatch(file.rfilename)
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise strange_answer(request.model, f"its list of files is malformed: {error!r}") from error
    if not isinstance(info.sha, str) or not _HASH.fullmatch(info.sha):
        raise strange_answer(request.model, f"it gives the commit as {info.sha!r}")
    return _Listing(info.sha, files)


def _weight_files(directory: Path, names: Collection[str]) -> Sequence[str]:
    """Those that the index names; without one the usual single file, or all."""
    if INDEX_FILE in names:
        files = index_files(directory / INDEX_FILE)
        if absent := [file for file in files if file not in names]:
            raise CheckpointError(
                f"{INDEX_FILE} names {len(absent)} weight file(s) that were never published, first "
                f"{absent[0]}; try another revision"
            )
        return files
    if _SINGLE_FILE in names:
        return [_SINGLE_FILE]
    return sorted(name for name in names if name.endswith(WEIGHT_SUFFIX))


def _content_hash(file: RepoSibling) -> str | None:
    found = file.lfs.sha256 if file.lfs is not None else file.blob_id
    return found if found and _HASH.fullmatch(found) else None


def _bytes_to_fetch(request: FetchRequest, listing: _Listing, files: Iterable[str]) -> dict[str, int]:
    """Name -> size of what must be sent: each content once, and none that another commit brought."""
    folder = "--".join(("models", *request.model.split("/")))
    blobs = _cache_dir(request) / folder / "blobs"
    needed: dict[str, int] = {}
    seen: set[str] = set()
    for name in files:
        file = listing.files[name]
        if file.content is not None:
            if file.content in seen or (blobs / file.content).is_file():
                continue
            seen.add(file.content)
        needed[name] = file.size
    return needed


def _download(request: FetchRequest, listing: _Listing, files: Sequence[str], announce: bool = False) -> None:
    """Fetch what is not there, one file after the other, so that Ctrl-C takes effect at once."""
    absent = [file for file in files if _cached_file(request, file, listing.commit) is None]
    to_fetch, cache_dir = _bytes_to_fetch(request, listing, absent), _cache_dir(request)
    needed = sum(to_fetch.values())
    existing = next(path for path in (cache_dir, *cache_dir.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DiskSpaceError(
            f"{request.model} needs {size_text(needed)} more, and the disk of {cache_dir} has "
            f"{size_text(free)} free; free space, or give another place with --download-dir"
        )
    if to_fetch and announce:
        print(
            f"{request.model}: downloading {len(to_fetch)} of {len(files)} weight file(s), "
            f"{size_text(needed)}, to {cache_dir}",
            file=sys.stderr,
        )
    for file in absent:
        _fetch_file(request, file, listing.commit)


def _fetch_file(request: FetchRequest, file: str, revision: str | None) -> None:
    try:
        hf_hub_download(
            request.model,
            file,
            revision=revision,
            cache_dir=_cache_dir(request),
            library_name="vtcore",
            library_version=vtcore.__version__,
        )
    except ValueError as error:
        # The library refuses so what would lead its paths elsewhere, such as a commit with slashes.
        found = explain_hub_error(error, request.model, request.revision, _cache_dir(request))
        raise found or strange_answer(request.model, f"{file}: {error}") from error


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """Switch the library's bars off; its own variable, where set, wins. Without a terminal it draws none."""
    if shown or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _cache_dir(request: FetchRequest) -> Path:
    return Path(request.download_dir or constants.HF_HUB_CACHE).absolute()


def _cached_file(request: FetchRequest, file: str, revision: str | None) -> Path | None:
    found = try_to_load_from_cache(request.model, file, _cache_dir(request), revision)
    return Path(found) if isinstance(found, str) else None


def _cached_commit(request: FetchRequest) -> str | None:
    """The commit that the cache takes the revision for; None without its config."""
    config = _cached_file(request, _CONFIG, request.revision)
    return None if config is None else config.parent.name


def _snapshot(request: FetchRequest, commit: str) -> Path:
    """The directory of a commit whose config is there."""
    config = _cached_file(request, _CONFIG, commit)
    assert config is not None
    return config.parent


def _remember_revision(request: FetchRequest) -> None:
    """Let the library write down which commit the revision's name means; it does when asked by that name."""
    _fetch_file(request, _CONFIG, request.revision)


def _cached_copy(request: FetchRequest, problem: VtcoreError) -> Path:
    """What the cache has, if it is whole.

    Raises:
        IncompleteCheckpointError: Weights are missing, and the hub does not answer.
        VtcoreError: The problem itself, where nothing is cached or the hub's answer was no.
    """
    config = _cached_file(request, _CONFIG, request.revision)
    if config is None:
        raise problem
    directory = config.parent
    missing = find_missing_shards(directory)
    if request.only_configs or (missing is None and any(directory.glob(f"*{WEIGHT_SUFFIX}"))):
        return directory
    if not isinstance(problem, OfflineError | HubUnreachableError):
        raise problem
    command = pull_command(request.model, request.revision)
    remedy = (
        f"unset HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) and run `{command}`"
        if isinstance(problem, OfflineError)
        else f"the hub does not answer now, run `{command}` when it does"
    )
    raise IncompleteCheckpointError(
        f"{request.model} is only half downloaded: {directory} lacks {missing or 'all weights'}; {remedy}"
    )
