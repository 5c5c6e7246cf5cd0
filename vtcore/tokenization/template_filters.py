"""What chat templates are offered beside jinja's own: functions, and filters that replace unbounded ones.

Does not: meter jinja's filters; template_sandbox.py wraps all of them, these too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import markupsafe
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from vtcore.tokenization import template_limits as limits
from vtcore.tokenization.template_limits import TemplateLimitError, charge, weigh

_MAX_JSON_INDENT = 32
_MAX_DATE_FORMAT = 200
# A date's width (`%999999d`) is the one way to make the C library write without end.
_DATE_FORMAT = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*", re.DOTALL)


class Refusal(Exception):
    """A template called `raise_exception`; the message is the template's own."""


class TemplateNamespace(Namespace):
    """`namespace()`, without the contents in its printed form, which could be any size."""

    def __repr__(self) -> str:
        return "<Namespace>"


def to_text(value: Any) -> str:
    """A value as it is written into the output."""
    if type(value) is not str:
        weigh(value)
        value = str(value)
    charge(len(value))
    text: str = value
    return text


def join_metered(pieces: Iterable[str]) -> str:
    """All pieces as one text, refused before it is made if it is too long."""
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limits.MAX_SIZE:
            break
        found.append(piece)
    charge(size)
    return "".join(found)


def _escape(value: Any) -> str:
    return str(markupsafe.escape(str(value)))


def _sum(iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    if not isinstance(start, int | float):
        raise TypeError("sum adds numbers")
    total: Any = start
    for item in iterable:
        number = item if attribute is None else item[attribute]
        if not isinstance(number, int | float):
            raise TypeError("sum adds numbers")
        total += number
    return total


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    charge(limits.replaced_size(text, old, new))
    return text.replace(old, new, -1 if count is None else count)  # type: ignore[no-any-return]


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, items: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    values = list(items)
    if attribute is not None:
        values = [jinja2.filters.make_attrgetter(environment, attribute)(value) for value in values]
    texts = [to_text(value) for value in values]
    charge(sum(map(len, texts)) + len(str(d)) * len(texts))
    return str(d).join(texts)


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format takes values by place or by name, not both")
    limits.check_percent(str(text), kwargs or args)
    return str(text) % (kwargs or args)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    step_size = len(width) if isinstance(width, str) else max(width, 0)
    charge(len(text) + (len(text.splitlines()) + 1) * step_size)
    return jinja2.filters.do_indent(text, width, first, blank)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> NoReturn:
    raise Refusal(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_DATE_FORMAT or not _DATE_FORMAT.fullmatch(form):
        raise TemplateLimitError("it asks for the date in a form that is too long or has widths")
    return datetime.now().strftime(form)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` of chat templates: without escapes for HTML.

    Source: transformers, utils/chat_template_utils.py.
    """
    widths = [indent if isinstance(indent, int) else len(indent or ""), *map(len, separators or ())]
    if max(widths) > _MAX_JSON_INDENT:
        raise TemplateLimitError(f"it writes JSON with an indent of more than {_MAX_JSON_INDENT}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


FILTERS: Mapping[str, Callable[..., Any]] = {
    "e": _escape,
    "escape": _escape,
    "forceescape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "safe": str,
    "sum": _sum,
    "tojson": to_json,
}
"""Filters that replace jinja's. Nothing is marked safe or escaped by itself: prompts are no HTML."""

GLOBALS: Mapping[str, Any] = {
    "dict": _make_dict,
    "namespace": TemplateNamespace,
    "raise_exception": _raise_exception,
    "range": safe_range,
    "strftime_now": _strftime_now,
}
"""Functions of chat templates. Source: transformers, utils/chat_template_utils.py."""
