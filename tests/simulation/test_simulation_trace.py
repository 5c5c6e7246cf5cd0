"""Traces: every wrong line is named, what is written reads the same, workloads have their shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from vtcore.errors import ConfigError
from vtcore.simulation.tokens import key_of, sequence_ids
from vtcore.simulation.trace import MAX_PROBLEMS, TraceRequest, check_trace_fits, prompt_lengths
from vtcore.simulation.trace_file import read_trace, write_trace
from vtcore.simulation.workloads import TAIL, WORKLOADS, Lengths, Workload, generate_trace

GOOD: dict[str, Any] = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2}


def workload(kind: str, **more: Any) -> Workload:
    some: dict[str, Any] = {
        "num_requests": 2000,
        "rate": 4.0,
        "prompt": Lengths(mean=100.0, sigma=0.5),
        "output": Lengths(low=5, high=9),
        "tenants": {"a": 3.0, "b": 1.0},
        "priorities": {-1: 1.0, 2: 1.0},
    }
    return Workload(kind=kind, **{**some, **more})


def read(tmp_path: Path, *lines: object) -> tuple[TraceRequest, ...]:
    path = tmp_path / "t.jsonl"
    texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"\n".join(texts))
    return read_trace(str(path))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "it is no request: '{' is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "it is not UTF-8 at byte 0"),
        (b'{"a": 1, "a": 2}', "has the key 'a' twice"),
        (b'{"policy_args": {"a": NaN}}', "it is no request"),
        (b"[" * 10_000, "it is no request"),
        ({**GOOD, "promt_tokens": 3}, "no key 'promt_tokens' is known; did you mean 'prompt_tokens'"),
        ({**GOOD, "place": "x"}, "no key 'place' is known"),
        ({"arrival_s": 0, "prompt_tokens": 1}, "output_tokens is missing; say how long"),
        ({"output_tokens": 1, "prompt_tokens": 1}, "arrival_s is missing; say when"),
        ({**GOOD, "output_tokens": 0}, "output_tokens=0 is below 1; give an integer, 1 to"),
        ({**GOOD, "output_tokens": 1.5}, "output_tokens=1.5 is not an integer"),
        ({**GOOD, "prompt_tokens": "5"}, "prompt_tokens='5' is not an integer"),
        ({**GOOD, "arrival_s": -1}, "arrival_s=-1 is below 0; give a number"),
        (b'{"arrival_s": 1e999, "prompt_tokens": 5, "output_tokens": 2}', "no request"),
        ({**GOOD, "priority": True}, "priority=True is not an integer"),
        ({**GOOD, "tenant": 7}, "tenant=7 is not a text; write it in quotes"),
        ({**GOOD, "prompt_token_ids": [1, -2]}, r"prompt_token_ids\[1\]=-2 is below 0"),
        ({**GOOD, "prompt_token_ids": "12"}, "prompt_token_ids='12' is not a list"),
        ({**GOOD, "prefix": [["a", 0]]}, r"prefix\[0\]\[1\]=0 is below 1"),
        ({**GOOD, "prefix": ["a", 4]}, r"prefix\[0\]='a' is no group and its tokens; give \[\[\"group\""),
        ({**GOOD, "policy_args": [1]}, r"policy_args=\[1\] is no JSON object; give one"),
        ({**GOOD, "follows": "x"}, "follows='x' is no earlier request; put that one before"),
        ({**GOOD, "after_s": 1}, "after_s goes with follows only; leave it out"),
        ({"arrival_s": 0, "output_tokens": 1}, "the prompt is empty; give prompt_tokens"),
        ({**GOOD, "id": "1"}, "id='1' is in use; give each request its own"),
    ],
)
def test_a_wrong_line_is_named_with_its_number_key_value_and_remedy(
    line: object, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"t\.jsonl:2: .*{problem}") as caught:
        read(tmp_path, GOOD, line)
    assert len(caught.value.problems) == 1


def test_every_wrong_line_is_named_up_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, *[{}] * (MAX_PROBLEMS + 5))
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert caught.value.problems[-1].startswith("5 more lines")


@pytest.mark.parametrize("lines", [[], [b"", b"  "]])
def test_a_file_without_requests_says_how_one_is_written(lines: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'has no request; write lines like \{"arrival_s": 0'):
        read(tmp_path, *lines)
    with pytest.raises(ConfigError, match=r"\$\.trace: .* cannot be read"):
        read_trace(str(tmp_path / "absent"))


def test_a_line_means_what_the_page_says(tmp_path: Path) -> None:
    lines = [
        GOOD,
        {"id": "b", "follows": "1", "after_s": 2, "prefix": [["g", 3]], "output_tokens": 1, "priority": -4},
    ]
    first, second = read(tmp_path, b"\xef\xbb\xbf" + json.dumps(lines[0]).encode(), b"", lines[1])
    assert first == TraceRequest(id="1", prompt_tokens=5, output_tokens=2)
    assert second == TraceRequest(id="b", follows="1", after_s=2.0, prefix=(("g", 3),), priority=-4)
    assert prompt_lengths((first, second)) == [5, 10]


@pytest.mark.parametrize("kind", WORKLOADS)
def test_what_is_written_reads_the_same(kind: str, tmp_path: Path) -> None:
    trace = generate_trace(workload(kind, num_requests=50))
    trace = (
        *trace,
        evolve(trace[0], id="more", policy_args={"a": [1]}, cache_salt="s", prompt_token_ids=(4,)),
    )
    write_trace(trace, str(tmp_path / "t.jsonl"))
    assert read_trace(str(tmp_path / "t.jsonl")) == trace


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_seed_gives_one_trace_of_the_wanted_size_and_shares(kind: str) -> None:
    trace = generate_trace(workload(kind))
    assert trace == generate_trace(workload(kind))
    assert trace != generate_trace(workload(kind, seed=1))
    assert len(trace) == 2000
    assert sum(one.tenant == "a" for one in trace) / 2000 == pytest.approx(0.75, abs=0.06)
    assert {one.priority for one in trace} == {-1, 2}
    assert {one.output_tokens for one in trace} == {5, 6, 7, 8, 9}
    mean = sum(one.prompt_tokens for one in trace) / 2000
    assert mean == pytest.approx(100, rel=0.06)
    assert max(one.prompt_tokens for one in trace) <= 100 * TAIL
    assert trace[-1].arrival_s == pytest.approx(500, rel=0.2)


def test_workloads_have_their_shapes() -> None:
    bursts = generate_trace(workload("bursty", burst_size=7))
    assert len({one.arrival_s for one in bursts}) == -(-2000 // 7)
    shared = generate_trace(workload("shared-prefix", prefix_groups=3, prefix_tokens=33))
    assert {one.prefix for one in shared} == {((f"prefix-{i}", 33),) for i in range(3)}
    turns = generate_trace(workload("multi-turn", turns=5, think_s=2.0))
    followers = [one for one in turns if one.follows]
    assert len(followers) == 2000 * 4 // 5
    assert sum(one.after_s for one in followers) / len(followers) == pytest.approx(2.0, rel=0.1)
    by_id = {one.id: one for one in turns}
    assert all(by_id[one.follows].tenant == one.tenant for one in followers)


def test_equal_names_give_equal_ids_and_others_do_not() -> None:
    assert sequence_ids("a", 5, 1000) == sequence_ids("a", 9, 1000)[:5]
    assert sequence_ids("a", 5, 1000)[2:] == sequence_ids("a", 3, 1000, start=2)
    assert sequence_ids("a", 20, 1000) != sequence_ids("b", 20, 1000)
    assert all(0 <= one < 7 for one in sequence_ids("a", 100, 7))
    # Of this version for good: a trace that is replayed later has the same ids.
    assert sequence_ids("a", 3, 2**17) == [14331, 124728, 76191]
    assert 0 <= key_of("x") < 2**63


def test_a_request_that_cannot_be_served_is_refused_before_the_run() -> None:
    trace = [
        TraceRequest(id="a", prompt_tokens=5, output_tokens=5, place="t:1"),
        TraceRequest(id="b", prompt_token_ids=(3, 9), follows="a", place="t:2"),
    ]
    check_trace_fits(trace, 13, 10)
    with pytest.raises(ConfigError, match=r"t:2: the prompt of 12 tokens .* are 13, max_model_len is 12"):
        check_trace_fits(trace, 12, 10)
    with pytest.raises(ConfigError, match=r"t:2: prompt_token_ids has 9, the ids are 0 to 8"):
        check_trace_fits(trace, 13, 9)
