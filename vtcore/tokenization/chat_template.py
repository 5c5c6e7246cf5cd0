"""Renders a checkpoint's chat template in a sandbox, with the functions templates expect.

Does not: know any model's format; a template is data of the checkpoint and is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vtcore.errors import CheckpointError, RequestError


class _Refusal(Exception):
    """A template called `raise_exception`."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text. Offered as in transformers (source: its chat_template_utils): `raise_exception`,
            `strftime_now`, the filter `tojson` without HTML escapes, `break` and `continue`, blocks trimmed.

    Raises:
        CheckpointError: The template does not parse.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"the chat template does not parse: {error.message} at line {error.lineno}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt's text.

        Raises:
            RequestError: The template refuses the messages or fails on them.
        """
        try:
            return self._template.render(
                **{**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
            )
        except _Refusal as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error
        # A template's expressions may raise any of Python's errors on messages it was not written for.
        except Exception as error:
            raise RequestError(f"the chat template fails on the messages: {error}") from error


def find_chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Template source of a checkpoint: chat_template.jinja, else the tokenizer config's; None without one.

    Raises:
        CheckpointError: The file is not text, or the config's entry has an unknown form.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read as UTF-8 text: {error}") from error
    value = tokenizer_config.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping) and entry.get("name") == "default":
                template = entry.get("template")
                if isinstance(template, str):
                    return template
    raise CheckpointError(
        f"{directory / 'tokenizer_config.json'}: chat_template must be a string, or a list with an entry "
        f"named 'default'"
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
