"""Sampling flags: one for each parameter, all wrong ones named at once, over the checkpoint's defaults."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import fields

from vtcore import LLM, SamplingParams
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.cli.sampling_flags import (
    ABOUT,
    add_sampling_flags,
    cli_params,
    flag_of,
    sampling_from_args,
)
from vtcore.engine.sampling_defaults import combine_sampling_defaults
from vtcore.errors import ConfigError

FLAGS = ("--dtype", "float64", "--num-blocks", "8", "--max-model-len", "48")
VALUES: dict[str, tuple[list[str], Any]] = {
    "n": (["2"], 2),
    "temperature": (["0.5"], 0.5),
    "top_p": (["0.9"], 0.9),
    "top_k": (["4"], 4),
    "min_p": (["0.1"], 0.1),
    "repetition_penalty": (["1.5"], 1.5),
    "presence_penalty": (["-1"], -1.0),
    "frequency_penalty": (["0.25"], 0.25),
    "seed": (["3"], 3),
    "max_tokens": (["7"], 7),
    "min_tokens": (["2"], 2),
    "stop": (["a", "b,c"], ("a", "b,c")),
    "stop_token_ids": (["5, 6"], (5, 6)),
    "ignore_eos": ([], True),
    "logprobs": (["-1"], -1),
    "prompt_logprobs": (["2"], 2),
    "logit_bias": (['{"5": -3, "6": 1.5}'], {5: -3, 6: 1.5}),
    "allowed_token_ids": (["5,6,7"], (5, 6, 7)),
    "bad_words": (["x"], ("x",)),
    "include_stop_str_in_output": ([], True),
    "skip_special_tokens": ([], True),
    "detokenize": ([], True),
}


def parse(*words: str, **how: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_sampling_flags(parser, **how)
    return sampling_from_args(parser.parse_args(words))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its defaults: at most 5 tokens, and only the two most likely ids."""
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    file = directory / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "top_k": 2, "max_new_tokens": 5}))
    return directory


def test_every_parameter_has_a_flag_with_help() -> None:
    names = {parameter.name for parameter in fields(SamplingParams)}
    assert set(ABOUT) == set(VALUES) == names
    assert flag_of("seed") == "--sampling-seed"
    assert flag_of("top_p") == "--top-p"


@pytest.mark.parametrize("name", list(VALUES))
def test_a_flag_sets_its_parameter_and_no_other(name: str) -> None:
    texts, value = VALUES[name]
    words = [word for text in texts for word in (flag_of(name), text)] or [flag_of(name)]
    assert getattr(SamplingParams.from_dict(parse(*words)), name) == value
    assert list(parse(*words)) == [name]
    if not texts:
        assert parse(f"--no-{flag_of(name)[2:]}") == {name: False}


def test_without_flags_nothing_is_given_and_a_command_may_leave_flags_out() -> None:
    assert parse() == {}
    with pytest.raises(SystemExit):
        parse("--n", "2", leave_out=("n",))


def test_all_wrong_flags_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(
            *("--temperature", "hot", "--top-k", "1.5", "--top-p", "2", "--stop-token-ids", "1,x"),
            *("--logit-bias", "[1]", "--logit-bias", "{", "--stop", "", "--bad-words", "\udce9"),
        )
    assert [problem.split(" (")[0] for problem in caught.value.problems] == [
        "--temperature: 'hot' is not a number",
        "--top-p: 2.0 is above 1; give a number > 0 and <= 1",
        "--top-k: '1.5' is not an integer",
        "--stop: stop[0]='' is empty; leave it out",
        "--stop-token-ids: '1,x' is not a list of ids like 1,2,3",
        """--logit-bias: '{' is not a JSON object like {"42": -5}""",
        "--bad-words: the text is not UTF-8 at character 0; set a UTF-8 locale and write it again",
    ]


def test_wrong_flags_of_sampling_and_engine_come_together(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(checkpoint), "--prompt", "x", "--temperature", "-1", "--block-size", "0"]
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "--temperature: -1.0 is below 0" in err
    assert "--block-size: 0 is below 1" in err


def test_flags_win_over_defaults_and_the_context_is_the_limit_where_nobody_sets_one() -> None:
    defaults = combine_sampling_defaults({"temperature": 0.6, "top_k": 20})
    assert cli_params(defaults, {"top_k": 3}) == SamplingParams(temperature=0.6, top_k=3, max_tokens=None)
    assert cli_params(combine_sampling_defaults({"max_new_tokens": 9}), {}).max_tokens == 9
    assert cli_params(combine_sampling_defaults({"max_new_tokens": 9}), {"max_tokens": 3}).max_tokens == 3
    assert cli_params(defaults, {"min_tokens": 400}).min_tokens == 400
    with pytest.raises(ConfigError, match="min_tokens=4 is above max_tokens=3"):
        cli_params(defaults, {"min_tokens": 4, "max_tokens": 3})


@pytest.mark.parametrize(
    ("flags", "params"),
    [
        ((), {"top_k": 2, "max_tokens": 5}),
        (("--top-k", "1", "--max-tokens", "8"), {"top_k": 1, "max_tokens": 8}),
        (
            ("--generation-config", "neutral"),
            {"max_tokens": None, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
        ),
        (
            ("--override-generation-config", '{"max_tokens": 4, "min_p": 0.5}'),
            {"max_tokens": 4, "min_p": 0.5},
        ),
    ],
)
def test_the_prompt_runs_with_defaults_and_flags(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], params: dict[str, Any]
) -> None:
    sampling = {"temperature": 0.6, "top_p": 0.95, "ignore_eos": True, "seed": 4, "top_k": 2, **params}
    argv = [
        "generate",
        str(checkpoint),
        "--prompt",
        "The fox",
        "--ignore-eos",
        "--sampling-seed",
        "4",
        "--json",
    ]
    assert main([*argv, *FLAGS, *flags]) == 0
    shown = json.loads(capsys.readouterr().out)
    with LLM(checkpoint, dtype="float64", num_blocks=8, max_model_len=48) as llm:
        [output] = llm.generate("The fox", SamplingParams(**sampling), use_tqdm=False)
    assert shown["prompt"] == "The fox"
    assert shown["outputs"][0]["token_ids"] == list(output.outputs[0].token_ids)
    if params["max_tokens"] is None:
        assert len(output.outputs[0].token_ids) == 48 - len(output.prompt_token_ids)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from vtcore.cli.main import main; main(['generate', '--help'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(flag_of(name) in shown for name in ABOUT)


def test_json_has_logprobs_and_is_strict(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", str(checkpoint), "--prompt-token-ids", "5,6", "--json", "--logprobs", "1"]
    assert main([*argv, "--prompt-logprobs", "0", "--max-tokens", "2", "--ignore-eos", *FLAGS]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(text))
    assert shown["prompt_token_ids"] == [5, 6]
    assert shown["num_prompt_tokens"] == 2
    assert shown["prompt_logprobs"][0] is None
    assert shown["prompt_logprobs"][1][0]["token_id"] == 6
    [sample] = shown["outputs"]
    assert [entry[0]["token_id"] for entry in sample["logprobs"]] == sample["token_ids"]
    assert sample["cumulative_logprob"] == pytest.approx(sum(e[0]["logprob"] for e in sample["logprobs"]))
