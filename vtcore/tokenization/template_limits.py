"""Limits of a chat template's run: what one value, one operation and the whole run may cost, and the meter.

Does not: know jinja; template_sandbox.py asks here before it lets an operation run.

A single operation of Python cannot be interrupted, so each is refused before it starts unless its operands,
and the result they imply, are small; loops are interrupted by the clock.
"""

from __future__ import annotations

import re
import string
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

MAX_SOURCE_CHARS = 1 << 20
"""Characters of a template's text; released ones have at most some ten thousand."""
MAX_NODES = 100_000
"""Nodes of its syntax tree: parsing and compiling them takes a few seconds."""
MAX_SIZE = 16 << 20
"""Characters of one text, or of the output; a context of a million tokens is about 4 million characters."""
MAX_ITEMS = 1 << 20
"""Entries of one value, nested ones included; keeps each operation well below a second."""
MAX_TOTAL = 16 * MAX_SIZE
"""Characters, and entries at `ENTRY_SIZE`, that one run makes: bounds its memory, whatever it keeps."""
ENTRY_SIZE = MAX_SIZE // MAX_ITEMS
"""What an entry counts beside a character: a list's place and the object in it take tens of bytes."""
MAX_COUNT = 100_000
"""A width, an indent, a number of columns. Source: jinja2.sandbox.MAX_RANGE, its limit of `range`."""
MAX_INT_BITS = 4096
"""Bits of an integer; prompts count and date, they do not encrypt."""
MAX_STEPS = 20_000_000
"""Loop rounds, attribute look-ups and calls: the limit that does not depend on the machine."""
TIME_LIMIT_S = 5.0
"""Seconds of one run; a real template takes milliseconds."""
STEPS_PER_CLOCK = 64

TEXT_METHODS = frozenset(
    {
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
    }
    | {"isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle"}
    | {"isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace"}
    | {"rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith"}
    | {"strip", "swapcase", "title", "upper", "zfill"}
)
"""Methods of text that a template may call; the result of each is bounded by its arguments or guarded."""
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, TEXT_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index"})),
    ((int, float), frozenset({"is_integer"})),
)


_SPLITTING = {name: re.compile(r"\s+") for name in ("split", "rsplit")} | {
    # Source: Python's documentation of str.splitlines, the boundaries.
    "splitlines": re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
}
"""Methods that make a list of pieces, and what parts them unless a separator is given."""
_DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class TemplateLimitError(Exception):
    """A template goes beyond a limit; the message says which."""


class Meter:
    """What one run has used."""

    def __init__(self) -> None:
        self._deadline_s = time.monotonic() + TIME_LIMIT_S
        self._steps = 0
        self._next_look = STEPS_PER_CLOCK
        self._total = 0

    def step(self, count: int = 1) -> None:
        """Count work; raises TemplateLimitError when there was too much of it, or when time is up."""
        self._steps += count
        if self._steps >= self._next_look:
            self._next_look = self._steps + STEPS_PER_CLOCK
            if self._steps > MAX_STEPS:
                raise TemplateLimitError(f"it runs for more than {MAX_STEPS:,} steps")
            if time.monotonic() > self._deadline_s:
                raise TemplateLimitError(f"it runs for more than {TIME_LIMIT_S:g} s")

    def charge(self, size: int) -> None:
        """Count what an operation makes, before it does."""
        self.step()
        if size > MAX_SIZE:
            raise TemplateLimitError(f"it makes a value of more than {MAX_SIZE:,} characters or entries")
        self._total += size
        if self._total > MAX_TOTAL:
            raise TemplateLimitError(
                f"it makes more than {MAX_TOTAL:,} characters in all, an entry counted as {ENTRY_SIZE}"
            )


_meter: ContextVar[Meter] = ContextVar("vtcore_template_meter")


@contextmanager
def metered() -> Iterator[None]:
    """Everything inside, in this thread or task, counts on one fresh meter."""
    token = _meter.set(Meter())
    try:
        yield
    finally:
        _meter.reset(token)


def step(count: int = 1) -> None:
    """See `Meter.step`."""
    _meter.get().step(count)


def charge(size: int) -> None:
    """See `Meter.charge`."""
    _meter.get().charge(size)


def weigh(value: Any) -> int:
    """Characters and entries that an operation meets when it walks through a value, shared parts each time.

    Raises:
        TemplateLimitError: There are more than one value may have.
    """
    if isinstance(value, str):
        return len(value)
    size, seen = 0, 0
    stack = [value]
    while stack:
        item = stack.pop()
        seen += 1
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, int):
            check_int(item)
        elif isinstance(item, range):
            seen += len(item)
        elif isinstance(item, Mapping):
            check_items(seen + len(stack) + 2 * len(item))
            stack.extend(item.keys())
            stack.extend(item.values())
        elif is_sized(item):
            check_items(seen + len(stack) + len(item))
            stack.extend(item)
        if size + seen > MAX_SIZE:
            raise TemplateLimitError(f"it works on a value of more than {MAX_SIZE:,} characters")
    check_items(seen)
    step(seen // 16)
    return size + seen


def is_sized(value: Any) -> TypeGuard[Collection[Any]]:
    """Whether walking through `value` ends and leaves it as it was."""
    return isinstance(value, (list, tuple, set, frozenset, *_DICT_VIEWS))


def check_items(count: int) -> None:
    """Raises TemplateLimitError when one value has too many entries."""
    if count > MAX_ITEMS:
        raise TemplateLimitError(f"it works on a value of more than {MAX_ITEMS:,} entries")


def check_int(value: int) -> None:
    """Raises TemplateLimitError for an integer too long to compute with."""
    if value.bit_length() > MAX_INT_BITS:
        raise TemplateLimitError(f"it makes an integer of more than {MAX_INT_BITS} bits")


def check_count(value: Any) -> None:
    """Raises TemplateLimitError for an integer too large to be a width or a number of items."""
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise TemplateLimitError(f"it asks for a width or count of more than {MAX_COUNT:,}")


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`.

    Raises:
        TemplateLimitError: The result would be too large.
    """
    step()
    if operator == "%" and isinstance(left, str):
        check_percent(left, right)
        return
    left_bits, right_bits = _bits(left), _bits(right)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left_bits * max(right, 0) > MAX_INT_BITS:
            raise TemplateLimitError(f"it makes an integer of more than {MAX_INT_BITS} bits")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                check_int(times)
                if not isinstance(many, str):
                    check_items(len(many) * max(times, 0))
                charge(size_of(many) * max(times, 0))
        if left_bits + right_bits > MAX_INT_BITS:
            raise TemplateLimitError(f"it makes an integer of more than {MAX_INT_BITS} bits")
    elif operator == "+":
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            check_items(len(left) + len(right))
        charge(size_of(left) + size_of(right))
    if max(left_bits, right_bits) > MAX_INT_BITS:
        raise TemplateLimitError(f"it makes an integer of more than {MAX_INT_BITS} bits")


def check_percent(text: str, values: Any) -> None:
    """Before `text % values`."""
    conversions = re.findall(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?", text)
    widths = [width for pair in conversions for width in pair if width]
    if "*" in widths:
        raise TemplateLimitError("it formats with a width of '*'")
    _check_filled(text, len(conversions), widths, values)


def check_format(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before `text.format(*args, **kwargs)`."""
    specs = [spec or "" for _, field, spec, _ in string.Formatter().parse(text) if field is not None]
    if any("{" in spec for spec in specs):
        raise TemplateLimitError("it formats with a width that is itself a field")
    widths = [width for spec in specs for width in re.findall(r"\d+", spec)]
    _check_filled(text, len(specs), widths, (*args, *kwargs.values()))


def check_method(owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before a method of a built-in type.

    Raises:
        TemplateLimitError: It is not among those that templates may call, or its result would be too large.
    """
    allowed: frozenset[str] = next(
        (names for kind, names in _METHODS if isinstance(owner, kind)), frozenset()
    )
    if name not in allowed:
        raise TemplateLimitError(f"it calls {type(owner).__name__}.{name}, which templates may not")
    values = (*args, *kwargs.values())
    size = sum(map(weigh, values))
    # Keys and entries may be any number; a text's integer arguments are widths and counts.
    if isinstance(owner, str):
        for value in values:
            check_count(value)
        size += len(owner)
        if name == "replace" and len(args) >= 2:
            size = replaced_size(owner, args[0], args[1])
        elif name == "join" and args and (isinstance(args[0], str) or is_sized(args[0])):
            check_items(len(args[0]))
            size += len(owner) * len(args[0])
        elif name in _SPLITTING:
            size += ENTRY_SIZE * _num_pieces(owner, name, args, kwargs)
    elif isinstance(owner, list | tuple):
        size += weigh(owner)
    charge(size)


def _num_pieces(text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many pieces a text is split into, at least; stops where they are too many."""
    separator = args[0] if args else kwargs.get("sep")
    limit = args[1] if len(args) > 1 else kwargs.get("maxsplit", -1)
    if name != "splitlines" and isinstance(limit, int) and limit >= 0:
        return limit + 1
    if name != "splitlines" and isinstance(separator, str):
        count = text.count(separator) if separator else 0
        check_items(count)
        return count + 1
    count = 0
    for count, _ in enumerate(_SPLITTING[name].finditer(text), 1):
        check_items(count)
    return count + 1


def size_of(value: Any) -> int:
    """What `charge` counts for a text or the entries of a collection; 1 for anything else."""
    if isinstance(value, str):
        return len(value)
    return ENTRY_SIZE * len(value) if is_sized(value) else 1


def replaced_size(text: Any, old: Any, new: Any) -> int:
    """Characters of `text.replace(old, new)` at most."""
    if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str)):
        return weigh((text, old, new))
    return len(text) + text.count(old) * len(new)


def _check_filled(text: str, num_fields: int, widths: Sequence[str], values: Any) -> None:
    if any(len(width) > 6 for width in widths):
        raise TemplateLimitError(f"it asks for a width or count of more than {MAX_COUNT:,}")
    numbers = [int(width) for width in widths]
    for number in numbers:
        check_count(number)
    each = (
        values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else [values]
    )
    charge(len(text) + sum(numbers) + num_fields * max((weigh(value) for value in each), default=0))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
