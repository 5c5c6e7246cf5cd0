"""Priority, tenant, policy_args and cache salt on the command line and in files of prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.batch_input import parse_request
from vtcore.cli.handling_flags import add_handling_flags, handling_from_args
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.cli.parser import CommandParser
from vtcore.errors import ConfigError
from vtcore.request_handling import HANDLING_NAMES, Handling

FLAGS = (
    *("--dtype", "float64", "--num-blocks", "96", "--block-size", "4", "--max-model-len", "160"),
    "--ignore-eos",
)
PREFIX = "You are a helpful assistant who answers at length. " * 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


def given(*words: str) -> Handling:
    parser = CommandParser(prog="test")
    add_handling_flags(parser)
    return handling_from_args(parser.parse_args(words))


def lines(path: Path, *requests: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def test_flags_become_a_handling_and_without_them_it_is_the_default() -> None:
    assert given() == Handling()
    found = given("--priority=-3", "--tenant", "a b", "--policy-args", '{"a": 1}', "--cache-salt", "s")
    assert found == Handling(priority=-3, tenant="a b", policy_args={"a": 1}, cache_salt="s")
    assert given("--policy-args", '{"a": 1, "b": {"c": 2}}', "--policy-args.b.d", "x").policy_args == {
        "a": 1,
        "b": {"c": 2, "d": "x"},
    }


def test_all_wrong_flags_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        given("--priority", "2147483648", "--tenant", "x" * 257, "--policy-args", "[1]", "--cache-salt", "")
    assert caught.value.problems == (
        "--priority: 2147483648 is above 2147483647; give an integer, -2147483648 to 2147483647 "
        "(smaller goes first)",
        "--tenant has 257 characters; at most 256 are served, shorten it",
        "--policy-args: '[1]' is not a JSON object",
        "--cache-salt is empty; leave it out, or give a text",
    )


def test_the_keys_of_a_line_are_the_same_and_are_no_part_of_the_prompt() -> None:
    request = {"prompt": "x", "priority": 1, "tenant": "t", "policy_args": {}, "cache_salt": "s"}
    found = parse_request(json.dumps(request).encode())
    assert found.source == {"prompt": "x"}
    assert found.handling == {key: request[key] for key in HANDLING_NAMES}
    none = dict.fromkeys(HANDLING_NAMES)
    assert parse_request(json.dumps({"prompt": "x", **none}).encode()).handling == {}


def test_a_lines_priority_wins_over_the_flag_and_orders_the_run(checkpoint: Path, tmp_path: Path) -> None:
    source = lines(
        tmp_path / "in.jsonl",
        {"prompt": "one", "priority": 9},
        {"prompt": "two", "priority": 1},
        {"prompt": "three", "tenant": "t", "cache_salt": "s"},
    )
    command = [sys.executable, "-m", "vtcore.cli.main", "generate", str(checkpoint), "--input", str(source)]
    more = ["--output", "-", "--max-tokens", "2", "--max-num-seqs", "1", "--scheduling-policy", "priority"]
    done = subprocess.run(
        [*command, *more, *FLAGS, "--priority", "5"], capture_output=True, text=True, check=True, timeout=60
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["line"] for record in records] == [2, 3, 1]
    assert not set(HANDLING_NAMES) & {key for record in records for key in record}


def test_another_handling_is_no_other_request(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = tmp_path / "out.jsonl"
    argv = ["generate", str(checkpoint), "--input", str(tmp_path / "in.jsonl"), "--output", str(sink)]
    lines(tmp_path / "in.jsonl", {"prompt": "one"})
    assert main([*argv, *FLAGS, "--max-tokens", "2"]) == 0
    first = sink.read_bytes()
    lines(tmp_path / "in.jsonl", {"prompt": "one", "priority": 3, "tenant": "t", "cache_salt": "s"})
    assert main([*argv, *FLAGS, "--max-tokens", "2"]) == 0
    assert "nothing was left to do" in capsys.readouterr().err
    assert sink.read_bytes() == first


def test_a_salt_parts_the_cache_and_the_last_line_says_what_it_spared(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The second prompt has a state kept where it parts from the first, and the third starts there.
    prompts = [PREFIX + name for name in ("Hi.", "Bye.", "Yes.")]
    said: list[str] = []
    outputs: list[bytes] = []
    for salts in ((None, None, None), ("a", "b", "c"), ("a", "a", "a")):
        requests = [{"prompt": text, "cache_salt": salt} for text, salt in zip(prompts, salts, strict=True)]
        source = lines(tmp_path / "in.jsonl", *requests)
        sink = tmp_path / f"out-{len(said)}.jsonl"
        argv = ["generate", str(checkpoint), "--input", str(source), "--output", str(sink), *FLAGS]
        assert main([*argv, "--max-tokens", "2", "--max-num-seqs", "1", "--enable-prefix-caching"]) == 0
        said.append(capsys.readouterr().err)
        outputs.append(sink.read_bytes())
    assert ["prompt tokens from the cache" in text for text in said] == [True, False, True]
    assert outputs[0] == outputs[1] == outputs[2]


def test_the_object_of_one_prompt_has_its_cached_tokens(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(checkpoint), "--prompt", "x", "--json", "--max-tokens", "1", *FLAGS]
    assert main([*argv, "--priority", "1", "--tenant", "t", "--cache-salt", "s"]) == 0
    assert json.loads(capsys.readouterr().out)["num_cached_tokens"] == 0


def test_arguments_that_the_policy_refuses_are_named_as_typed(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", str(checkpoint), "--prompt", "x", "--max-tokens", "1", *FLAGS]
    assert main([*argv, "--policy-args", '{"rank": 1}']) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error[VT240]: --policy-args: the scheduler policy FcfsPolicy takes none")
