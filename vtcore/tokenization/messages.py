"""Checks messages and tools, and brings them into the form that the model's chat template expects.

Does not: render, or change what the caller sent; results are fresh plain data. What is done beyond checking
is said by the arch's `MessageRules`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vtcore.config.shown import shown
from vtcore.errors import RequestError
from vtcore.interfaces.chat import ROLES, MessageRules
from vtcore.suggest import did_you_mean
from vtcore.tokenization.plain_data import to_plain

# Source: messages of OpenAI's Chat Completions API, and the names that servers give to reasoning in them.
_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking"}
)
_HINTS = frozenset({"annotations", "cache_control", "id", "provider_specific_fields"})
"""Notes of other services that say nothing to a model; clients send them back with the history."""
_NOT_SERVED = {
    "audio": "audio is not served",
    "refusal": "send it as content",
    "function_call": "send it as tool_calls",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = ("text", "input_text", "output_text")
_CALL_KEYS = frozenset({"id", "type", "function", "index", "name", "arguments"})


def normalize_messages(messages: Any, rules: MessageRules) -> list[dict[str, Any]]:
    """A conversation as the template wants it.

    Args:
        messages: Each a mapping (or an object of OpenAI's client) with `role` and `content`.
        rules: The arch's.

    Raises:
        RequestError: A message is malformed; the text starts with its path, `messages[3].content`.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise RequestError(
            f"messages is of type {type(messages).__name__}; give a list like "
            '[{"role": "user", "content": "Hello"}]'
        )
    found = [_normalize(message, f"messages[{i}]", rules) for i, message in enumerate(messages)]
    if not found:
        raise RequestError("messages is empty; give at least one message")
    return _with_one_system(found) if rules.merge_system_messages else found


def normalize_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools in the form {"type": "function", "function": {...}}; None without any.

    Args:
        tools: In that form, or each the inner object: `name`, `description`, `parameters` (a JSON schema).

    Raises:
        RequestError: One has another form.
    """
    if tools is None:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise RequestError(f"tools is of type {type(tools).__name__}; give a list of JSON objects")
    return [_normalize_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)] or None


def _normalize_tool(tool: Any, path: str) -> dict[str, Any]:
    if callable(tool) and not isinstance(tool, Mapping):
        raise RequestError(f"{path}: a Python function is not served; describe it as a JSON object")
    plain = _object(tool, path)
    if "function" in plain:
        if plain.setdefault("type", "function") != "function":
            raise RequestError(f"{path}.type: {plain['type']!r} is not served; only 'function' is")
        function = _object(plain["function"], f"{path}.function")
        path += ".function"
    else:
        function = plain
        plain = {"type": "function", "function": function}
    _require_name(function, path)
    if "parameters" in function and not isinstance(function["parameters"], dict):
        raise RequestError(f"{path}.parameters: not a JSON schema (an object)")
    return plain


def _normalize(message: Any, path: str, rules: MessageRules) -> dict[str, Any]:
    plain = {key: value for key, value in _object(message, path).items() if value is not None}
    plain["role"] = _role(plain, path, rules)
    known = _KEYS | rules.extra_keys | set(rules.key_aliases)
    for key in list(plain):
        if key in known:
            continue
        if key in _HINTS or (key in _NOT_SERVED and not plain[key]):
            del plain[key]
        elif key in _NOT_SERVED:
            raise RequestError(f"{path}.{key}: not served; {_NOT_SERVED[key]}")
        else:
            raise RequestError(f"{path}.{key}: no key of a message{did_you_mean(key, known)}")
    for sent, wanted in rules.key_aliases.items():
        if sent in plain:
            value = plain.pop(sent)
            plain.setdefault(wanted, value)
    for key in (*_REASONING, "name", "tool_call_id"):
        if key in plain and not isinstance(plain[key], str):
            raise RequestError(f"{path}.{key}: of type {type(plain[key]).__name__}, not a text")
    _normalize_calls(plain, path, rules)
    _normalize_content(plain, path, rules)
    return plain


def _role(plain: Mapping[str, Any], path: str, rules: MessageRules) -> str:
    if "role" not in plain:
        raise RequestError(f"{path}.role: missing; give one of {', '.join(ROLES)}")
    role = plain["role"]
    if not isinstance(role, str) or role not in {*ROLES, *rules.role_aliases}:
        guess = did_you_mean(role, ROLES) if isinstance(role, str) else ""
        raise RequestError(f"{path}.role: unknown role {role!r}{guess}")
    return rules.role_aliases.get(role, role)


def _normalize_content(plain: dict[str, Any], path: str, rules: MessageRules) -> None:
    if "content" not in plain:
        is_silent = plain["role"] == "assistant" and any(
            plain.get(key) for key in ("tool_calls", *_REASONING)
        )
        if not is_silent:
            remedy = "give a text, or tool_calls" if plain["role"] == "assistant" else "give a text"
            raise RequestError(f"{path}.content: missing; {remedy}")
        if rules.empty_content:
            plain["content"] = ""
        return
    content = plain["content"]
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(f"{path}.content: of type {type(content).__name__}, not a text or a list of parts")
    texts = [_part_text(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
    if rules.join_text_parts or (rules.merge_system_messages and plain["role"] == "system"):
        plain["content"] = "".join(texts)
    else:
        plain["content"] = [{"type": "text", "text": text} for text in texts]


def _part_text(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RequestError(
            f'{path}: of type {type(part).__name__}, not a part like {{"type": "text", "text": "..."}}'
        )
    kind = part.get("type", "text")
    if kind not in _TEXT_PARTS:
        raise RequestError(
            f"{path}: a part of type {kind!r} is not served, this model is given text only; send text parts"
        )
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{path}.text: missing, or not a text")
    text: str = part["text"]
    return text


def _normalize_calls(plain: dict[str, Any], path: str, rules: MessageRules) -> None:
    if "tool_calls" not in plain:
        return
    calls = plain["tool_calls"]
    if not isinstance(calls, list):
        raise RequestError(f"{path}.tool_calls: of type {type(calls).__name__}, not a list")
    if calls and plain["role"] != "assistant":
        raise RequestError(f"{path}.tool_calls: only an assistant message calls tools")
    if not calls:
        del plain["tool_calls"]
        return
    plain["tool_calls"] = [_call(c, f"{path}.tool_calls[{i}]", rules) for i, c in enumerate(calls)]


def _call(call: Any, path: str, rules: MessageRules) -> dict[str, Any]:
    plain = _object(call, path)
    for key in plain:
        if key not in _CALL_KEYS:
            raise RequestError(f"{path}.{key}: no key of a tool call{did_you_mean(key, _CALL_KEYS)}")
    if plain.get("type", "function") != "function":
        raise RequestError(f"{path}.type: {plain['type']!r} is not served; only 'function' is")
    if "function" in plain:
        inner, path = plain["function"], f"{path}.function"
    else:
        inner = {key: plain[key] for key in ("name", "arguments") if key in plain}
    function = _object(inner, path)
    _require_name(function, path)
    arguments = function.get("arguments")
    if rules.arguments_as_mappings:
        arguments = _arguments(arguments, f"{path}.arguments", function["name"])
    elif arguments is None:
        arguments = {}
    kept = {key: plain[key] for key in ("id",) if plain.get(key) is not None}
    return {**kept, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _arguments(value: Any, path: str, name: str) -> dict[str, Any]:
    if isinstance(value, str):
        if not value.strip():
            return {}
        try:
            value = json.loads(value, parse_constant=_no_constant, object_pairs_hook=_object_of_pairs)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{path}: arguments of the call of {name!r} are no JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{path}: arguments of the call of {name!r} are no JSON object")
    plain: dict[str, Any] = to_plain(value, path)
    return plain


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one key Python would keep the last; which one was meant, nobody knows."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _with_one_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message for message in messages if message["role"] == "system"]
    if not system or (len(system) == 1 and messages[0] is system[0]):
        return list(messages)
    for index, message in enumerate(messages):
        for key in message.keys() - {"role", "content"} if message["role"] == "system" else ():
            if system[0].get(key) != message[key]:
                raise RequestError(
                    f"messages[{index}].{key}: {shown(message[key])} differs from that of the first system "
                    f"message, and this model is given one system message; leave it out, or give the same"
                )
    merged = {**system[0], "content": "\n\n".join(m["content"] for m in system if m["content"])}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _object(value: Any, path: str) -> dict[str, Any]:
    plain = to_plain(value, path)
    if not isinstance(plain, dict):
        raise RequestError(f"{path}: of type {type(plain).__name__}, not an object")
    return plain


def _require_name(function: Mapping[str, Any], path: str) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{path}.name: missing, or not a text")
