"""`LLM.chat`: what is rendered is what is read, forms of conversations, options of the engine, errors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from vtcore import LLM, SamplingParams
from vtcore.engine.chat import ChatRequest, build_chat_renderer
from vtcore.errors import ChatTemplateError, ConfigError, EngineClosedError, RequestError
from vtcore.tokenization.messages import normalize_messages

USER = {"role": "user", "content": "hi"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
OPTIONS: dict[str, Any] = {"dtype": "float64", "block_size": 16, "num_blocks": 48, "max_model_len": 384}
TOOL = {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
AGENT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "developer", "content": [{"type": "text", "text": "in /repo"}]},
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "é 🙂"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "name": "read", "content": "text"},
    {"role": "system", "content": "a reminder"},
]


@pytest.fixture(scope="module")
def chat_llm(tiny_checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(tiny_checkpoint), **OPTIONS) as llm:
        yield llm


def test_an_agents_messages_become_transformers_text_and_ids(chat_llm: LLM, tiny_checkpoint: Path) -> None:
    before = copy.deepcopy(AGENT)
    [output] = chat_llm.chat(AGENT, GREEDY, tools=[TOOL], use_tqdm=False)
    reference = AutoTokenizer.from_pretrained(tiny_checkpoint)
    messages = normalize_messages(AGENT, chat_llm.engine.loaded.arch.message_rules)
    tools = [{"type": "function", "function": TOOL}]
    how: dict[str, Any] = {"tools": tools, "add_generation_prompt": True}
    assert output.prompt == reference.apply_chat_template(messages, tokenize=False, **how)
    assert "be brief\n\nin /repo\n\na reminder<|im_end|>" in output.prompt
    ids = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **how)
    assert list(output.prompt_token_ids) == list(ids)
    assert before == AGENT


def test_a_chat_is_the_generation_of_its_prompt(chat_llm: LLM) -> None:
    [chat] = chat_llm.chat([USER], GREEDY, use_tqdm=False)
    [plain] = chat_llm.generate({"prompt_token_ids": chat.prompt_token_ids}, GREEDY, use_tqdm=False)
    assert chat.outputs[0].token_ids == plain.outputs[0].token_ids
    assert plain.prompt is None


def test_several_conversations_give_an_output_each_with_parameters_for_all_or_each(chat_llm: LLM) -> None:
    other = [{"role": "user", "content": "other"}]
    params = [GREEDY, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)]
    first, second = chat_llm.chat([[USER], other], params, use_tqdm=False)
    assert (len(first.outputs[0].token_ids), len(second.outputs[0].token_ids)) == (4, 2)
    assert chat_llm.chat(other, GREEDY, use_tqdm=False)[0].prompt == second.prompt
    with pytest.raises(RequestError, match="conversation 1 of 2: messages is empty"):
        chat_llm.chat([[USER], []], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="mixes messages and lists of messages"):
        chat_llm.chat([USER, [USER]], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="2 prompts came with 1 sampling_params"):
        chat_llm.chat([[USER], other], [GREEDY], use_tqdm=False)


def test_without_parameters_the_checkpoints_defaults_hold_and_the_context_is_the_limit(
    tiny_checkpoint: Path,
) -> None:
    greedy = {"temperature": 0.0}
    with LLM(str(tiny_checkpoint), **OPTIONS, override_generation_config=greedy) as llm:
        [chat] = llm.chat([USER], use_tqdm=False)
        whole = SamplingParams(temperature=0.0, top_k=20, top_p=0.95, max_tokens=None)
        [same] = llm.generate({"prompt_token_ids": chat.prompt_token_ids}, whole, use_tqdm=False)
        assert chat.outputs[0].token_ids == same.outputs[0].token_ids
        assert len(same.outputs[0].token_ids) > 16
    limited = {"temperature": 0.0, "max_new_tokens": 3}
    with LLM(str(tiny_checkpoint), **OPTIONS, override_generation_config=limited) as llm:
        assert len(llm.chat([USER], use_tqdm=False)[0].outputs[0].token_ids) == 3


def test_thinking_is_switched_by_the_request_over_the_option(chat_llm: LLM, tiny_checkpoint: Path) -> None:
    closed = "<think>\n\n</think>\n\n"

    def prompt(llm: LLM, **kwargs: Any) -> str:
        [output] = llm.chat([USER], GREEDY, chat_template_kwargs=kwargs or None, use_tqdm=False)
        assert output.prompt is not None
        return output.prompt

    assert not prompt(chat_llm).endswith(closed)
    assert prompt(chat_llm, enable_thinking=False).endswith(closed)
    off = {"enable_thinking": False}
    with LLM(str(tiny_checkpoint), **OPTIONS, default_chat_template_kwargs=off) as llm:
        assert prompt(llm).endswith(closed)
        assert not prompt(llm, enable_thinking=True).endswith(closed)


def test_the_last_message_can_be_continued(chat_llm: LLM) -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    how: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    [output] = chat_llm.chat(messages, GREEDY, **how, use_tqdm=False)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\nThe answer is")
    with pytest.raises(RequestError, match="add_generation_prompt and continue_final_message exclude"):
        chat_llm.chat(messages, GREEDY, continue_final_message=True, use_tqdm=False)
    with pytest.raises(RequestError, match=r"messages\[0\] is of role 'user'"):
        chat_llm.chat([USER], GREEDY, **how, use_tqdm=False)


def test_a_template_comes_from_the_request_the_option_or_the_checkpoint(
    chat_llm: LLM, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("file: {{ messages[0].content }}{{ documents }}", encoding="utf-8")
    with LLM(str(tiny_checkpoint), **OPTIONS, chat_template=str(file)) as llm:
        assert llm.chat([USER], GREEDY, use_tqdm=False)[0].prompt == "file: hiNone"
        [output] = llm.chat([USER], GREEDY, documents=[{"title": "t"}], use_tqdm=False)
        assert output.prompt == "file: hi[{'title': 't'}]"
        given = "{{ eos_token }} {{ messages[0].content }}"
        assert llm.chat([USER], GREEDY, chat_template=given, use_tqdm=False)[0].prompt == "<|im_end|> hi"
        assert "<|im_start|>" in str(
            llm.chat([USER], GREEDY, chat_template="default", use_tqdm=False)[0].prompt
        )
    with pytest.raises(ChatTemplateError, match="does not parse"):
        chat_llm.chat([USER], GREEDY, chat_template="{% if %}", use_tqdm=False)


@pytest.mark.parametrize("content", [None, b"\xff", b"{% if %}"])
def test_an_unusable_template_file_is_refused_at_the_start(
    tiny_checkpoint: Path, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_checkpoint), **OPTIONS, chat_template=str(file))
    [problem] = caught.value.problems
    assert problem.startswith(f"$.chat_template: {file}")
    assert "; " in problem


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"messages": 1}, "$.default_chat_template_kwargs.messages: each request has an argument for this"),
        (
            {"a": 1, "add_generation_prompt": True},
            "$.default_chat_template_kwargs.add_generation_prompt: each",
        ),
        ({"a": "\ud800"}, "$.default_chat_template_kwargs.a: a lone surrogate"),
    ],
)
def test_a_default_variable_that_no_request_could_use_is_refused_at_the_start(
    tiny_checkpoint: Path, kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_checkpoint), **OPTIONS, default_chat_template_kwargs=kwargs)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("hi", {}, "messages is of type str; give a list like"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, r"content\[0\]: a part of type"),
        ([USER], {"tools": [{"type": "function"}]}, r"tools\[0\].name: missing"),
        ([USER], {"chat_template_kwargs": {"messages": []}}, "kwargs.messages: each request has"),
        ([USER], {"chat_template_kwargs": "on"}, "chat_template_kwargs is of type str"),
        ([USER], {"chat_template": 5}, "chat_template is of type int"),
        ([{"role": "user", "content": "word " * 400}], {}, "max_model_len=384 leaves room for 383"),
    ],
)  # fmt: skip
def test_a_malformed_chat_is_a_request_error(
    chat_llm: LLM, messages: Any, options: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        chat_llm.chat(messages, GREEDY, **options, use_tqdm=False)


def test_a_rendered_prompt_can_be_had_without_generating(chat_llm: LLM) -> None:
    renderer = build_chat_renderer(chat_llm.engine)
    prompt = renderer.prompt(ChatRequest(messages=[USER]))
    assert prompt.text == renderer.render(ChatRequest(messages=[USER]))
    tokenizer = chat_llm.get_tokenizer()
    assert tokenizer is not None
    assert tokenizer.decode(prompt.token_ids, skip_special_tokens=False) == prompt.text


def test_without_a_tokenizer_or_after_close_there_is_no_chat(tiny_checkpoint: Path) -> None:
    with (
        LLM(str(tiny_checkpoint), **OPTIONS, skip_tokenizer_init=True) as llm,
        pytest.raises(RequestError, match="no tokenizer, so conversations are not served"),
    ):
        llm.chat([USER], GREEDY, use_tqdm=False)
    with LLM(str(tiny_checkpoint), **OPTIONS) as llm:
        pass
    with pytest.raises(EngineClosedError):
        llm.chat([USER], GREEDY, use_tqdm=False)
