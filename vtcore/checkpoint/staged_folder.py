"""A folder whose files appear all at once, when the last one is whole, or not at all.

Does not: decide what may be overwritten; whoever writes does.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vtcore.engine.interrupts import interrupts_deferred

STAGING_PREFIX = ".vtcore-partial-"
"""Begins the names of folders that are being written; what is left of one is of a process that was killed."""


@contextmanager
def staged_folder(out: Path, last: str) -> Iterator[Path]:
    """Give an empty folder to write to; at the end its files are those of `out`.

    A new `out` is renamed from a folder beside it. One that exists keeps its place, since it may be a mount
    or somebody's working directory: files are written to a hidden folder in it, and move up at the end.

    Args:
        out: Made if absent, with its parents. Its other files stay, but for leftovers of this function.
        last: Name of the file that makes the folder whole; of an existing `out` it is removed first and
            comes back last.

    Raises:
        OSError: Something cannot be written.
        KeyboardInterrupt: Ctrl-C; its text says whether anything was written.
    """
    parents = [parent for parent in out.parents if not parent.exists()]
    is_new = not out.is_dir()
    staging = (out.parent if is_new else out) / f"{STAGING_PREFIX}{secrets.token_hex(4)}"
    is_written = False
    try:
        staging.mkdir(parents=True)
        yield staging
        with interrupts_deferred():
            if is_new:
                staging.rename(out)
            else:
                _move_files(staging, out, last)
            is_written = True
    except BaseException as error:
        if not is_written:
            with interrupts_deferred():
                _remove(staging, parents)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"{out} is whole" if is_written else "nothing was written") from error
        raise


def _move_files(staging: Path, out: Path, last: str) -> None:
    (out / last).unlink(missing_ok=True)
    for file in sorted(staging.iterdir(), key=lambda file: file.name == last):
        file.replace(out / file.name)
    for folder in out.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _remove(staging: Path, parents: list[Path]) -> None:
    """Remove what was written, and the parents that were made for it."""
    shutil.rmtree(staging, ignore_errors=True)
    for parent in parents:
        with suppress(OSError):
            parent.rmdir()
