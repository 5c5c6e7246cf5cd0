"""Failures of disk and network that cannot be had on demand are turned into sentences too."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, LocalEntryNotFoundError

from vtcore.checkpoint.hub_errors import explain_hub_error
from vtcore.errors import DiskSpaceError, HostError, HubUnreachableError, IncompleteCheckpointError

TRANSPORT = HfHubHTTPError.__bases__[0]


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskSpaceError, "the disk of /cache is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskSpaceError, "the disk of /cache is full"),
        (RuntimeError("io: No space left on device (os error 28)"), DiskSpaceError, "is full"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/cache/x"),
            HostError,
            "/cache/x cannot be written",
        ),
        (OSError(errno.EROFS, "Read-only file system"), HostError, "/cache cannot be written"),
        (
            OSError("Consistency check failed: 1\nmore"),
            IncompleteCheckpointError,
            r"failed: 1\); run this again",
        ),
        (RuntimeError("Data processing error: broken pipe"), HubUnreachableError, "RuntimeError: Data"),
        (TRANSPORT("reset by peer"), HubUnreachableError, "reset by peer"),
        (FileMetadataError("no commit"), HubUnreachableError, "does not answer as a hub does"),
        (
            caused(LocalEntryNotFoundError("not cached"), TRANSPORT("name or service not known")),
            HubUnreachableError,
            "name or service not known",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_failure_has_its_class_and_sentence(
    error: Exception, expected: type[Exception], message: str
) -> None:
    found = explain_hub_error(error, "org/name", None, Path("/cache"))
    assert type(found) is expected
    with pytest.raises(expected, match=message):
        raise found
    assert "org/name" in str(found)


@pytest.mark.parametrize("error", [TypeError("a bug"), KeyError("x"), ValueError("y")])
def test_a_fault_that_is_nobody_elses_is_not_explained_away(error: Exception) -> None:
    assert explain_hub_error(error, "org/name", None, Path("/cache")) is None


def test_a_chain_of_causes_that_bites_its_tail_ends() -> None:
    one, two = TypeError("one"), TypeError("two")
    one.__cause__, two.__cause__ = two, one
    assert explain_hub_error(one, "org/name", None, Path("/cache")) is None
