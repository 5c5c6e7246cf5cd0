"""`vtcore generate --input --output`: what a file of requests gives, and every way in which it is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.cli.batch_checks import check_line
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.request import child_seed

FLAGS = (
    "--dtype",
    "float64",
    "--num-blocks",
    "24",
    "--max-model-len",
    "96",
    "--max-num-seqs",
    "3",
    "--ignore-eos",
)
OPTIONS: dict[str, Any] = {"dtype": "float64", "num_blocks": 24, "max_model_len": 96, "max_num_seqs": 3}
DEFAULTS: dict[str, Any] = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "ignore_eos": True}

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(*lines: Any) -> Path:
        path = tmp_path / "in.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_bytes("".join(text + "\n" for text in texts).encode("utf-8", "surrogateescape"))
        return path

    return write_lines


def run(checkpoint: Path, source: Path | str, sink: Path | str, *more: str) -> int:
    return main(["generate", str(checkpoint), "--input", str(source), "--output", str(sink), *FLAGS, *more])


def records(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_each_form_of_a_line_gives_what_llm_gives_in_the_order_of_the_lines(
    checkpoint: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"role": "user", "content": "Hé!"}]
    source = write(
        {"prompt": "The quick brown fox", "id": "añ"},
        "",
        {"prompt_token_ids": [7, 8, 9], "id": 4, "sampling_params": {"max_tokens": 2, "logprobs": 0}},
        "   ",
        {"prompt": "x", "sampling_params": {"seed": 5, "n": 2, "max_tokens": 9}},
        {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}},
    )
    sink = tmp_path / "out.jsonl"
    assert run(checkpoint, source, sink, "--max-tokens", "12") == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == f"4 of 4 are done, in {sink}"
    found = records(sink)
    assert [(record["line"], record.get("id")) for record in found] == [
        (1, "añ"),
        (3, 4),
        (5, None),
        (6, None),
    ]
    assert found[0]["prompt"] == "The quick brown fox"
    assert found[1]["prompt_token_ids"] == [7, 8, 9]
    assert found[3]["messages"] == messages
    assert "añ" in sink.read_text(encoding="utf-8")
    with LLM(checkpoint, **OPTIONS) as llm:
        prompts: list[Any] = ["The quick brown fox", {"prompt_token_ids": [7, 8, 9]}, "x"]
        params: list[dict[str, Any]] = [
            {"max_tokens": 12, "seed": child_seed(0, 1)},
            {"max_tokens": 2, "logprobs": 0, "seed": child_seed(0, 3)},
            {"max_tokens": 9, "n": 2, "seed": 5},
        ]
        outputs = llm.generate(prompts, [SamplingParams(**DEFAULTS, **p) for p in params], use_tqdm=False)
        outputs += llm.chat(
            messages,
            SamplingParams(**DEFAULTS, max_tokens=12, seed=child_seed(0, 6)),
            chat_template_kwargs={"enable_thinking": False},
            use_tqdm=False,
        )
    for record, output in zip(found, outputs, strict=True):
        assert record["num_prompt_tokens"] == len(output.prompt_token_ids)
        assert [
            (s["text"], s["token_ids"], s["finish_reason"], s["stop_reason"]) for s in record["outputs"]
        ] == [(s.text, list(s.token_ids), s.finish_reason, s.stop_reason) for s in output.outputs]
    assert [entry[0]["token_id"] for entry in found[1]["outputs"][0]["logprobs"]] == list(
        outputs[1].outputs[0].token_ids
    )


def test_without_max_tokens_the_rest_of_the_context_is_used(
    checkpoint: Path, write: Write, tmp_path: Path
) -> None:
    assert run(checkpoint, write({"prompt_token_ids": [7] * 70}), tmp_path / "out.jsonl") == 0
    [record] = records(tmp_path / "out.jsonl")
    assert len(record["outputs"][0]["token_ids"]) == 26
    assert record["outputs"][0]["finish_reason"] == "length"


def test_the_sampling_seed_is_every_lines_parent(checkpoint: Path, write: Write, tmp_path: Path) -> None:
    source = write({"prompt": "x"}, {"prompt": "x"})
    assert run(checkpoint, source, tmp_path / "out.jsonl", "--max-tokens", "8", "--sampling-seed", "11") == 0
    with LLM(checkpoint, **OPTIONS) as llm:
        seeds = [child_seed(11, line) for line in (1, 2)]
        params = [SamplingParams(**DEFAULTS, max_tokens=8, seed=seed) for seed in seeds]
        outputs = llm.generate(["x", "x"], params, use_tqdm=False)
    shown = [record["outputs"][0]["token_ids"] for record in records(tmp_path / "out.jsonl")]
    assert shown == [list(output.outputs[0].token_ids) for output in outputs]
    assert shown[0] != shown[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "it is not JSON: Expecting property name"),
        ("caf\udce9", "it is not UTF-8 at byte 3"),
        ("[" * 100_000, "it is not usable JSON"),
        ([1], "it is no JSON object"),
        ({"promt": "x"}, "no key 'promt' is known; did you mean 'prompt'"),
        ({"id": "a"}, "it has no prompt; give one of prompt, prompt_token_ids, messages"),
        ({"prompt": "x", "messages": []}, "it has prompt and messages; give one of"),
        ({"prompt": "x", "tools": []}, "tools goes with messages only"),
        ({"prompt": "x", "id": [1]}, "id is [1], not a text or an integer"),
        ({"prompt": "x", "sampling_params": 3}, "sampling_params is no object"),
        ({"prompt": "x", "sampling_params": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"prompt": "x", "sampling_params": {"top_p": 0}}, "top_p=0 is not above 0"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ('{"messages": [], "chat_template_kwargs": {"x": 1e999}}', "a number in it is not finite"),
        ({"messages": "hi", "add_generation_prompt": 1}, "add_generation_prompt is 1, not true or false"),
        ({"prompt": 5}, '"prompt" is of type int'),
        ({"prompt_token_ids": 5}, '"prompt_token_ids" is of type int'),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"prompt_token_ids": [1, "2"]}, "prompt_token_ids[1]='2' is not an integer"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids[0]=-1 is below 0"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: of type int"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools[0]"),
        (
            {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 5},
            "chat_template_kwargs is",
        ),
        (
            {"prompt": 5, "id": [1], "sampling_params": {"top_p": 0, "top_k": -9}, "tools": []},
            'tools goes with messages only; id is [1], not a text or an integer; "prompt" is of type int',
        ),
        ({"prompt": 5, "id": [1], "sampling_params": {"top_p": 0, "top_k": -9}}, "top_k=-9"),
    ],
)
def test_a_line_of_a_wrong_form_is_refused_before_the_model_is_looked_for(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Any, message: str
) -> None:
    source = write({"prompt": "fine"}, line)
    assert run(tmp_path / "absent", source, tmp_path / "out.jsonl") == 2
    [problem, _] = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"error[VT201]: {source}:2: ")
    assert message in problem
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt_token_ids": [1, 99999]}, "prompt_token_ids[1]=99999"),
        ({"prompt_token_ids": [7] * 96}, "the prompt has 96 tokens, but max_model_len=96"),
        ({"prompt": "x", "sampling_params": {"min_tokens": 96}}, "min_tokens=96 is above the"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "nobody"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
    ],
)
def test_a_line_that_the_model_cannot_serve_is_refused_before_the_first_one_runs(
    checkpoint: Path,
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: Any,
    message: str,
) -> None:
    source = write({"prompt": "fine"}, line)
    assert run(checkpoint, source, tmp_path / "out.jsonl") == 2
    [problem, _] = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"error[VT201]: {source}:2: ")
    assert message in problem
    assert not (tmp_path / "out.jsonl").exists()


def test_problems_of_every_kind_come_in_one_round(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write("{", {"promt": "x"}, {"prompt": 5}, {"prompt": "x", "sampling_params": {"top_p": 0}})
    assert run(tmp_path / "absent", source, tmp_path / "out.jsonl") == 2
    problems = capsys.readouterr().err.splitlines()[:-1]
    assert [problem.split(": ")[1] for problem in problems] == [f"{source}:{i}" for i in (1, 2, 3, 4)]


def test_text_without_a_tokenizer_is_refused_before_the_model_is_looked_for(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(
        {"prompt": "x"}, {"prompt_token_ids": [1]}, {"messages": [{"role": "user", "content": "x"}]}
    )
    assert run(tmp_path / "absent", source, tmp_path / "out.jsonl", "--skip-tokenizer-init") == 2
    problems = capsys.readouterr().err.splitlines()[:-1]
    text = "it is text, and --skip-tokenizer-init makes no ids of it; give prompt_token_ids"
    assert problems == [f"error[VT201]: {source}:{i}: {text}" for i in (1, 3)]


def test_what_only_some_models_know_is_left_to_the_model(tmp_path: Path) -> None:
    line = json.dumps({"messages": [{"role": "critic", "content": "x", "mood": "grim"}]}).encode()
    check_line(line, {}, has_text=True)


def test_twenty_wrong_lines_are_named_and_the_rest_counted(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(*[{"promt": i} for i in range(23)])
    assert run(tmp_path / "absent", source, tmp_path / "out.jsonl") == 2
    problems = capsys.readouterr().err.splitlines()[:-1]
    assert [problem.split(": ")[1] for problem in problems[:20]] == [f"{source}:{i}" for i in range(1, 21)]
    assert problems[20:] == [f"error[VT201]: {source}: 3 more lines are wrong"]


def test_a_file_without_requests_is_refused(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "absent", write("", " "), tmp_path / "out.jsonl") == 2
    assert "has no request" in capsys.readouterr().err


def test_files_that_cannot_be_used_are_refused_before_the_model_is_looked_for(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write({"prompt": "x"})
    (tmp_path / "notes").write_text("my notes")
    (tmp_path / "link").symlink_to(source)
    kept = source.read_bytes()
    for given, sink, code, message in (
        (tmp_path / "none", tmp_path / "out", 2, "none cannot be read: No such file"),
        (tmp_path, tmp_path / "out", 2, "cannot be read: Is a directory"),
        (source, tmp_path, 3, "cannot be written: Is a directory"),
        (source, tmp_path / "no" / "out", 3, "cannot be written: No such file or directory"),
        (source, source, 2, "is the input too"),
        (source, tmp_path / "link", 2, "is the input too"),
        (source, tmp_path / "notes", 2, "notes:1 is no result of this command; --overwrite starts anew"),
    ):
        assert run(tmp_path / "absent", given, sink) == code
        assert message in capsys.readouterr().err
    assert main(["generate", "absent", "--input", str(source), "--output", str(source), "--overwrite"]) == 2
    assert source.read_bytes() == kept
    assert (tmp_path / "notes").read_text() == "my notes"


def test_a_bar_is_drawn_at_a_terminal_unless_switched_off(
    checkpoint: Path,
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write({"prompt": "x"}, {"prompt": "y"})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for flags, is_drawn in (((), True), (("--no-progress",), False)):
        sink = tmp_path / f"out{len(flags)}.jsonl"
        assert run(checkpoint, source, sink, "--max-tokens", "2", *flags) == 0
        assert ("2/2" in capsys.readouterr().err) == is_drawn


def test_stdin_and_stdout_serve_as_files(checkpoint: Path, write: Write, tmp_path: Path) -> None:
    source = write({"prompt": "x"}, {"prompt": "é"})
    assert run(checkpoint, source, tmp_path / "out.jsonl", "--max-tokens", "4") == 0
    command = [
        sys.executable,
        "-m",
        "vtcore.cli.main",
        "generate",
        str(checkpoint),
        "--max-tokens",
        "4",
        *FLAGS,
    ]
    done = subprocess.run(
        [*command, "--input", "-", "--output", "-"],
        input=source.read_bytes(),
        capture_output=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert sorted(done.stdout.splitlines()) == sorted((tmp_path / "out.jsonl").read_bytes().splitlines())
    assert b"2 of 2 are done, in stdout" in done.stderr
