"""Messages become what the template wants, by the rules and nothing else; errors name the place."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from vtcore.errors import RequestError
from vtcore.interfaces.chat import MessageRules
from vtcore.tokenization.messages import normalize_messages, normalize_tools

NONE = MessageRules()
ALL = MessageRules(
    role_aliases={"developer": "system"},
    key_aliases={"reasoning": "reasoning_content"},
    merge_system_messages=True,
    arguments_as_mappings=True,
    join_text_parts=True,
    empty_content=True,
)
USER = {"role": "user", "content": "q"}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def calling(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **more}


def call(arguments: Any, name: Any = "f") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_without_rules_well_formed_messages_stay_as_they_are() -> None:
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [text("b"), text("c")], "name": "ann"},
        {**calling(call('{"x": 1}')), "content": "d", "reasoning": "hm"},
        {"role": "tool", "content": "e", "tool_call_id": "1"},
        {"role": "system", "content": "f"},
    ]
    assert normalize_messages(messages, NONE) == messages


def test_each_rule_does_one_thing() -> None:
    messages = [
        USER,
        {"role": "developer", "content": [text("a"), text("b")]},
        {**calling(call('{"x": 1}')), "reasoning": "hm"},
        {"role": "system", "content": "c"},
    ]

    def with_rule(**rule: Any) -> list[dict[str, Any]]:
        return normalize_messages(messages, evolve(NONE, **rule))

    assert with_rule(role_aliases={"developer": "system"})[1]["role"] == "system"
    assert with_rule(join_text_parts=True)[1]["content"] == "ab"
    assert with_rule(arguments_as_mappings=True)[2]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert with_rule(empty_content=True)[2]["content"] == ""
    assert "content" not in with_rule()[2]
    aliased = with_rule(key_aliases={"reasoning": "thinking"})[2]
    assert (aliased["thinking"], "reasoning" in aliased) == ("hm", False)
    merged = with_rule(merge_system_messages=True)
    assert [m["role"] for m in merged] == ["system", "user", "developer", "assistant"]
    assert with_rule(extra_keys=frozenset({"mood"})) == with_rule()
    with pytest.raises(RequestError, match=r"messages\[0\].mood: no key of a message"):
        normalize_messages([{**USER, "mood": 1}], NONE)
    assert (
        normalize_messages([{**USER, "mood": 1}], evolve(NONE, extra_keys=frozenset({"mood"})))[0]["mood"]
        == 1
    )


def test_several_and_late_system_messages_become_the_first() -> None:
    messages = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": [text("tw"), text("o")]},
        USER,
        {"role": "system", "content": "three"},
    ]
    assert normalize_messages(messages, ALL) == [{"role": "system", "content": "one\n\ntwo\n\nthree"}, USER]
    assert normalize_messages(messages[:1], ALL) == messages[:1]
    assert normalize_messages([USER, messages[3]], ALL) == [messages[3], USER]


def test_what_only_one_of_the_merged_system_messages_has_is_not_lost() -> None:
    first, later = {"role": "system", "content": "a"}, {"role": "system", "content": "b"}
    assert normalize_messages([{**first, "name": "ann"}, USER, later], ALL)[0]["name"] == "ann"
    same = [{**first, "name": "ann"}, USER, {**later, "name": "ann"}]
    assert normalize_messages(same, ALL)[0] == {"role": "system", "content": "a\n\nb", "name": "ann"}
    for opening in (first, {**first, "name": "bob"}):
        with pytest.raises(RequestError, match=r"^messages\[2\]\.name: 'ann' differs from .* leave it out"):
            normalize_messages([opening, USER, {**later, "name": "ann"}], ALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": [-Infinity]}', "-Infinity is no number of JSON"),
        ('{"a": 1e999}', "arguments.a: inf is no JSON"),
        ({"a": float("nan")}, "nan is no JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"b": {"a": 1, "a": 1}}', "the key 'a' is given twice"),
    ],
)
def test_arguments_that_python_would_read_otherwise_than_json_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        normalize_messages([USER, calling(call(arguments))], ALL)


def test_a_number_that_json_has_not_is_refused_in_tools_too() -> None:
    with pytest.raises(RequestError, match=r"^tools\[0\]\.parameters\.a: nan is no JSON"):
        normalize_tools([{"name": "f", "parameters": {"a": float("nan")}}])


def test_an_empty_system_message_adds_no_blank_lines() -> None:
    messages = [{"role": "system", "content": ""}, {"role": "system", "content": "two"}, USER]
    assert normalize_messages(messages, ALL) == [{"role": "system", "content": "two"}, USER]


def test_a_message_with_both_names_of_a_key_keeps_the_templates() -> None:
    message = {"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"}
    assert normalize_messages([message], ALL)[0]["reasoning_content"] == "b"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": [1, null]}', {"a": [1, None]}), ({"a": "b"}, {"a": "b"}), ("", {}), (" ", {}), (None, {}),
     ("{}", {}), ('{"ü": "\\ud83d\\ude42"}', {"ü": "🙂"})],
)  # fmt: skip
def test_arguments_become_mappings(arguments: Any, expected: dict[str, Any]) -> None:
    [message] = normalize_messages([calling(call(arguments))], ALL)
    assert message["tool_calls"] == [call(expected)]


def test_what_other_services_note_in_messages_is_left_out() -> None:
    message: dict[str, Any] = {
        "id": "msg_1", "role": "assistant", "content": "a", "refusal": None, "audio": None, "annotations": [],
        "function_call": None, "tool_calls": None, "provider_specific_fields": {"x": 1}, "name": None,
    }  # fmt: skip
    assert normalize_messages([message], ALL) == [{"role": "assistant", "content": "a"}]
    streamed = calling({**call("{}"), "index": 0}, content=None)
    assert normalize_messages([streamed], ALL) == [{**calling(call({})), "content": ""}]
    flat = calling({"name": "f", "arguments": {}})
    assert normalize_messages([flat], NONE)[0]["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {}}}
    ]


class ClientMessage:
    """As OpenAI's client returns one: an object of pydantic."""

    role = "assistant"

    def model_dump(self) -> dict[str, Any]:
        return {"role": self.role, "content": "a", "refusal": None}


@frozen
class OwnMessage:
    role: str
    content: str


def test_objects_count_as_the_mappings_that_they_stand_for() -> None:
    messages = [ClientMessage(), OwnMessage("user", "b"), MappingProxyType(USER), OrderedDict(USER)]
    assert normalize_messages(tuple(messages), NONE) == [
        {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}, USER, USER
    ]  # fmt: skip


BAD_CALL = "messages[0].tool_calls[0]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages is of type str; give a list like"),
        (USER, "messages is of type dict; give a list like"),
        (None, "messages is of type NoneType; give a list like"),
        ([], "messages is empty; give at least one message"),
        (["hello"], "messages[0]: of type str, not an object"),
        ([USER, 5], "messages[1]: of type int, not an object"),
        ([object()], "messages[0]: type object is no JSON"),
        ([{"content": "x"}], "messages[0].role: missing; give one of system, developer"),
        ([{"role": "usr", "content": "x"}], "messages[0].role: unknown role 'usr'; did you mean 'user'?"),
        ([{"role": "function", "content": "x"}], "messages[0].role: unknown role 'function'"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role: unknown role ['user']"),
        ([{**USER, "contnt": "x"}], "messages[0].contnt: no key of a message; did you mean 'content'?"),
        ([dict([*USER.items(), (3, "x")])], "messages[0]: the key 3 is no text"),
        ([USER, USER, USER, {"role": "user"}], "messages[3].content: missing; give a text"),
        ([{"role": "user", "content": None}], "messages[0].content: missing; give a text"),
        ([{"role": "tool", "tool_call_id": "1"}], "messages[0].content: missing; give a text"),
        ([{"role": "assistant"}], "messages[0].content: missing; give a text, or tool_calls"),
        ([{"role": "assistant", "tool_calls": []}], "messages[0].content: missing; give a text, or"),
        ([{"role": "user", "content": 5}], "messages[0].content: of type int, not a text or a list of parts"),
        ([{"role": "user", "content": {}}], "messages[0].content: of type dict, not a text or"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]: of type int, not a part like"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: missing"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         "messages[0].content[0]: a part of type 'image_url' is not served, this model is given text only"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]: a part of type"),
        ([{**USER, "name": 5}], "messages[0].name: of type int, not a text"),
        ([{**USER, "refusal": "no"}], "messages[0].refusal: not served; send it as content"),
        ([{**USER, "function_call": {"name": "f"}}], "messages[0].function_call: not served; send it"),
        ([{**USER, "audio": {"id": "x"}}], "messages[0].audio: not served"),
        ([{**USER, "tool_calls": [call("{}")]}], "messages[0].tool_calls: only an assistant message"),
        ([{**calling(), "tool_calls": {}}], "messages[0].tool_calls: of type dict, not a list"),
        ([calling("f")], f"{BAD_CALL}: of type str, not an object"),
        ([calling({"type": "custom"})], f"{BAD_CALL}.type: 'custom' is not served; only 'function' is"),
        ([calling({**call("{}"), "nmae": "x"})], f"{BAD_CALL}.nmae: no key of a tool call; did you mean"),
        ([calling(call("{}", None))], f"{BAD_CALL}.function.name: missing, or not a text"),
        ([calling(call("{}", ""))], f"{BAD_CALL}.function.name: missing, or not a text"),
        ([calling(call('{"a": '))], f"{BAD_CALL}.function.arguments: arguments of the call of 'f' are"),
        ([calling(call("[1]"))], f"{BAD_CALL}.function.arguments: arguments of the call of 'f' are no"),
        ([calling(call(5))], f"{BAD_CALL}.function.arguments: arguments of the call of 'f' are no"),
        ([calling(call("[" * 99_999))], f"{BAD_CALL}.function.arguments: arguments of the call of"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content: a lone surrogate at character 0"),
        ([calling(call('{"a": "\\ud800"}'))], f"{BAD_CALL}.function.arguments.a: a lone surrogate"),
        ([{"role": "user", "content": [text("x" * (2**24 + 1))]}], "messages[0].content[0].text: 16,777"),
        ([calling(call({"x": {1, 2}}))], f"{BAD_CALL}.function.arguments.x: type set is no JSON"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named_by_its_path(messages: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalize_messages(messages, ALL)
    assert message in str(caught.value)


def test_what_nests_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    with pytest.raises(RequestError, match="nested more than 64 levels deep"):
        normalize_tools([{"name": "f", "parameters": {"x": deep}}])


def test_tools_come_in_both_forms() -> None:
    inner = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    outer = {"type": "function", "function": inner}
    assert normalize_tools([inner, outer, {"function": inner}]) == [outer] * 3
    assert normalize_tools(None) is None
    assert normalize_tools([]) is None


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"name": "f"}, "tools is of type dict; give a list of JSON objects"),
        (["f"], "tools[0]: of type str, not an object"),
        ([print], "tools[0]: a Python function is not served"),
        ([{}], "tools[0].name: missing, or not a text"),
        ([{"function": {"nme": "f"}}], "tools[0].function.name: missing, or not a text"),
        ([{"type": "web_search", "function": {"name": "f"}}], "tools[0].type: 'web_search' is not served"),
        ([{"name": "f", "parameters": "x"}], "tools[0].parameters: not a JSON schema (an object)"),
    ],
)
def test_malformed_tools_are_named_by_their_path(tools: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalize_tools(tools)
    assert message in str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
contents = texts | st.lists(texts.map(text), max_size=3)
arguments = st.dictionaries(
    texts, st.integers() | texts | st.booleans() | st.lists(texts, max_size=2), max_size=3
)
well_formed = st.lists(
    st.builds(
        lambda r, c: {"role": r, "content": c}, st.sampled_from(["system", "developer", "user"]), contents
    )
    | st.builds(lambda a: calling(call(json.dumps(a)), call(a)), arguments)
    | st.builds(lambda c: {"role": "tool", "content": c, "tool_call_id": "1"}, contents),
    min_size=1,
    max_size=6,
)


@given(well_formed)
def test_normalising_never_changes_what_was_sent_and_does_not_change_its_own_result(
    messages: list[dict[str, Any]],
) -> None:
    before = copy.deepcopy(messages)
    normal = normalize_messages(messages, ALL)
    assert messages == before
    assert normalize_messages(normal, ALL) == normal
    assert [m["role"] for m in normal[1:]].count("system") == 0
    assert all(isinstance(m["content"], str) for m in normal)
    normal[0]["content"] = "changed"
    for message in normal:
        for one in message.get("tool_calls", ()):
            one["function"]["arguments"]["changed"] = True
    assert messages == before
