"""The file of results: one JSON line each, whole or not at all, so that a run can be taken up again.

Does not: run requests or judge their results.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

from vtcore.cli.batch_input import STDIO
from vtcore.errors import HostError, UsageError

START_ANEW = "--overwrite starts anew, another --output keeps both"

_START = b'{"line":'


class BatchOutput:
    """Results so far, and where the next one goes.

    A regular file is locked, and what it holds counts as done; a pipe or stdout only receives. Nothing is
    changed before `begin`.

    Args:
        path: A file, or "-".
        source: The open input, which must be another file.
        overwrite: Forget what the file holds.

    Raises:
        UsageError: It is the input, in use by another run, or holds something else than results.
        HostError: It cannot be written.
    """

    def __init__(self, path: str, source: IO[bytes], overwrite: bool = False) -> None:
        self.path = "stdout" if path == STDIO else os.path.realpath(path)
        self.done: dict[int, str] = {}
        """Line -> digest, of finished requests."""
        self.torn_bytes = 0
        """Bytes at the end that a broken-off run left; `begin` drops them."""
        self._spans: dict[int, tuple[int, int]] = {}
        self._size = 0
        self._has_begun = False
        self._created = path != STDIO and not os.path.exists(path)
        self._descriptor = self._open(path)
        self.is_resumable = stat.S_ISREG(os.fstat(self._descriptor).st_mode) and path != STDIO
        try:
            if self.is_resumable:
                self._lock()
                if os.path.samestat(os.fstat(self._descriptor), os.fstat(source.fileno())):
                    raise UsageError(f"--output: {path} is the input too; give another file")
                if not overwrite:
                    self._read()
        except BaseException:
            self.close()
            raise

    def _open(self, path: str) -> int:
        if path == STDIO:
            sys.stdout.flush()
            return os.dup(sys.stdout.fileno())
        # A pipe cannot be opened for reading and writing everywhere, a file must be.
        is_file = self._created or os.path.isfile(path)
        flags = (os.O_RDWR | os.O_CREAT if is_file else os.O_WRONLY) | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except OSError as error:
            raise HostError(
                f"--output: {path} cannot be written: {error.strerror}; choose another place"
            ) from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"--output: another run is writing {self.path}; wait for it") from error
        except OSError:
            # Some network file systems have no locks; two runs at once are then the user's to avoid.
            return

    def _read(self) -> None:
        for number, offset, line in _lines(self._descriptor):
            if not line.endswith(b"\n") and _is_torn(line):
                self.torn_bytes = len(line)
                return
            record = _record(line)
            if record is None:
                raise UsageError(f"--output: {self.path}:{number} is no result of this command; {START_ANEW}")
            self.done[record[0]] = record[1]
            self._spans[record[0]] = (offset, len(line))
            self._size = offset + len(line)

    def begin(self) -> None:
        """Drop what does not count; from here on the file changes."""
        if self.is_resumable:
            self._has_begun = True
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)

    def append(self, line: int, digest: str, record: Mapping[str, Any]) -> None:
        """Write one result and hand it to the operating system at once.

        Args:
            record: In JSON's types; `line` and `digest` are put into it.

        Raises:
            HostError: The disk is full, or the file cannot be written for another reason.
            BrokenPipeError: The reader went away.
        """
        whole = {"line": line, **record, "digest": digest}
        data = json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            kept = (
                "; what is finished is kept, the same command goes on from there" if self.is_resumable else ""
            )
            raise HostError(
                f"--output: {self.path} cannot be written: {error.strerror}; mend that or choose another "
                f"place{kept}"
            ) from error
        self.done[line] = digest
        self._spans[line] = (self._size, len(data))
        self._size += len(data)

    def sort(self) -> str | None:
        """Bring the results into the order of their lines.

        Returns:
            Why it was left as it is; None when it is in order.
        """
        lines = sorted(self._spans)
        if not self.is_resumable or list(self._spans) == lines:
            return None
        sorted_path = None
        try:
            with tempfile.NamedTemporaryFile(
                dir=os.path.dirname(self.path), prefix=".vtcore-", delete=False
            ) as copy:
                sorted_path = copy.name
                for line in lines:
                    offset, size = self._spans[line]
                    copy.write(os.pread(self._descriptor, size, offset))
                copy.flush()
                os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(self._descriptor).st_mode))
                os.fsync(copy.fileno())
            os.replace(sorted_path, self.path)
            sorted_path = None
        except OSError as error:
            return f"results stand in the order in which they finished: {error.strerror or error}"
        finally:
            if sorted_path is not None:
                with suppress(OSError):
                    os.unlink(sorted_path)
        return None

    def close(self) -> None:
        """Cut a line that was broken off, and close; a file that this run made and left empty goes again."""
        if self.is_resumable:
            with suppress(OSError):
                if self._has_begun:
                    os.ftruncate(self._descriptor, self._size)
                if os.fstat(self._descriptor).st_size == 0 and self._created:
                    os.unlink(self.path)
        os.close(self._descriptor)


def _lines(descriptor: int) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, line with its end if it has one) of a file."""
    offset = 0
    with open(os.dup(descriptor), "rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, offset, line
            offset += len(line)


def _is_torn(line: bytes) -> bool:
    """Whether a last line without an end began as a result, or is the zeros that stand for lost data."""
    return line.startswith(_START[: len(line)]) or not line.strip(b"\0")


def _record(line: bytes) -> tuple[int, str] | None:
    try:
        data = json.loads(line)
        number, digest = data["line"], data["digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (number, digest) if type(number) is int and isinstance(digest, str) else None
