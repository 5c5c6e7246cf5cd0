"""A file of requests, one JSON object a line: read one at a time, again by its place, never held whole.

Does not: tokenize, or know what the model can serve.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from attrs import frozen

from vtcore.cli.sampling_flags import surrogate_at
from vtcore.config.shown import shown
from vtcore.errors import UsageError
from vtcore.request_handling import HANDLING_NAMES
from vtcore.suggest import did_you_mean

STDIO = "-"
"""Name of stdin or stdout."""

_FORMS = ("prompt", "prompt_token_ids", "messages")
CHAT_SWITCHES = ("add_generation_prompt", "continue_final_message")
"""Keys that are true or false, as `ChatRequest` has them."""
CHAT_KEYS = ("messages", "tools", "documents")
"""Other keys of a conversation, as `ChatRequest` has them."""
_CHAT_ONLY = (*CHAT_KEYS[1:], "chat_template_kwargs", *CHAT_SWITCHES)
_KEYS = ("id", *_FORMS, *_CHAT_ONLY, "sampling_params", *HANDLING_NAMES)
_BOM = b"\xef\xbb\xbf"


class LineError(Exception):
    """What is wrong with one line, without its place.

    Args:
        text: One sentence or several.
        request: What could be read all the same; None for nothing.
    """

    def __init__(self, text: str, request: BatchRequest | None = None) -> None:
        super().__init__(text)
        self.request = request


class Place(NamedTuple):
    """Where a line stands: its number from 1, and its first byte."""

    number: int
    offset: int


@frozen
class BatchRequest:
    """One line.

    Args:
        source: The line's own form of the prompt and its `id`, echoed in the output.
        sampling: Sampling parameters that win over the flags.
        handling: Fields of `Handling` that win over the flags.
    """

    source: Mapping[str, Any]
    sampling: Mapping[str, Any]
    handling: Mapping[str, Any]


class BatchInput:
    """The lines of a file, or of stdin, which is copied to a temporary file first.

    Args:
        path: A file, or "-".

    Raises:
        UsageError: The file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.name = "stdin" if path == STDIO else path
        try:
            self.file: IO[bytes] = _spooled_stdin() if path == STDIO else open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"--input: {path} cannot be read: {error.strerror or error}") from error
        if not self.file.seekable():
            self.file = _spooled(self.file)

    def lines(self) -> Iterator[tuple[Place, bytes]]:
        """Every line that is not blank, with its place."""
        offset, number = 0, 0
        self.file.seek(0)
        while line := self.file.readline():
            number += 1
            place = Place(number, offset)
            offset += len(line)
            if line.removeprefix(_BOM if number == 1 else b"").strip():
                yield place, line
            # A caller may have read elsewhere meanwhile.
            self.file.seek(offset)

    def line_at(self, place: Place) -> bytes:
        """The line at a place that `lines` gave."""
        self.file.seek(place.offset)
        return self.file.readline()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _spooled_stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise UsageError("--input -: stdin is closed; give a file")
    return _spooled(sys.stdin.buffer)


def _spooled(source: IO[bytes]) -> IO[bytes]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(source, copy)
    return copy


def parse_request(line: bytes) -> BatchRequest:
    """Read one line.

    Raises:
        LineError: It is no request; all that is wrong is said at once.
    """
    data = _parse_object(line)
    forms = [key for key in _FORMS if key in data]
    problems = [f"no key {key!r} is known{did_you_mean(key, _KEYS)}" for key in data if key not in _KEYS]
    # A prompt under a mistyped key is said once.
    if len(forms) > 1 or not (forms or problems):
        found = f"has {' and '.join(forms)}" if forms else "has no prompt"
        problems.append(f"it {found}; give one of {', '.join(_FORMS)}")
    if forms and "messages" not in forms:
        problems += [f"{key} goes with messages only" for key in _CHAT_ONLY if key in data]
    for key in CHAT_SWITCHES:
        if not isinstance(data.get(key, True), bool):
            problems.append(f"{key} is {shown(data[key])}, not true or false")
    name = data.get("id")
    if not (name is None or isinstance(name, str) or type(name) is int):
        problems.append(f"id is {shown(name)}, not a text or an integer")
    sampling = data.pop("sampling_params", None)
    if not (sampling is None or isinstance(sampling, dict)):
        problems.append("sampling_params is no object of parameters")
        sampling = None
    handling = {key: data.pop(key) for key in HANDLING_NAMES if key in data}
    given = {key: value for key, value in handling.items() if value is not None}
    return _judged(BatchRequest(data, sampling or {}, given), problems)


def _judged(request: BatchRequest, problems: list[str]) -> BatchRequest:
    if problems:
        raise LineError("; ".join(problems), request)
    return request


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LineError(f"it is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise LineError(f"it is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise LineError("it is not usable JSON: nested too deeply, or a number too long") from error
    if not isinstance(data, dict):
        raise LineError('it is no JSON object; write {"prompt": "text"}')
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise LineError("a number in it is not finite, or it is nested too deeply") from error
    if surrogate_at(text) is not None:
        raise LineError("a text in it has half of a surrogate pair, which is no character")
    return data
