"""Renders a checkpoint's chat template, within limits, and says where templates are found.

Does not: know any model's format or change messages; a template is data of the checkpoint and is not trusted.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from vtcore.errors import ChatTemplateError, CheckpointError
from vtcore.tokenization import template_limits as limits
from vtcore.tokenization.template_filters import Refusal
from vtcore.tokenization.template_limits import TemplateLimitError, metered, step
from vtcore.tokenization.template_sandbox import TemplateEnvironment

DEFAULT = "default"
"""Name of the template for ordinary conversations."""
TOOL_USE = "tool_use"
"""Name of the one that is taken when tools are given, if there is such.

Source: transformers, get_chat_template.
"""
_MAX_ERROR_CHARS = 2000
_MARK_LETTERS = string.ascii_uppercase
_CACHED_TEMPLATES = 16


class ChatTemplate:
    """A compiled template; may be rendered by several threads at once.

    Args:
        source: Jinja text. Offered as in transformers (source: its chat_template_utils): `raise_exception`,
            `strftime_now`, the filter `tojson` without HTML escapes, `break` and `continue`, blocks trimmed.
            Not offered: `include`, `import`, `extends`, `autoescape`.

    Raises:
        CheckpointError: The template does not parse, or is beyond the limits of template_limits.py.
    """

    def __init__(self, source: str) -> None:
        if len(source) > limits.MAX_SOURCE_CHARS:
            raise CheckpointError(
                f"the chat template has {len(source):,} characters, at most {limits.MAX_SOURCE_CHARS:,} are "
                f"served"
            )
        self.source = source
        try:
            with metered():
                self._template = TemplateEnvironment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"the chat template does not parse: {error.message} at line {error.lineno}; mend it, or use "
                f"another (--chat-template FILE)"
            ) from error
        # Source that nests deeply makes Python's own compiler give up, in one of several ways.
        except (Exception, RecursionError, MemoryError) as error:
            raise CheckpointError(f"the chat template cannot be compiled: {_reason(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        continue_final_message: bool = False,
    ) -> str:
        """The prompt's text.

        Args:
            messages: Plain data, as the template expects it.
            add_generation_prompt: Whether the text ends where the assistant's answer begins.
            variables: What else the template may name.
            continue_final_message: Whether the text ends right after the last message's content.

        Raises:
            ChatTemplateError: The template refuses the messages (its own sentence is the error's text), fails
                on them, runs beyond a limit, or does not show the message that is to be continued.
        """
        if continue_final_message:
            return self._render_open(messages, variables)
        return self._render(
            {**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
        )

    def _render_open(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Mark the end of the last content, and cut there.

        The mark ends in a space: where the template trims a content, the space is gone, and trailing space of
        the content goes too. Source: transformers, render_jinja_template.
        """
        mark = _mark_for(messages)
        marked = [*messages[:-1], _with_mark(messages[-1], mark)]
        text = self._render({**variables, "messages": marked, "add_generation_prompt": False})
        at = text.rfind(mark)
        if at < 0:
            raise ChatTemplateError(
                "continue_final_message: the chat template does not show the last message's content as it "
                "is, so it cannot be continued"
            )
        return text[:at] if text.startswith(" ", at + len(mark)) else text[:at].rstrip()

    def _render(self, variables: Mapping[str, Any]) -> str:
        try:
            with metered():
                return self._collect(variables)
        except Refusal as error:
            raise ChatTemplateError(str(error)[:_MAX_ERROR_CHARS]) from error
        except TemplateLimitError as error:
            raise ChatTemplateError(
                f"the chat template is stopped: {error}; shorten the messages or use another template"
            ) from error
        # A template's expressions may raise any of Python's errors on messages it was not written for.
        except (Exception, RecursionError, MemoryError) as error:
            raise ChatTemplateError(f"the chat template fails on the messages: {_reason(error)}") from error

    def _collect(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            step()
            size += len(piece)
            if size > limits.MAX_SIZE:
                raise TemplateLimitError(f"it writes more than {limits.MAX_SIZE:,} characters")
            pieces.append(piece)
        return "".join(pieces)


@lru_cache(maxsize=_CACHED_TEMPLATES)
def compiled(source: str) -> ChatTemplate:
    """A template of a request or an option, compiled once.

    Raises:
        CheckpointError: As `ChatTemplate`.
    """
    return ChatTemplate(source)


def read_chat_template(path: Path) -> str:
    """Text of a template's file.

    Raises:
        CheckpointError: It is no readable UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} cannot be read as UTF-8 text: bad byte at offset {error.start}; convert the file"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} cannot be read: {reason}; give the file of a chat template") from error


def find_chat_templates(directory: Path, tokenizer_config: Mapping[str, Any]) -> Mapping[str, str]:
    """Sources of a checkpoint's templates by name; empty without any.

    The file chat_template.jinja is the default one, chat_templates/NAME.jinja another; without these files,
    what tokenizer_config.json has: a text, or a list of {"name", "template"}.
    Source: transformers, PreTrainedTokenizerBase.

    Raises:
        CheckpointError: A file is not text, or the config's entry has an unknown form.
    """
    found = {path.stem: read_chat_template(path) for path in sorted(directory.glob("chat_templates/*.jinja"))}
    path = directory / "chat_template.jinja"
    if path.is_file():
        found[DEFAULT] = read_chat_template(path)
    if found:
        return found
    value = tokenizer_config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping):
            name, template = entry.get("name"), entry.get("template")
            if isinstance(name, str) and isinstance(template, str):
                found[name] = template
    if found:
        return found
    raise CheckpointError(
        f"{directory / 'tokenizer_config.json'}: chat_template must be a string, or a list of objects with "
        f"`name` and `template`"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    return str(error)[:_MAX_ERROR_CHARS] or type(error).__name__


def _mark_for(messages: Sequence[Mapping[str, Any]]) -> str:
    """A word that no message contains."""
    text = repr(messages)
    mark = "VTCORE_CONTINUES_HERE"
    while mark in text:
        mark += _MARK_LETTERS[len(mark) % len(_MARK_LETTERS)]
    return mark


def _with_mark(message: Mapping[str, Any], mark: str) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + mark + " "}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + mark + " "}]}
