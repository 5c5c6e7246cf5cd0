"""`vtcore generate`: what it prints for a real checkpoint; bad flags end in one sentence and code 2."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vtcore import LLM, SamplingParams
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.engine.engine import Engine
from vtcore.outputs import RequestOutput

PROMPT = "The quick brown fox"
FLAGS = ("--dtype", "float64", "--num-blocks", "16", "--max-model-len", "64")
SUMMARY = (
    rf"\[cpu, float64, torch {re.escape(torch.__version__)}, \d+\.\d tokens/s, "
    r"random weights: gibberish on purpose\]"
)


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


def expected(directory: Path, prompt: str = PROMPT, **params: Any) -> RequestOutput:
    with LLM(str(directory), dtype="float64", num_blocks=16, max_model_len=64) as llm:
        [output] = llm.generate(prompt, SamplingParams.from_dict(params), use_tqdm=False)
        return output


def check_refused(shown: Any, message: str) -> None:
    """One sentence, then where to read on; nothing on stdout, no traceback."""
    problem, more = shown.err.splitlines()
    assert problem.startswith("error[VT2")
    assert message in problem
    assert more == f"more: vtcore explain {problem[6:11]}"
    assert shown.out == ""


def test_stdout_is_the_text_and_stderr_ends_in_a_line_about_the_run(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(tiny_checkpoint), "--prompt", PROMPT, "--temperature", "0", "--max-tokens", "24"]
    assert main([*argv, *FLAGS]) == 0
    shown = capsys.readouterr()
    assert shown.out == expected(tiny_checkpoint, temperature=0.0, max_tokens=24).outputs[0].text + "\n"
    assert re.fullmatch(SUMMARY, shown.err.splitlines()[-1])


@pytest.mark.parametrize(("at_terminal", "said"), [(True, "\ninterrupted\n"), (False, "interrupted\n")])
def test_ctrl_c_amid_the_text_is_said_on_a_line_of_its_own(
    tiny_checkpoint: Path,
    at_terminal: bool,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, step = [], Engine.step

    def steps_and_is_interrupted(self: Engine) -> list[RequestOutput]:
        steps.append(step(self))
        if len(steps) == 3:
            raise KeyboardInterrupt
        return steps[-1]

    monkeypatch.setattr(Engine, "step", steps_and_is_interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal)
    argv = ["generate", str(tiny_checkpoint), "--prompt", PROMPT, "--temperature", "0", *FLAGS]
    assert main([*argv, "--max-tokens", "24"]) == 130
    shown = capsys.readouterr()
    assert shown.err == said
    assert not shown.out.endswith("\n")


def test_ctrl_c_while_kernels_are_compiled_says_what_is_kept(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt("2 of 7 kernels are compiled and kept in somewhere")

    monkeypatch.setattr("vtcore.llm.load_engine", interrupted)
    assert main(["generate", str(tiny_checkpoint), "--prompt", PROMPT, *FLAGS]) == 130
    assert capsys.readouterr() == ("", "interrupted: 2 of 7 kernels are compiled and kept in somewhere\n")


def test_the_last_line_names_the_dtype_that_was_used(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(tiny_checkpoint), "--prompt", "x", "--max-tokens", "1", "--num-blocks", "4"]
    for flags, dtype in (([], "bfloat16"), (["--dtype", "float32"], "float32")):
        assert main([*argv, *flags]) == 0
        assert f"[cpu, {dtype}, torch " in capsys.readouterr().err.splitlines()[-1]


def test_sampling_flags_reach_the_request(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = {"temperature": 0.7, "top-p": 0.9, "top-k": 40, "min-p": 0.01, "max-tokens": 12}
    flags = [word for name, value in sampling.items() for word in (f"--{name}", str(value))]
    argv = ["generate", str(tiny_checkpoint), "--prompt", PROMPT, *FLAGS, *flags, "--n", "2"]
    assert main([*argv, "--sampling-seed", "11", "--ignore-eos", "--stop", "q#", "--stop", "z#"]) == 0
    shown = capsys.readouterr().out
    params = {name.replace("-", "_"): value for name, value in sampling.items()}
    more = {"n": 2, "seed": 11, "ignore_eos": True, "stop": ["q#", "z#"]}
    first, second = expected(tiny_checkpoint, PROMPT, **params, **more).outputs
    assert shown == f"{first.text}\n--- sample 1\n{second.text}\n"


def test_a_stop_flag_ends_the_text(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "24", "--ignore-eos"]
    whole = expected(tiny_checkpoint, temperature=0.0, max_tokens=24, ignore_eos=True).outputs[0].text
    stop = whole[6:9]
    assert main(["generate", str(tiny_checkpoint), "--prompt", PROMPT, *FLAGS, *greedy, "--stop", stop]) == 0
    assert capsys.readouterr().out == whole[: whole.find(stop)] + "\n"


def test_a_prompt_comes_from_stdin_or_as_ids(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = expected(tiny_checkpoint, temperature=0.0, max_tokens=8)
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    ids = ", ".join(map(str, output.prompt_token_ids))
    for prompt in (["--prompt", "-"], ["--prompt-token-ids", ids]):
        argv = ["generate", str(tiny_checkpoint), *prompt, "--temperature", "0", "--max-tokens", "8", *FLAGS]
        assert main(argv) == 0
        assert capsys.readouterr().out == output.outputs[0].text + "\n"


def test_without_a_tokenizer_ids_are_printed(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = expected(tiny_checkpoint, temperature=0.0, max_tokens=8)
    ids = ",".join(map(str, output.prompt_token_ids))
    argv = ["generate", str(tiny_checkpoint), "--prompt-token-ids", ids, "--skip-tokenizer-init", *FLAGS]
    assert main([*argv, "--temperature", "0", "--max-tokens", "8"]) == 0
    assert capsys.readouterr().out == ",".join(map(str, output.outputs[0].token_ids)) + "\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "-1"], "--temperature: -1.0 is below 0; give a number >= 0"),
        (["--temperature", "nan"], "--temperature: nan is not finite"),
        (["--temperature", "hot"], "--temperature: 'hot' is not a number"),
        (["--top-p", "0"], "--top-p: 0.0 is not above 0"),
        (
            ["--top-k", str(2**63)],
            f"--top-k: {2**63} is above {2**31 - 1}; give an integer, -1 to {2**31 - 1}",
        ),
        (["--max-tokens", "0"], "--max-tokens: 0 is below 1"),
        (["--max-tokens", "1.5"], "--max-tokens: '1.5' is not an integer"),
        (["--n", "0"], "--n: 0 is below 1"),
        (["--sampling-seed", "-1"], "--sampling-seed: -1 is below 0"),
        (["--stop", ""], "stop[0]=''"),
        (["--prompt-token-ids", "1,2"], "give a prompt as --prompt TEXT or as --prompt-token-ids"),
        (["--dtype", "float8"], "--dtype: 'float8' is not served"),
        (["--device", "tpu"], "--device: 'tpu' is not served"),
        (["--block-size", "0"], "--block-size: 0 is below 1"),
        (["--seed", str(2**63)], f"--seed: {2**63} is above"),
        (["--max-model-len", "40000"], "--max-model-len: 40000 is above max_position_embeddings"),
        (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens: 0 is below 1"),
        (["--priority", "1.5"], "--priority: '1.5' is not an integer"),
        (["--scheduling-policy", "fcf"], "did you mean 'fcfs'"),
        (["--plugin-owner", "nonsense"], "--plugin-owner: 'nonsense'"),
        (["--max-token", "3"], "unknown flag '--max-token'; did you mean '--max-tokens'"),
        (["extra"], "unknown argument 'extra'"),
    ],
)
def test_a_bad_flag_is_one_sentence_and_code_2(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["generate", str(tiny_checkpoint), "--prompt", "x", *flags]) == 2
    check_refused(capsys.readouterr(), message)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "give a prompt"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "caf\udce9"], "--prompt: the text is not UTF-8 at character 3"),
        (["--prompt", "x", "--input", "y"], "one of the three"),
        (["--prompt", "x", "--output", "y"], "--output goes with --input"),
        (["--prompt", "x", "--overwrite"], "--overwrite goes with --input"),
        (["--prompt", "x", "--chat-template", "t"], "--chat-template holds for conversations"),
        (["--prompt", "x", "--default-chat-template-kwargs.a", "1"], "-kwargs holds for conversations"),
        (["--prompt", "x", "--logprobs", "1"], "--logprobs is shown with --json or --input only"),
        (["--input", "y"], "--input needs --output"),
        (["--input", "y", "--output", "z", "--json"], "--json goes with a single prompt"),
        (["--input", "y", "--output", "-", "--overwrite"], "--overwrite goes with a file"),
        (["--prompt-token-ids", "1,x"], "'x' is no token id; give a list of ids like 1,2,3"),
        (["--prompt-token-ids", ""], "'' is no token id"),
        (["--prompt-token-ids", "1,99999"], "prompt_token_ids[1]=99999"),
        (["--prompt", "x", "--skip-tokenizer-init"], "--skip-tokenizer-init makes no ids of it"),
        (["--prompt", "word " * 40, "--max-model-len", "16"], "--max-model-len 16 leaves room for 15"),
    ],
)
def test_a_bad_prompt_is_one_sentence_and_code_2(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], prompt: list[str], message: str
) -> None:
    assert main(["generate", str(tiny_checkpoint), *prompt, "--num-blocks", "8"]) == 2
    check_refused(capsys.readouterr(), message)


def test_a_directory_that_is_absent_or_no_checkpoint_is_one_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for directory, message in ((tmp_path / "absent", "does not exist"), (tmp_path, "has no config.json")):
        assert main(["generate", str(directory), "--prompt", "x"]) == 2
        check_refused(capsys.readouterr(), message)


def test_a_config_whose_dtype_is_no_name_is_one_sentence_and_code_2(
    tmp_path: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in tiny_checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text()
    changed = config.replace('"dtype": "bfloat16"', '"dtype": 5')
    assert changed != config
    (tmp_path / "config.json").write_text(changed)
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "config.json: `dtype` is 5, not the name of a dtype" in capsys.readouterr().err


def test_a_chat_template_of_a_file_of_options_is_not_asked_for_by_this_prompt(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text("default_chat_template_kwargs = {enable_thinking = false}\n")
    argv = ["generate", str(tiny_checkpoint), "--prompt", "x", "--max-tokens", "1", *FLAGS]
    assert main([*argv, "--config", str(tmp_path / "c.toml")]) == 0
