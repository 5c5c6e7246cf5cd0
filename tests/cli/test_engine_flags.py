"""The engine's flags: ours, vLLM's, their spellings, and errors that name what was typed, all at once."""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import fields

from vtcore.cli import main as cli
from vtcore.cli.engine_flags import add_engine_flags, add_plugin_flags, given_from_args, options_from_args
from vtcore.cli.flag_words import errors_as_typed
from vtcore.cli.parser import CommandParser
from vtcore.config.layers import GivenOptions
from vtcore.config.options import UserOptions
from vtcore.config.text_values import KINDS
from vtcore.config.vllm_names import ALWAYS, NOT_SERVED, VLLM_FLAGS, VllmFlag
from vtcore.errors import ConfigError, NotServedError, UsageError

JSON_VALUE = '{"method": "mtp", "num_speculative_tokens": 2}'


@functools.cache
def engine_parser() -> CommandParser:
    parser = CommandParser(prog="test")
    parser.add_argument("model", nargs="?")
    add_engine_flags(parser)
    return parser


def given(*words: str) -> GivenOptions:
    args = engine_parser().parse_args(words)
    with errors_as_typed(args.typed_flags):
        return given_from_args(args)


def problems_of(*words: str) -> tuple[str, ...]:
    with pytest.raises((ConfigError, UsageError)) as caught:
        given(*words)
    assert isinstance(caught.value, ConfigError | UsageError)
    return caught.value.problems


def dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


# The flags that recipes for Qwen3.5 use, each with whether it is served.
RECIPE: dict[str, tuple[list[str], bool]] = {
    "--max-model-len": (["262144"], True),
    "--reasoning-parser": (["qwen3"], False),
    "--enable-auto-tool-choice": ([], False),
    "--tool-call-parser": (["qwen3_coder"], False),
    "--language-model-only": ([], True),
    "--trust-remote-code": ([], True),
    "--tensor-parallel-size": (["1"], True),
    "--speculative-config": ([JSON_VALUE], False),
    "--default-chat-template-kwargs": (['{"enable_thinking": false}'], True),
    "--max-cudagraph-capture-size": (["64"], False),
}


@pytest.mark.parametrize("flag", RECIPE)
@pytest.mark.parametrize("command", ["check", "generate"])
def test_a_recipes_flag_is_served_or_named_with_one_sentence(
    command: str, flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values, is_served = RECIPE[flag]
    if is_served:
        assert given(str(tmp_path), flag, *values).options.model == str(tmp_path)
        return
    extra = ["--prompt", "x"] if command == "generate" else []
    assert cli.main([command, str(tmp_path), *extra, flag, *values]) == 2
    line, more = capsys.readouterr().err.splitlines()
    assert re.match(rf"error\[VT202\]: {flag}: ('64' is not served: )?[^:]*; leave it out", line)
    assert more == "more: vtcore explain VT202"


def test_a_whole_recipe_names_each_flag_that_is_not_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [word for flag, (values, _) in RECIPE.items() for word in (flag, *values)]
    assert cli.main(["check", str(tmp_path), *words]) == 2
    *lines, _ = capsys.readouterr().err.splitlines()
    named = {line.split(": ")[1] for line in lines}
    assert named == {flag for flag, (_, is_served) in RECIPE.items() if not is_served}
    assert len(lines) == len(named)


def test_what_a_recipe_has_that_is_served_arrives(tmp_path: Path) -> None:
    words = [word for flag, (values, is_served) in RECIPE.items() if is_served for word in (flag, *values)]
    found = given(str(tmp_path), *words)
    assert found.options == UserOptions(
        model=str(tmp_path), max_model_len=262144, default_chat_template_kwargs={"enable_thinking": False}
    )
    assert {note.split(":")[0] for note in found.notes} == {
        "$.language_model_only",
        "$.trust_remote_code",
        "$.tensor_parallel_size",
    }


SAMPLES = {"none": [], "bool": [], "one": ["x"], "optional": [], "many": ["a", "b"], "json": ['{"a": 1}']}
"""What may follow a flag of vLLM, by its form."""


def sample_words(option: str) -> list[str]:
    """What may follow a flag of ours."""
    choices = next(o for o in fields(UserOptions) if o.name == option).metadata["choices"]
    return {
        "bool": [],
        "int": ["3"],
        "int or word": ["3"],
        "float": ["0.5"],
        "text": [choices[0] if choices else "something"],
        "texts": ["one", "two"],
        "mapping": ['{"temperature": 1}'],
    }[KINDS[option]]


def flag_and_value(flag: VllmFlag, value: Any) -> list[str]:
    if flag.takes in ("bool", "none"):
        return [dashed(flag.name) if value else "--no" + dashed(flag.name)[1:]]
    return [dashed(flag.name), json.dumps({"key": value}) if flag.takes == "json" else str(value)]


def test_every_flag_of_vllm_parses_with_a_value_of_its_form_and_ends_as_its_kind_says() -> None:
    for flag in VLLM_FLAGS.values():
        if flag.name == "config":
            continue
        for spelling in (dashed(flag.name), "--" + flag.name, *flag.short):
            if flag.to is not None:
                found = given(spelling, *sample_words(flag.to))
                assert getattr(found.options, flag.to) is not None, spelling
            elif flag.sentence is None:
                [note] = given(spelling, *SAMPLES[flag.takes]).notes
                assert note == f"$.{flag.name}: accepted; {flag.why}"
            elif not flag.accepts(True):
                [problem] = problems_of(spelling, *SAMPLES[flag.takes])
                assert problem.startswith(f"{spelling}: "), spelling
                assert problem.endswith(flag.sentence), spelling
        for value in flag.values or ():
            if (flag.takes, value) != ("none", False):
                assert len(given(*flag_and_value(flag, value)).notes) == 1, (flag.name, value)
        if flag.kind == ALWAYS and flag.takes == "bool" and flag.values is not None:
            [problem] = problems_of(*flag_and_value(flag, not flag.values[0]))
            assert problem.endswith(str(flag.sentence))


def test_switching_off_what_is_never_on_is_accepted() -> None:
    for flag in VLLM_FLAGS.values():
        if flag.takes == "bool" and flag.kind == NOT_SERVED and flag.accepts(False):
            assert len(given("--no-" + flag.name.replace("_", "-")).notes) == 1


def test_each_option_has_a_flag_and_a_line_of_help_and_vllms_have_none() -> None:
    text = engine_parser().format_help()
    shown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    for option in fields(UserOptions):
        if option.name not in ("model", "plugin_files", "plugin_owners"):
            assert dashed(option.name) in shown
    assert not {dashed(f.name) for f in VLLM_FLAGS.values() if f.to is None and f.name != "config"} & shown
    assert "Flags of `vllm serve` are known too" in text


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--max-model-len 32k", {"max_model_len": 32000}),
        ("--max-model-len 32K", {"max_model_len": 32768}),
        ("--max_model_len=auto", {"max_model_len": "auto"}),
        ("--max-model-len -1", {"max_model_len": "auto"}),
        ("--kv-cache-memory-bytes 4G", {"kv_cache_memory_bytes": 4 * 2**30}),
        ("--gpu-memory-utilization 0.9", {"gpu_memory_utilization": 0.9}),
        ("--device-memory-utilization 0.9", {"gpu_memory_utilization": 0.9}),
        ("--num-gpu-blocks-override 1k", {"num_blocks": 1000}),
        ("--enforce-eager", {"enforce_eager": True}),
        ("--enforce_eager=true", {"enforce_eager": True}),
        ("--enforce-eager=False --enable-lora=false", {"enforce_eager": False}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--served-model-name a b --seed 1", {"served_model_name": ("a", "b"), "seed": 1}),
        ("--served-model-name a --served-model-name b", {"served_model_name": ("a", "b")}),
        ("--generation-config vllm", {"generation_config": "neutral"}),
        (
            "--override-generation-config.top_k 5 --override-generation-config.temperature=0.5",
            {"override_generation_config": {"top_k": 5, "temperature": 0.5}},
        ),
        (
            '--override-generation-config {"top_k":1,"top_p":1.0} --override_generation_config.top_k 5',
            {"override_generation_config": {"top_k": 5, "top_p": 1.0}},
        ),
        (
            "--default-chat-template-kwargs.enable_thinking false --default-chat-template-kwargs.a.b+ x,y",
            {"default_chat_template_kwargs": {"enable_thinking": False, "a": {"b": ["x", "y"]}}},
        ),
        (
            '--policy-config {"a":1} --policy-config.b.c 2.5 --starvation-s 9 --policy-time-limit-ms 0.5',
            {"policy_config": {"a": 1, "b": {"c": 2.5}}, "starvation_s": 9.0, "policy_time_limit_ms": 0.5},
        ),
        (
            "--enable-prefix-caching --num-state-checkpoints 1k --state-checkpoint-interval 4K",
            {
                "enable_prefix_caching": True,
                "num_state_checkpoints": 1000,
                "state_checkpoint_interval": 4096,
            },
        ),
        ("--model some/model --seed 1", {"model": "some/model", "seed": 1}),
        ("--model=some/model", {"model": "some/model"}),
        ("some/model --plugin a.py --plugin b.py", {"model": "some/model", "plugin_files": ("a.py", "b.py")}),
        ("--plugin-owner arch:a=b", {"plugin_owners": {"arch:a": "b"}}),
        ("-tp 1 -O0 -O=0 -pp=1 --limit-mm-per-prompt.image 0", {}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ("--seed 1 -- some/model", {"model": "some/model", "seed": 1}),
    ],
)
def test_a_flag_becomes_its_option(words: str, options: dict[str, Any]) -> None:
    assert given(*words.split()).options == UserOptions(**options)


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ("--max-model-len 0", ["--max-model-len: 0 is below 2; raise it, or leave it out for the default"]),
        ("--max_model_len 0", ["--max_model_len: 0 is below 2; raise it, or leave it out for the default"]),
        ("--seed=x", ["--seed: 'x' is not an integer such as 4096, 32k (32,000) or 32K (32,768)"]),
        ("--gpu-memory-utilization nan", ["--gpu-memory-utilization: 'nan' is not a number"]),
        ("--num-gpu-blocks-override 0", ["--num-gpu-blocks-override: 0 is below 1; raise it"]),
        ("--override-generation-config x", ["--override-generation-config: 'x' is not a JSON object"]),
        ("-tp 2", ["-tp: '2' is not served: for several devices"]),
        ("-O3", ["-O: '3' is not served: models are not compiled"]),
        ("--no-enable-chunked-prefill", ["--no-enable-chunked-prefill: chunked prefill"]),
        ("--enable-lora=true", ["--enable-lora: LoRA adapters"]),
        ("--enforce-eager=3", ["argument --enforce-eager"]),
        ("--dtype flaot32", ["--dtype: 'flaot32' is not served; did you mean 'float32'?"]),
        ("--plugin-owner a", ["--plugin-owner: 'a' is no KIND:NAME=DISTRIBUTION"]),
        ("--max-num-sq 3", ["unknown flag '--max-num-sq'; did you mean '--max-num-seqs'? (see test --help)"]),
        (
            "--tensor-paralel-size 3",
            ["unknown flag '--tensor-paralel-size'; did you mean '--tensor-parallel-size'?"],
        ),
        ("--zzz", ["unknown flag '--zzz' (see test --help)"]),
        ("--seed.x 3", ["unknown flag '--seed.x'; did you mean '--seed'? (see test --help)"]),
        ("m extra", ["unknown argument 'extra' (see test --help)"]),
        ("--seed", ["argument --seed: expected one argument (see test --help)"]),
        (
            "--override-generation-config.top_k",
            ["unknown flag '--override-generation-config.top_k'; did you"],
        ),
    ],
)
def test_an_error_names_the_flag_as_it_was_typed(words: str, problems: list[str]) -> None:
    found = problems_of(*words.split())
    assert len(found) == len(problems)
    assert all(one.startswith(start) for one, start in zip(found, problems, strict=True))


def test_all_wrong_flags_of_a_command_line_are_reported_at_once() -> None:
    words = "m --max-num-sq 4 --zzz --seed x --max-num-seqs 0 -tp 2 --host h --dtype half"
    words += " --num-gpu-blocks-override y"
    found = problems_of(*words.split())
    assert sorted(problem.split(":")[0].split(" (")[0].split(";")[0] for problem in found) == [
        "--dtype",
        "--host",
        "--max-num-seqs",
        "--num-gpu-blocks-override",
        "--seed",
        "-tp",
        "unknown flag '--max-num-sq'",
        "unknown flag '--zzz'",
    ]


def test_a_wrong_value_of_a_commands_own_flag_hides_no_other() -> None:
    parser = CommandParser(prog="test")
    parser.add_argument("--count", type=int)
    parser.add_argument("--width", type=int, choices=(1, 2))
    add_engine_flags(parser)
    with pytest.raises(ConfigError) as caught:
        parser.parse_args(["--count", "x", "--width", "3", "--seed", "z", "--zzz"])
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "argument --count",
        "argument --width",
        "unknown flag '--zzz' (see test --help)",
        "--seed",
    ]


@pytest.mark.parametrize("word", ["--max-num-seq", "--max-num", "-t", "-d", "--tensor-parallel", "--trust"])
def test_nothing_is_abbreviated(word: str) -> None:
    assert problems_of(word)[0].startswith(f"unknown flag {word!r}")


def test_only_what_is_not_served_has_a_class_and_code_of_its_own() -> None:
    with pytest.raises(NotServedError):
        given("--host", "h")
    with pytest.raises(ConfigError) as caught:
        given("--host", "h", "--seed", "-3")
    assert not isinstance(caught.value, NotServedError)


def test_a_file_is_read_flags_win_and_its_errors_keep_their_path(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('max_num_seqs = 3\nseed = 4\n"tensor-parallel-size" = 1\n')
    options = given("m", "--config", str(file), "--seed", "5").options
    assert options == UserOptions(model="m", max_num_seqs=3, seed=5)
    file.write_text("max_num_seqs = 0\n")
    [problem] = problems_of("m", "--config", str(file), "--max-num-seqs", "3")
    assert problem.startswith(f"{file}: $.max_num_seqs: 0 is below 1")


def test_a_commands_own_flag_is_the_commands() -> None:
    parser = CommandParser(prog="test")
    parser.add_argument("--host")
    add_engine_flags(parser)
    args = parser.parse_args(["--host", "h"])
    assert args.host == "h"
    assert given_from_args(args).options == UserOptions()


def test_a_command_without_an_engine_knows_the_plugin_flags_alone() -> None:
    parser = CommandParser(prog="test")
    add_plugin_flags(parser)
    args = parser.parse_args(["--plugin", "a.py"])
    assert options_from_args(args) == given_from_args(args).options == UserOptions(plugin_files=("a.py",))
    assert options_from_args(argparse.Namespace(other=1)) == UserOptions()
    with pytest.raises(UsageError, match="unknown flag '--tensor-parallel-size'"):
        parser.parse_args(["--tensor-parallel-size", "1"])


def test_an_error_raised_later_names_the_flag_too() -> None:
    args = engine_parser().parse_args(["m", "--max_num_seqs", "3", "--num-gpu-blocks-override", "2"])
    error = ConfigError("$.max_num_seqs: 3 is more than $.num_blocks", "$.seed: x", "file: $.max_num_seqs: y")
    with pytest.raises(ConfigError) as caught, errors_as_typed(args.typed_flags):
        raise error
    assert caught.value.problems == (
        "--max_num_seqs: 3 is more than --num-gpu-blocks-override",
        "$.seed: x",
        "file: $.max_num_seqs: y",
    )
    assert str(caught.value) == "; ".join(caught.value.problems)


def test_a_model_is_named_as_the_help_names_it() -> None:
    with pytest.raises(ConfigError) as caught, errors_as_typed(engine_parser().parse_args(["m"]).typed_flags):
        raise ConfigError("$.model: not there")
    assert caught.value.problems == ("MODEL: not there",)


def test_the_model_may_stand_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    file.write_text('model = "of-the-file"')
    parser = CommandParser(prog="test")
    parser.add_argument("model", metavar="MODEL")
    add_engine_flags(parser)
    monkeypatch.setenv("VTCORE_MODEL", "of-the-variable")
    for words, model in (
        (["--seed", "1"], "of-the-variable"),
        (["--seed", "1", "--config", str(file)], "of-the-file"),
        (["--config", str(file), "typed", "--seed", "1"], "typed"),
    ):
        args = parser.parse_args(words)
        assert given_from_args(args).options.model == model == args.model


@pytest.mark.parametrize("path", ["top_k", "a.b"])
def test_a_number_that_python_does_not_read_is_an_error_of_the_value(path: str) -> None:
    digits = "1" * 5000
    found = given(f"--default-chat-template-kwargs.{path}", digits).options.default_chat_template_kwargs
    assert found is not None
    assert digits in str(found)
    nested = f'{{"a": {digits}}}'
    assert problems_of("--default-chat-template-kwargs", nested) == (
        "--default-chat-template-kwargs: the JSON object has an integer of 5000 digits; lower it",
    )
    [problem] = problems_of("--speculative-config", nested)
    assert problem.startswith("--speculative-config: speculative decoding")


def test_values_of_unserved_flags_may_be_any_text() -> None:
    for text in ("not json", "[1, 2]", "{", "[" * 5000, json.dumps({"a": [1]})):
        [problem] = problems_of("--speculative-config", text)
        assert problem.startswith("--speculative-config: speculative decoding is not served")
