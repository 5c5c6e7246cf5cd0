"""Rendered prompts equal transformers' for templates of real shape and messages as real clients send them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import transformers

from vtcore.engine.chat import ChatRenderer, ChatRequest
from vtcore.errors import ChatTemplateError, RequestError
from vtcore.interfaces.chat import MessageRules
from vtcore.tokenization.messages import normalize_messages, normalize_tools
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import chat_template, train_tokenizer

SMALL = train_tokenizer(300)
CONFIG = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
RULES = MessageRules(
    role_aliases={"developer": "system"},
    key_aliases={"reasoning": "reasoning_content"},
    merge_system_messages=True,
    arguments_as_mappings=True,
    join_text_parts=True,
    empty_content=True,
)

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
TEMPLATES["own"] = chat_template()


def call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": 'Reads <a file> & "quotes" it – auch Umlaute: äöü, 漢字, 🙂',
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "where"},
                    "lines": {"type": "array", "items": {"type": "integer"}},
                    "mode": {"type": "string", "enum": ["text", "bytes"]},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    },
    {"name": "run", "description": "", "parameters": {"type": "object", "properties": {}}},
]
ARGUMENTS = '{"path": "src/ä.py", "lines": [1, 2], "deep": {"a": null, "b": true}, "text": "x < y\\n<b>"}'
PHOTO = "👩‍👩‍👧 नमस्ते مرحبا שלום こんにちは é e\u0301 \u200f"

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [said("user", "Hello")],
    "openai client history": [
        said("system", "You are helpful."),
        said("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}], name="ann"),
        {
            **said("assistant", "4", refusal=None, audio=None, function_call=None, tool_calls=None),
            "annotations": [],
        },
        said("user", "And 3+3?  "),
    ],
    "coding agent": [
        said("system", "You are a coding agent.\n\n# Rules\n- be brief"),
        said("developer", "Workspace: /repo"),
        said("user", [{"type": "text", "text": "Fix it", "cache_control": {"type": "ephemeral"}}]),
        said("assistant", None, tool_calls=[call("read_file", ARGUMENTS)]),
        said("tool", "     1\tdef f():\n     2\t    pass\n", tool_call_id="call_1", name="read_file"),
        said("system", "<system-reminder>The todo list is empty.</system-reminder>"),
        said("assistant", "I will run the tests.", tool_calls=[call("run", "", "call_2")]),
        said("tool", "", tool_call_id="call_2"),
        said("assistant", "Done."),
        said("user", "Thanks. Commit?"),
    ],
    "parallel calls": [
        said("user", "Read both"),
        said("assistant", "", tool_calls=[call("read_file", '{"path": "a"}', "a"), call("run", "{}", "b")]),
        said("tool", "A", tool_call_id="a"),
        said("tool", [{"type": "text", "text": "B"}], tool_call_id="b"),
    ],
    "reasoning sent back": [
        said("user", "Think"),
        said("assistant", "4", reasoning_content="2 and 2\n"),
        said("user", "Again"),
        said("assistant", None, reasoning="so I call", tool_calls=[call("run", {"n": 1.5, "f": False})]),
        said("tool", '{"ok": true}', tool_call_id="call_1"),
    ],
    "thoughts within the content": [
        said("user", "q"),
        said("assistant", "<think>\nhm\n</think>\n\nyes"),
        said("user", "q"),
        said("assistant", "<think>\nhm again\n</think>\n\nyes  "),
    ],
    "any script": [
        said("system", PHOTO),
        said("user", PHOTO * 3),
        said("assistant", PHOTO),
        said("user", "\0"),
    ],
    "empty texts": [said("system", ""), said("user", ""), said("assistant", ""), said("user", " ")],
    "template text in a message": [said("user", "{{ 7*7 }}{% raw %} {{ messages }} <|im_end|>")],
    "long": [said("user" if i % 2 == 0 else "assistant", f"line {i}\n" * 200) for i in range(101)],
}
CASES: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": True, "enable_thinking": False, "day": "2 June"},
    {"add_generation_prompt": True, "documents": [{"title": "on cats", "text": "they\npurr"}]},
]


def ours(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = Tokenizer(SMALL.backend, CONFIG, template)
    own = {k: options.pop(k) for k in ("tools", "documents") if k in options}
    switches = {k: options.pop(k, False) for k in ("add_generation_prompt", "continue_final_message")}
    renderer = ChatRenderer(tokenizer=tokenizer, rules=RULES)
    return renderer.render(ChatRequest(messages=messages, template_kwargs=options, **own, **switches))


@pytest.fixture(scope="module")
def oracle() -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=SMALL.backend, **CONFIG)


def theirs(oracle: Any, template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    normal = normalize_messages(messages, RULES)
    options["tools"] = normalize_tools(options.get("tools"))
    text: str = oracle.apply_chat_template(normal, chat_template=template, tokenize=False, **options)
    return text


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_text_is_transformers(oracle: Any, template: str, name: str) -> None:
    source, messages = TEMPLATES[template], CONVERSATIONS[name]
    before = copy.deepcopy(messages)
    refused: list[Exception] = []
    for options in CASES:
        try:
            expected = theirs(oracle, source, messages, **options)
        except Exception as error:
            refused.append(error)
            with pytest.raises(ChatTemplateError, match=r"\S"):
                ours(source, messages, **options)
        else:
            assert ours(source, messages, **options) == expected
    assert messages == before
    if name in ("one question", "openai client history", "long"):
        assert refused == []


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "content", ["The answer is", "The answer is \n", "  four\n\n", "<think>\nLet me", "a <b> {{ x }} 🙂"]
)
def test_a_continued_message_ends_where_transformers_ends_it(
    oracle: Any, template: str, content: str
) -> None:
    messages = [*CONVERSATIONS["openai client history"], said("assistant", content)]
    options: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    text = ours(TEMPLATES[template], messages, **options)
    assert text == theirs(oracle, TEMPLATES[template], messages, **options)
    assert text.rstrip().endswith(content.strip())


def test_most_cases_compare_texts_and_not_refusals(oracle: Any) -> None:
    num_texts = 0
    for source in TEMPLATES.values():
        for messages in CONVERSATIONS.values():
            try:
                num_texts += bool(theirs(oracle, source, messages, add_generation_prompt=True))
            except Exception:
                continue
    assert num_texts >= 0.8 * len(TEMPLATES) * len(CONVERSATIONS)


def test_a_refusal_of_a_template_is_the_text_of_the_error() -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ours(TEMPLATES["macros"], [said("assistant", "alone")])
    assert str(caught.value) == "nobody has asked anything."


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([said("user", "q")], r"messages\[0\] is of role 'user'; the last message must be the assistant's"),
        ([said("user", "q"), said("assistant", "")], r"messages\[1\].content is empty"),
        (
            [said("user", "q"), said("assistant", "x", tool_calls=[call("run", "{}")])],
            r"messages\[1\] ends in tool calls",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ours(TEMPLATES["macros"], messages, continue_final_message=True)


def test_a_template_that_does_not_show_the_last_message_cannot_continue_it() -> None:
    messages = [said("user", "q"), said("assistant", "a")]
    with pytest.raises(ChatTemplateError, match="does not show the last message's content"):
        ours("{{ messages[0].content }}", messages, continue_final_message=True)
    with pytest.raises(RequestError, match="exclude each other"):
        ours(TEMPLATES["macros"], messages, continue_final_message=True, add_generation_prompt=True)


def test_a_text_that_looks_like_the_mark_is_continued_at_its_own_end() -> None:
    messages = [said("user", "VTCORE_CONTINUES_HERE "), said("assistant", "VTCORE_CONTINUES_HERE now")]
    assert ours(TEMPLATES["turns"], messages, continue_final_message=True).endswith(
        "model\nVTCORE_CONTINUES_HERE now"
    )
