"""What the hub's client library raises, as one sentence each: which model, why, and what to do.

Does not: retry, log or decide whether the cache will do.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator

from huggingface_hub import constants, errors
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from vtcore.errors import (
    CheckpointError,
    DiskSpaceError,
    GatedModelError,
    HostError,
    HubUnreachableError,
    IncompleteCheckpointError,
    ModelNotFoundError,
    OfflineError,
    VtcoreError,
)
from vtcore.errors import RevisionNotFoundError as UnknownRevisionError

# The library changed its HTTP client between versions; the root of the client's errors is this one's base.
_TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
# Versions differ in what their downloader for large files raises.
_BROKE_OFF: tuple[type[Exception], ...] = (RuntimeError, getattr(errors, "XetDownloadError", RuntimeError))
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500


def explain_hub_error(
    error: BaseException, model: str, revision: str | None, cache_dir: str | os.PathLike[str]
) -> VtcoreError | None:
    """Find the failure's own class and sentence.

    Args:
        error: As the library raised it; its causes are looked at too.
        model: Id of the model.
        revision: As asked for.
        cache_dir: Where the library keeps files.

    Returns:
        None when the error is none of those that the library, the network or the disk is known to raise.
    """
    chain = tuple(_causes(error))
    for explain in (_refusal, _transport, _disk):
        for link in chain:
            if found := explain(link, model, revision, cache_dir):
                return found
    return None


def pull_command(model: str, revision: str | None) -> str:
    """The command that fetches a model."""
    return f"vtcore pull {model}" + (f" --revision {revision}" if revision else "")


def strange_answer(model: str, how: str) -> HubUnreachableError:
    """What speaks at HF_ENDPOINT is no hub, or a broken one."""
    return HubUnreachableError(
        f"{constants.ENDPOINT} does not answer as a hub does when asked for {model} ({how}); check "
        f"HF_ENDPOINT and the proxy"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _refusal(
    error: BaseException, model: str, revision: str | None, cache_dir: str | os.PathLike[str]
) -> VtcoreError | None:
    """The hub answered, and the answer is no; or nobody was to be asked."""
    page = f"{constants.ENDPOINT}/{model}"
    match error:
        case HFValidationError():
            return ModelNotFoundError(f"{model!r} is no id of a model of the hub, whose form is ORG/NAME")
        case GatedRepoError():
            return GatedModelError(
                f"{model} is gated: accept its terms at {page} with your account, then log in with "
                f"`hf auth login` or set HF_TOKEN, and run this again"
            )
        case RevisionNotFoundError():
            return UnknownRevisionError(
                f"{model} has no branch, tag or commit {revision or 'main'!r}; {page}/tree/main lists them"
            )
        case DisabledRepoError():
            return ModelNotFoundError(f"{model} was disabled by the hub; {page} may say why")
        case RepositoryNotFoundError():
            return ModelNotFoundError(
                f"{constants.ENDPOINT} shows no model {model}: check the spelling and, if it is private, log "
                f"in with `hf auth login` or set HF_TOKEN"
            )
        case OfflineModeIsEnabled():
            return OfflineError(
                f"{model} is not in the cache {cache_dir}, and HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is "
                f"set: unset it, or run `{pull_command(model, revision)}` while the network may be used"
            )
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return CheckpointError(f"{model} lists a file that {constants.ENDPOINT} does not have; try again")
        case HfHubHTTPError():
            return _status(error.response.status_code, model)
    return None


def _status(status: int, model: str) -> VtcoreError:
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return HostError(
            f"{constants.ENDPOINT} refuses the token that was sent for {model} (status {status}); log in "
            f"again with `hf auth login`, or correct or unset HF_TOKEN"
        )
    if status >= _SERVER_ERROR:
        remedy = "it is the hub's own fault, try again later"
    else:
        remedy = "wait a little or log in" if status == _TOO_MANY else "check HF_ENDPOINT"
    return HubUnreachableError(f"{constants.ENDPOINT} answers for {model} with status {status}; {remedy}")


def _transport(
    error: BaseException, model: str, revision: str | None, cache_dir: str | os.PathLike[str]
) -> VtcoreError | None:
    if isinstance(error, (_TRANSPORT, *_BROKE_OFF)) and not _says_disk_full(error):
        return HubUnreachableError(
            f"{constants.ENDPOINT} cannot be reached for {model} ({type(error).__name__}: {error}); check "
            f"the network, the proxy and HF_ENDPOINT, and run this again: finished files are kept"
        )
    # A captive portal or a wrong HF_ENDPOINT answers 200 with a page.
    if isinstance(error, FileMetadataError | json.JSONDecodeError):
        return strange_answer(model, type(error).__name__)
    # The two that the HTTP client finds only when it is about to ask.
    if isinstance(error, UnicodeEncodeError):
        return HostError(
            f"{constants.ENDPOINT} cannot be asked for {model}, because the token has a character "
            f"outside of ASCII; correct or unset HF_TOKEN, or log in again with `hf auth login`"
        )
    if isinstance(error, ValueError) and "proxy" in str(error).lower():
        return HubUnreachableError(
            f"{constants.ENDPOINT} cannot be asked for {model} ({error}); correct or unset the proxy "
            f"variables, HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
        )
    return None


def _disk(
    error: BaseException, model: str, revision: str | None, cache_dir: str | os.PathLike[str]
) -> VtcoreError | None:
    if _says_disk_full(error):
        return DiskSpaceError(
            f"the disk of {cache_dir} is full while {model} is downloaded; free space or give another place "
            f"with --download-dir, and run this again: finished files are kept"
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in _NOT_WRITABLE:
        return HostError(
            f"{error.filename or cache_dir} cannot be written ({error.strerror}); give another place for the "
            f"download of {model} with --download-dir or HF_HOME"
        )
    if error.errno is None:
        return IncompleteCheckpointError(
            f"a file of {model} did not arrive whole ({str(error).splitlines()[0]}); run this again: "
            f"finished files are kept"
        )
    return None


def _says_disk_full(error: BaseException) -> bool:
    """The library's own downloader for large files says so in words only."""
    return "No space left on device" in str(error) or (
        isinstance(error, OSError) and error.errno in _DISK_FULL
    )
