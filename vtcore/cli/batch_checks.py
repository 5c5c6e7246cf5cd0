"""What is wrong with a line of requests, as far as that shows without a model.

Does not: tokenize; the engine judges lengths and ids, once it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vtcore.cli.batch_input import BatchRequest, LineError, parse_request
from vtcore.errors import RequestError
from vtcore.interfaces.chat import MessageRules
from vtcore.request import SamplingParams, parse_prompt
from vtcore.request_checks import Problems
from vtcore.request_handling import Handling, check_handling
from vtcore.tokenization.messages import normalize_messages, normalize_tools
from vtcore.tokenization.plain_data import to_plain


def check_line(line: bytes, given: Mapping[str, Any], has_text: bool) -> None:
    """Judge one line.

    Args:
        given: Sampling parameters of the flags.
        has_text: Whether the engine will have a tokenizer.

    Raises:
        LineError: All that is wrong with it, joined by "; ".
    """
    problems: list[str] = []
    request: BatchRequest | None
    try:
        request = parse_request(line)
    except LineError as error:
        problems.append(str(error))
        request = error.request
    if request is not None:
        for check in (
            lambda: _check_prompt(request.source, has_text),
            lambda: SamplingParams.from_dict({"max_tokens": None, **given, **request.sampling}),
            lambda: check_handling(Handling(**request.handling)),
        ):
            _note(problems, check)
    if problems:
        raise LineError("; ".join(problems))


def _note(problems: list[str], check: Callable[[], object]) -> None:
    try:
        check()
    except RequestError as error:
        problems.append(str(error))


def _check_prompt(source: Mapping[str, Any], has_text: bool) -> None:
    if "messages" in source:
        normalize_messages(source["messages"], _rules_of_any_arch(source["messages"]))
        normalize_tools(source.get("tools"))
        to_plain(source.get("documents"), "documents")
        kwargs = source.get("chat_template_kwargs")
        if not (kwargs is None or isinstance(kwargs, Mapping)):
            raise RequestError(
                f"chat_template_kwargs is of type {type(kwargs).__name__}; give variables by name"
            )
    for form in ("prompt", "prompt_token_ids"):
        if form in source:
            prompt: Any = {form: source[form]}
            _, ids = parse_prompt(prompt)
            if ids is not None:
                _check_ids(ids)
    if not has_text and "prompt_token_ids" not in source and {"prompt", "messages"} & set(source):
        raise RequestError("it is text, and --skip-tokenizer-init makes no ids of it; give prompt_token_ids")


def _check_ids(ids: list[int]) -> None:
    check = Problems()
    check.that(bool(ids), "the prompt is empty; give at least one token")
    check.ids("prompt_token_ids", tuple(ids))
    check.raise_if_any()


def _rules_of_any_arch(messages: Any) -> MessageRules:
    """An arch may know more keys and roles than the usual ones, so here all of them count as known."""
    objects = [item for item in messages if isinstance(item, Mapping)] if isinstance(messages, list) else []
    roles = [item["role"] for item in objects if isinstance(item.get("role"), str)]
    return MessageRules(
        role_aliases={role: role for role in roles},
        extra_keys=frozenset(key for item in objects for key in item),
    )
