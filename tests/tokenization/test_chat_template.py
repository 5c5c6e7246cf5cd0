"""Chat templates: where they are found, what they may use, the sandbox, and the package's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

from vtcore.errors import ChatTemplateError, CheckpointError, RequestError
from vtcore.tokenization.chat_template import ChatTemplate, find_chat_templates
from vtcore.tokenization.tokenizer import Tokenizer
from vtcore.tokenization.train import train_tokenizer

SMALL = train_tokenizer(300)
USER = {"role": "user", "content": "hi"}


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render([USER], True, variables)


def test_the_file_wins_over_the_config(tmp_path: Path) -> None:
    assert find_chat_templates(tmp_path, {}) == {}
    assert find_chat_templates(tmp_path, {"chat_template": "config"}) == {"default": "config"}
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert find_chat_templates(tmp_path, {"chat_template": named}) == {"default": "d", "tool_use": "t"}
    (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
    assert find_chat_templates(tmp_path, {"chat_template": "config"}) == {"default": "file é"}
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    assert find_chat_templates(tmp_path, {}) == {"default": "file é", "tool_use": "tools"}
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="cannot be read as UTF-8"):
        find_chat_templates(tmp_path, {})


def test_the_template_for_tools_is_taken_when_there_are_tools_and_by_name() -> None:
    tokenizer = Tokenizer(SMALL.backend, {}, {"default": "d", "tool_use": "t", "other": "o"})
    assert tokenizer.apply_chat_template([USER]) == "d"
    assert tokenizer.apply_chat_template([USER], tools=[]) == "d"
    assert tokenizer.apply_chat_template([USER], tools=[{"type": "function"}]) == "t"
    assert tokenizer.chat_template("other").source == "o"
    with pytest.raises(RequestError, match="no chat template named 'x', only default, other, tool_use"):
        tokenizer.chat_template("x")
    with pytest.raises(RequestError, match="no chat template named 'default', only other"):
        Tokenizer(SMALL.backend, {}, {"other": "o"}).chat_template()
    with pytest.raises(RequestError, match="the model has no chat template; give one, or a plain prompt"):
        Tokenizer(SMALL.backend).chat_template()


@pytest.mark.parametrize("value", [3, {}, [], ["default"], [{"name": "default"}]])
def test_a_config_entry_of_unknown_form_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(
        CheckpointError, match="must be a string, or a list of objects with `name` and `template`"
    ):
        find_chat_templates(tmp_path, {"chat_template": value})


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
    with pytest.raises(ChatTemplateError, match=r"^no system here$"):
        render("{{ raise_exception('no system here') }}")
    with pytest.raises(ChatTemplateError, match="fails on the messages"):
        render("{{ messages[5].role.x }}")
    with pytest.raises(ChatTemplateError, match="fails on the messages"):
        render("{{ 1 / 0 }}")
    assert issubclass(ChatTemplateError, RequestError)


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


def test_a_block_marked_for_training_is_a_plain_block() -> None:
    assert render("a{% generation %}{% set x = 1 %}b{{ x }}{% endgeneration %}c{{ x }}") == "ab1c"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ range(3) | map('string') | join('-') }}", "0-1-2"),
        ("{{ [1, 2, 3] | select('odd') | list }}", "[1, 3]"),
        ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}{{ [1.5, 2] | sum }}", "33.5"),
        ("{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}", "[1, 2]"),
        ("{{ [{'a': 'x'}] | join('', attribute='a') }}", "x"),
        ("{{ 'abc'[::-1] }}{{ (1, 2)[1:] }}", "cba(2,)"),
        ("{{ 'a-b' | replace('-', '+') }}{{ 'aaa' | replace('a', 'b', 2) }}", "a+bbba"),
        (
            "{{ '%s=%05.1f' % ('x', 2) }}{{ '%(k)s' | format(k=1) }}{{ '{:>4}|{a}'.format(1, a=2) }}",
            "x=002.01   1|2",
        ),
        ("{{ '{a}'.format_map({'a': 1}) }}{{ 'x' * 3 }}{{ [0] * 2 }}{{ 2 ** 10 }}", "1xxx[0, 0]1024"),
        ("{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent('> ', first=true) }}", "a\n  b> a\n> b"),
        ("{{ '<a>' | e }}{{ '<a>' | safe ~ '<b>' }}", "&lt;a&gt;<a><b>"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner(',') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}", "0,1,2"),
        (
            "{{ dict(a=1).items() | list }}{{ dict([('k', 2)]).get('k') }}{{ {'a': 1}.get(50000000, 'd') }}",
            "[('a', 1)]2d",
        ),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        (
            "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
            "1False22True2",
        ),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for x in [[1], [2]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}", "12"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}"
            "{{ m(1) }}{% call m(3) %}c{% endcall %}",
            "1232c",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "a1B"),
        ("{{ 'a' in ['a'] }}{{ 'b' not in 'abc' }}{{ 1 < 2 < 3 }}{{ 'x' is in ['x'] }}", "TrueFalseTrueTrue"),
        ("{{ none is none }}{{ x is defined }}{{ 'a' is string }}", "TrueFalseTrue"),
        (
            "{{ [3, 1, 2] | sort | first }}{{ 'b a' | title }}{{ [1, 1] | unique | list }}",
            "1B A[1]",
        ),
        (
            "{{ 'a,b'.split(',') }}{{ ' x '.strip() }}{{ '-'.join(['a', 'b']) }}{{ 'ab'.replace('a', 'c') }}",
            "['a', 'b']xa-bcb",
        ),
    ],
)
def test_what_templates_use_gives_what_jinja_gives(source: str, expected: str) -> None:
    assert render(source) == expected
    plain = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    ).from_string(source)
    assert plain.render(messages=[USER]) == expected


@pytest.mark.parametrize("tag", ["include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'"])
def test_a_template_stands_alone(tag: str) -> None:
    with pytest.raises(CheckpointError, match="a chat template stands alone; it has"):
        ChatTemplate("{% " + tag + " %}")


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
    ],
)
def test_the_packages_template_refuses_what_it_cannot_write(
    messages: list[dict[str, Any]], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        SMALL.apply_chat_template(messages, **kwargs)


def test_the_packages_template_writes_tools_calls_and_results() -> None:
    call = {"function": {"name": "f", "arguments": {"text": "a\n<b>", "n": 1, "deep": {"x": True}}}}
    text = chat(
        {"role": "system", "content": "be brief"},
        USER,
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    written = (
        "<tool_call>\n<function=f>\n<parameter=text>\na\n<b>\n</parameter>\n<parameter=n>\n1\n</parameter>\n"
        '<parameter=deep>\n{"x": true}\n</parameter>\n</function>\n</tool_call>'
    )
    assert '\n<tools>\n{"type": "function", "function": {"name": "f"}}\n</tools>\n' in text
    assert text.index("</tools>") < text.index("\n\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    assert text.endswith(
        f"<|im_start|>assistant\n<think>\nhm\n</think>\n\nso\n\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_the_rendered_prompt_encodes_to_special_ids() -> None:
    ids = SMALL.encode(chat(USER), add_special_tokens=False)
    assert ids.count(SMALL.token_id("<|im_start|>") or -1) == 2
    assert ids.count(SMALL.token_id("<think>") or -1) == 1


def test_named_special_tokens_reach_the_template() -> None:
    tokenizer = Tokenizer(SMALL.backend, {"bos_token": "<s>"}, "{{ bos_token }}{{ extra }}")
    assert tokenizer.apply_chat_template([USER], extra=1) == "<s>1"
