"""Result files that are there whole or not at all: written beside their place, then renamed into it.

Does not: make folders, or rename over what is no plain file of its own, such as a pipe or
/dev/stdout; that is written to directly.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress


def check_place(path: str) -> None:
    """Find out before the work whether a file can be written.

    Raises:
        OSError: Its folder is missing or closed to this user, or the path is a folder.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    is_replaceable = _is_replaceable(path)
    folder = os.path.dirname(os.path.realpath(path) if is_replaceable else os.path.abspath(path))
    if not os.path.exists(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    target = folder if is_replaceable else path
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def write_whole(path: str, parts: Iterable[bytes]) -> None:
    """Write a file; what stood there stays until all of `parts` is written.

    Args:
        path: A link is followed; a file keeps its permissions.
        parts: Of the content, in order.

    Raises:
        OSError: The file cannot be written; its `filename` is `path`.
    """
    is_replaceable = _is_replaceable(path)
    # What a link to a pipe leads to has no path of its own.
    place = os.path.realpath(path) if is_replaceable else path
    written = f"{os.path.dirname(place)}/.vtcore-{secrets.token_hex(8)}" if is_replaceable else place
    try:
        try:
            with open(written, "xb" if is_replaceable else "wb") as file:
                file.writelines(parts)
            if is_replaceable:
                if os.path.exists(place):
                    os.chmod(written, stat.S_IMODE(os.stat(place).st_mode))
                os.replace(written, place)
        except BaseException:
            if is_replaceable:
                with suppress(OSError):
                    os.unlink(written)
            raise
    except OSError as error:
        error.filename = path
        raise


def _is_replaceable(path: str) -> bool:
    # /dev/stdout may lead to a plain file, which a process goes on writing to after it was replaced.
    is_device = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    return not is_device and (os.path.isfile(path) or not os.path.exists(path))
