"""Traces as files: one JSON object a line; each wrong line is named with key, value and remedy.

Does not: judge a request against a model's limits; `check_trace_fits` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

from attrs import NOTHING, asdict, fields

from vtcore.config.shown import shown
from vtcore.config.text_values import parse_mapping
from vtcore.errors import ConfigError
from vtcore.request_checks import Problems
from vtcore.simulation.trace import TraceRequest, raise_problems
from vtcore.simulation.whole_file import write_whole
from vtcore.suggest import did_you_mean

KEYS: tuple[str, ...] = tuple(one.name for one in fields(TraceRequest) if one.name != "place")
"""Of a line; docs/howto/simulate.md says what each means."""

STDIN = "-"
"""Instead of a path: the trace is read from standard input."""
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 1e9
"""Times beyond some thirty years lose the microseconds that steps take."""
_MAX_PRIORITY = 2**31 - 1
_BOM = b"\xef\xbb\xbf"


def read_trace(path: str) -> tuple[TraceRequest, ...]:
    """Read a trace.

    Args:
        path: A file of lines, or `STDIN`; blank ones are skipped. A request without an `id` gets
            its line's number.

    Raises:
        ConfigError: The file cannot be read or has no request, or lines are wrong: a sentence for each.
    """
    problems: list[str] = []
    requests: dict[str, TraceRequest] = {}
    for place, number, line in _lines(path):
        check = Problems()
        request = _request(line, str(number), place, requests, check)
        if check.sentences or request is None:
            problems.append(f"{place}: {'; '.join(check.sentences)}")
        else:
            requests[request.id] = request
    name = name_of(path)
    raise_problems(problems, f"lines of {name} are wrong")
    if not requests:
        raise ConfigError(
            f'{name} has no request; write lines like {{"arrival_s": 0, "prompt_tokens": 100, '
            f'"output_tokens": 20}}'
        )
    return tuple(requests.values())


def write_trace(requests: Iterable[TraceRequest], path: str) -> None:
    """Write a trace so that `read_trace` gives the same requests.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, (json.dumps(_as_line(request)).encode() + b"\n" for request in requests))


def name_of(path: str) -> str:
    """How messages call a trace."""
    return "stdin" if path == STDIN else path


def _as_line(request: TraceRequest) -> dict[str, Any]:
    """What differs from the defaults, and what every line should show."""
    shows = ("id", "arrival_s", "output_tokens")
    data = asdict(request, recurse=False)
    line = {}
    for one in fields(TraceRequest):
        default = {} if one.name == "policy_args" else one.default
        if one.name in KEYS and (one.name in shows or default is NOTHING or data[one.name] != default):
            line[one.name] = data[one.name]
    return line | ({"policy_args": dict(request.policy_args)} if request.policy_args else {})


def _lines(path: str) -> Iterator[tuple[str, int, bytes]]:
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(_BOM) if number == 1 else line
                if text.strip():
                    yield f"{name_of(path)}:{number}", number, text
    except OSError as error:
        raise ConfigError(f"$.trace: {name_of(path)} cannot be read: {error.strerror or error}") from error


def _opened(path: str) -> AbstractContextManager[BinaryIO]:
    if path != STDIN:
        return open(path, "rb")
    if sys.stdin is None:
        raise ConfigError("$.trace: stdin is closed; pipe a trace into it, or name a file")
    return nullcontext(sys.stdin.buffer)


def _request(
    line: bytes, number: str, place: str, earlier: Mapping[str, TraceRequest], check: Problems
) -> TraceRequest | None:
    """A line's request; None, or sentences in `check`, when it is none."""
    try:
        data = parse_mapping(line.decode("utf-8"))
        json.dumps(data, allow_nan=False)
    except UnicodeDecodeError as error:
        check.that(False, f"it is not UTF-8 at byte {error.start}; write it in UTF-8")
        return None
    except (ValueError, RecursionError) as error:
        check.that(False, f"it is no request: {error}")
        return None
    for key in data:
        check.that(key in KEYS, f"no key {shown(key)} is known{did_you_mean(key, KEYS)}")
    _check_numbers(data, check)
    prefix = _prefix(data.get("prefix", []), check)
    ids = data.get("prompt_token_ids", [])
    ids = tuple(ids) if isinstance(ids, list) else ids
    check.ids("prompt_token_ids", ids)
    for key in ("id", "follows", "tenant", "cache_salt"):
        value = data.get(key, "")
        given_twice = key == "id" and isinstance(value, str) and (value or number) in earlier
        check.that(isinstance(value, str), f"{key}={shown(value)} is not a text; write it in quotes")
        check.that(not given_twice, f"id={shown(value or number)} is in use; give each request its own")
    follows = data.get("follows", "")
    if isinstance(follows, str) and follows and follows not in earlier:
        guess = did_you_mean(follows, earlier, list_all=False)
        check.that(False, f"follows={shown(follows)} is no earlier request{guess or '; put that one before'}")
    check.that("follows" in data or "after_s" not in data, "after_s goes with follows only; leave it out")
    args = data.get("policy_args", {})
    check.that(isinstance(args, dict), f"policy_args={shown(args)} is no JSON object; give one")
    if check.sentences:
        return None
    request = TraceRequest(
        **{
            **data,
            "id": data.get("id") or number,
            "arrival_s": float(data.get("arrival_s", 0)),
            "after_s": float(data.get("after_s", 0)),
            "prefix": prefix,
            "prompt_token_ids": ids,
            "place": place,
        }
    )
    is_empty = not request.num_new_tokens and not request.follows
    check.that(not is_empty, "the prompt is empty; give prompt_tokens, prompt_token_ids or prefix")
    return request


def _check_numbers(data: Mapping[str, Any], check: Problems) -> None:
    check.that("output_tokens" in data, "output_tokens is missing; say how long the answer is")
    is_timed = "arrival_s" in data or "follows" in data
    check.that(is_timed, "arrival_s is missing; say when it comes, or what it follows")
    for key in ("arrival_s", "after_s"):
        check.number(key, data.get(key, 0), low=0, high=MAX_SECONDS)
    check.integer("prompt_tokens", data.get("prompt_tokens", 0), 0, MAX_TOKENS)
    check.integer("output_tokens", data.get("output_tokens", 1), 1, MAX_TOKENS)
    check.integer("priority", data.get("priority", 0), -_MAX_PRIORITY, _MAX_PRIORITY)


def _prefix(value: Any, check: Problems) -> tuple[tuple[str, int], ...]:
    parts: Sequence[Any] = value if isinstance(value, list) else [value]
    for index, part in enumerate(parts):
        is_pair = isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)
        remedy = 'give [["group", tokens], ...]'
        if check.that(is_pair, f"prefix[{index}]={shown(part)} is no group and its tokens; {remedy}"):
            check.integer(f"prefix[{index}][1]", part[1], 1, MAX_TOKENS)
    return () if check.sentences else tuple((group, tokens) for group, tokens in parts)
