"""Chat templates: where they are found, what they may use, the sandbox, and the package's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vtcore.errors import CheckpointError, RequestError
from vtcore.tokenization.chat_template import ChatTemplate, find_chat_template
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import train_tokenizer

SMALL = train_tokenizer(300)
USER = {"role": "user", "content": "hi"}


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render([USER], True, variables)


def test_the_file_wins_over_the_config(tmp_path: Path) -> None:
    assert find_chat_template(tmp_path, {}) is None
    assert find_chat_template(tmp_path, {"chat_template": "config"}) == "config"
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    assert find_chat_template(tmp_path, {"chat_template": named}) == "d"
    (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
    assert find_chat_template(tmp_path, {"chat_template": "config"}) == "file é"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="cannot be read as UTF-8"):
        find_chat_template(tmp_path, {})


@pytest.mark.parametrize("value", [3, {}, [], [{"name": "tools", "template": "t"}], [{"name": "default"}]])
def test_a_config_entry_of_unknown_form_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="must be a string, or a list with an entry named 'default'"):
        find_chat_template(tmp_path, {"chat_template": value})


def test_a_template_that_does_not_parse_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match=r"does not parse.*at line 2"):
        ChatTemplate("x\n{% if %}")


def test_templates_have_the_functions_they_expect() -> None:
    assert render("{{ {'b': 'é<', 'a': 1} | tojson }}") == '{"b": "é<", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ strftime_now('%Y') | length }}") == "4"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{{ eos_token }}{{ messages[0].content }}", eos_token="</s>") == "</s>hi"
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_a_refusal_and_a_failure_are_request_errors() -> None:
    with pytest.raises(RequestError, match="refuses the messages: no system here"):
        render("{{ raise_exception('no system here') }}")
    with pytest.raises(RequestError, match="fails on the messages"):
        render("{{ messages[5].role.x }}")
    with pytest.raises(RequestError, match="fails on the messages"):
        render("{{ 1 / 0 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
    ],
)
def test_the_sandbox_keeps_templates_from_the_interpreter_and_from_changing_messages(source: str) -> None:
    messages = [dict(USER)]
    with pytest.raises(RequestError):
        ChatTemplate(source).render(messages, True, {})
    assert messages == [USER]


def test_variables_cannot_replace_messages() -> None:
    template = ChatTemplate("{{ messages | length }}{{ add_generation_prompt }}")
    assert template.render([USER], False, {"messages": []}) == "1False"


def chat(*messages: dict[str, Any], **kwargs: Any) -> str:
    return SMALL.apply_chat_template(messages, **kwargs)


def test_the_packages_template_is_chatml_with_an_open_thought() -> None:
    assert chat({"role": "system", "content": "be brief"}, USER) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert chat(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert chat(USER, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_thoughts_before_the_last_question_are_left_out() -> None:
    answer = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
    text = chat(USER, answer, USER, answer, add_generation_prompt=False)
    assert text.count("hm") == 1
    assert "<|im_start|>assistant\nyes<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes<|im_end|>\n")


@pytest.mark.parametrize(
    ("messages", "kwargs", "message"),
    [
        ([], {}, "there are no messages"),
        ([USER, {"role": "system", "content": "late"}], {}, "a system message must come first"),
        ([{"role": "robot", "content": "x"}], {}, "unknown role: robot"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "content must be text"),
        ([USER], {"tools": [{"name": "f"}]}, "no format for tools"),
    ],
)
def test_the_packages_template_refuses_what_it_cannot_write(
    messages: list[dict[str, Any]], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        SMALL.apply_chat_template(messages, **kwargs)


def test_the_rendered_prompt_encodes_to_special_ids() -> None:
    ids = SMALL.encode(chat(USER), add_special_tokens=False)
    assert ids.count(SMALL.token_id("<|im_start|>") or -1) == 2
    assert ids.count(SMALL.token_id("<think>") or -1) == 1


def test_named_special_tokens_reach_the_template() -> None:
    tokenizer = Tokenizer(SMALL.backend, {"bos_token": "<s>"}, "{{ bos_token }}{{ extra }}")
    assert tokenizer.apply_chat_template([USER], extra=1) == "<s>1"
