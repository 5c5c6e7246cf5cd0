"""make-checkpoint, the command line, lower precision and chats, with the installed plugin."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from vtcore_mistral.arch import MistralArch

from vtcore import LLM, SamplingParams
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{% if not loop.first %}{{ raise_exception('late') }}{% endif %}
{%- elif message.role == 'user' %}[INST] {{ message.content }}[/INST]
{%- elif message.tool_calls %}{{ message.content | trim }}[TOOL_CALLS] [
{%- for call in message.tool_calls %}{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{% endfor %}]
{%- else %} {{ message.content | trim }}{{ eos_token }}
{%- endif %}
{%- endfor %}"""
"""In the manner of Mistral 7B Instruct v0.3, where a call is one JSON object, arguments and all."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "tiny"
    make_checkpoint("mistral", "tiny", out)
    return out


def test_the_command_line_generates_with_it(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(checkpoint), "--prompt", "The quick brown fox", "--max-tokens", "8"]
    assert main([*words, "--ignore-eos"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_generates_finite_log_probabilities(checkpoint: Path, dtype: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, logprobs=0, ignore_eos=True)
    with LLM(checkpoint, dtype=dtype, max_model_len=256) as llm:
        (output,) = llm.generate("Once upon a time there was a fox. " * 4, params, use_tqdm=False)
    entries = output.outputs[0].logprobs
    assert len(entries) == 40
    assert all(math.isfinite(found.logprob) for entry in entries for found in entry.values())


def test_a_chat_with_tools_renders_as_the_releases_want_it(checkpoint: Path) -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one plus one"}]},
        {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": call}]},
        {"role": "developer", "content": "late"},
    ]
    with LLM(checkpoint, max_model_len=128) as llm:
        params = SamplingParams(max_tokens=1)
        (output,) = llm.chat([messages], params, chat_template=TEMPLATE, use_tqdm=False)
    assert (
        '[INST] one plus one[/INST][TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id":'
        in output.prompt
    )


def test_an_unknown_size_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="offers the sizes tiny, small, not 'huge'"):
        MistralArch.checkpoint_config("huge", 64)
