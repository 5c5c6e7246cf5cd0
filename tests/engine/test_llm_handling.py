"""Priority, tenant, policy_args and cache salt: how they are given, refused, and seen by a real policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, ClassVar

import pytest
from attrs import field, frozen

from vtcore import LLM, SamplingParams
from vtcore.engine.core import AddRequest
from vtcore.errors import RequestError
from vtcore.interfaces.batch import EngineRequest
from vtcore.interfaces.scheduler_policy import Event, Finished, SchedulerPolicy, WaitingView
from vtcore.outputs import RequestOutput
from vtcore.request_handling import Handling
from vtcore.testing.invariants import check_idle

NAME = f"policy-{Random().getrandbits(64):x}"
MODULE = f"module_{Random().getrandbits(64):x}"
SEEN: list[WaitingView] = []
ENDED: list[str] = []
PROMPTS = ["one", "two", "three"]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=3)


@frozen
class Args:
    rank: int = field(default=0)


class ByRank(SchedulerPolicy):
    """By priority, then by the rank that the request brings; notes what it sees."""

    args_class: ClassVar[type[Any] | None] = Args

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        SEEN.append(view)
        return (view.priority, view.policy_args.rank)

    def on_events(self, events: Any) -> None:
        found: list[Event] = list(events)
        ENDED.extend(event.id for event in found if isinstance(event, Finished))


PLUGIN = f'''"""Registers a policy."""
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import SchedulerPolicyEntry

VTCORE_API = {{"scheduler_policies": "0.2"}}


@hookimpl
def vtcore_register_scheduler_policies():
    return [SchedulerPolicyEntry(name="{NAME}", implementation="{MODULE}:ByRank")]
'''


@pytest.fixture(scope="module")
def open_llm(
    tiny_checkpoint: Path, engine_options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LLM]:
    module = ModuleType(MODULE)
    module.ByRank = ByRank  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    file = tmp_path_factory.mktemp("plugin") / "by_rank.py"
    file.write_text(PLUGIN)
    with LLM(
        tiny_checkpoint,
        plugin_files=[str(file)],
        scheduling_policy=NAME,
        **{**engine_options, "max_num_seqs": 1},
    ) as llm:
        yield llm
    del sys.modules[MODULE]


@pytest.fixture
def llm(open_llm: LLM) -> Iterator[LLM]:
    SEEN.clear()
    open_llm.engine.step()
    ENDED.clear()
    yield open_llm
    open_llm.engine.step()
    check_idle(open_llm.engine.loaded.core)


@pytest.fixture(scope="module")
def fcfs_llm(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(tiny_checkpoint, **engine_options) as llm:
        yield llm


def queued(llm: LLM) -> list[EngineRequest]:
    return [message.request for message in llm.engine.loaded.core.inbox if isinstance(message, AddRequest)]


def order_of_ends(llm: LLM, outputs: list[RequestOutput]) -> list[str | None]:
    llm.engine.step()
    prompts = {f"{output.request_id}/0": output.prompt for output in outputs}
    return [prompts[name] for name in ENDED if name in prompts]


def test_one_value_is_for_all_and_a_list_is_one_for_each(llm: LLM) -> None:
    llm.generate(
        PROMPTS,
        GREEDY,
        priority=[3, -(2**31), 2**31 - 1],
        tenant="team",
        policy_args=[{"rank": 5}, None, {}],
        cache_salt=[None, "a", "b"],
        use_tqdm=False,
    )
    assert [view.priority for view in SEEN] == [3, -(2**31), 2**31 - 1]
    assert [view.tenant for view in SEEN] == ["team"] * 3
    assert [view.policy_args for view in SEEN] == [Args(5), Args(), Args()]
    SEEN.clear()
    llm.generate("one", GREEDY, priority=7, tenant=["x"], policy_args={"rank": 1}, use_tqdm=False)
    assert [(view.priority, view.tenant, view.policy_args) for view in SEEN] == [(7, "x", Args(1))]
    SEEN.clear()
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [(view.priority, view.tenant, view.policy_args) for view in SEEN] == [(0, "", Args())] * 3


@pytest.mark.parametrize(
    "given", [{"priority": [2, 3, 1]}, {"policy_args": [{"rank": rank} for rank in (2, 3, 1)]}]
)
def test_they_change_the_order_and_not_the_output(llm: LLM, given: dict[str, Any]) -> None:
    plain = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert order_of_ends(llm, plain) == PROMPTS
    ordered = llm.generate(PROMPTS, GREEDY, use_tqdm=False, **given)
    assert order_of_ends(llm, ordered) == ["three", "one", "two"]
    assert [output.outputs for output in ordered] == [output.outputs for output in plain]


def test_all_of_it_goes_to_the_core_with_every_sample_and_samples_name_the_first(llm: LLM) -> None:
    handling = Handling(priority=4, tenant="t", policy_args={"rank": 2}, cache_salt="s")
    name = llm.engine.add_request("one", SamplingParams(n=3, prompt_logprobs=1), handling=handling)
    other = llm.engine.add_request("two", GREEDY)
    requests = queued(llm)
    assert [request.fork_of for request in requests] == ["", f"{name}/0", f"{name}/0", ""]
    for request in requests[:3]:
        found = (request.priority, request.tenant, request.policy_args, request.cache_salt)
        assert found == (4, "t", '{"rank":2}', "s")
    last = requests[3]
    assert (last.priority, last.tenant, last.policy_args, last.cache_salt) == (0, "", "", "")
    for request_id in (name, other):
        llm.engine.abort(request_id)


def test_a_conversation_takes_them_too(llm: LLM) -> None:
    llm.chat(
        [{"role": "user", "content": "hi"}],
        GREEDY,
        priority=1,
        tenant="t",
        policy_args={"rank": 9},
        cache_salt="s",
        use_tqdm=False,
    )
    assert [(view.priority, view.tenant, view.policy_args) for view in SEEN] == [(1, "t", Args(9))]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"priority": 2**31}, "priority=2147483648 is above 2147483647; give an integer, -2147483648 to"),
        ({"priority": -(2**31) - 1}, "priority=-2147483649 is below -2147483648"),
        ({"priority": True}, "priority=True is not an integer"),
        ({"priority": 1.0}, "priority=1.0 is not an integer"),
        ({"priority": "high"}, "priority='high' is not an integer"),
        ({"tenant": 5}, "tenant=5 is not a text; give one, or leave it out"),
        ({"tenant": "x" * 257}, "tenant has 257 characters; at most 256 are served, shorten it"),
        ({"tenant": "\ud800"}, "tenant has half of a surrogate pair at character 0"),
        ({"cache_salt": ""}, "cache_salt is empty; leave it out, or give a text"),
        ({"cache_salt": b"x"}, "cache_salt=b'x' is not a text"),
        ({"cache_salt": "x" * 257}, "cache_salt has 257 characters; at most 256 are served, shorten it"),
        ({"policy_args": "x"}, "policy_args='x' is not a mapping; give the policy's arguments by name"),
        ({"policy_args": {"rnk": 1}}, r"$.policy_args.rnk: "),
        ({"policy_args": {"rank": "x"}}, r"$.policy_args.rank: 'x' is not an integer"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_nothing_starts(
    llm: LLM, given: dict[str, Any], sentence: str
) -> None:
    [(name, value)] = given.items()
    with pytest.raises(RequestError) as alone:
        llm.generate("one", GREEDY, use_tqdm=False, **given)
    assert str(alone.value).startswith(sentence)
    with pytest.raises(RequestError) as second:
        llm.generate(["one", "two"], GREEDY, use_tqdm=False, **{name: [None, value]})
    assert str(second.value) == f"prompt 1 of 2: {alone.value}"
    assert not SEEN
    assert not queued(llm)


def test_all_wrong_values_of_a_request_are_said_at_once(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate("one", GREEDY, priority=2**31, tenant="x" * 300, cache_salt="", use_tqdm=False)
    said = str(caught.value)
    assert all(name in said for name in ("priority=", "tenant has", "cache_salt is empty"))


@pytest.mark.parametrize("name", ["priority", "tenant", "policy_args", "cache_salt"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_than_prompts_is_refused(llm: LLM, name: str, count: int) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(["one", "two"], GREEDY, use_tqdm=False, **{name: [None] * count})  # type: ignore[arg-type]
    assert str(caught.value) == f"2 prompts came with {count} of {name}; give one, or one for each"


def test_fcfs_takes_a_priority_and_no_arguments(fcfs_llm: LLM) -> None:
    plain = fcfs_llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    found = fcfs_llm.generate(PROMPTS, GREEDY, priority=[3, 2, 1], tenant="t", use_tqdm=False)
    assert [output.outputs for output in found] == [output.outputs for output in plain]
    with pytest.raises(RequestError, match=r"\$\.policy_args: .*leave policy_args out"):
        fcfs_llm.generate("one", GREEDY, policy_args={"rank": 1}, use_tqdm=False)
