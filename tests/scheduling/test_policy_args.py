"""What a request brings for its policy: judged where it enters, read once at arrival, shown in views."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import attrs
import pytest

from vtcore.config.frozen_dict import freeze
from vtcore.errors import RequestError
from vtcore.interfaces.scheduler_policy import (
    Arrived,
    Event,
    PolicyContext,
    RunningView,
    SchedulerPolicy,
    WaitingView,
)
from vtcore.scheduling import policy_views
from vtcore.scheduling.policy_args import MAX_ARGS_BYTES, check_policy_args, parse_policy_args

Make = Callable[..., Any]


@attrs.frozen
class Args:
    deadline_s: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))
    labels: Mapping[str, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if "boom" in self.labels:
            raise KeyError("boom")


class Deadline(SchedulerPolicy):
    """By deadline; keeps every view it saw."""

    static = False
    args_class = Args

    def __init__(self) -> None:
        self.seen: list[WaitingView | RunningView] = []

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        self.seen.append(view)
        return (view.arrival_s + view.policy_args.deadline_s,)

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        self.seen += window
        return range(len(window))

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        self.seen += running
        return None

    def on_events(self, events: Sequence[Event]) -> None:
        self.seen += [event.view for event in events if isinstance(event, Arrived)]


@pytest.mark.parametrize("args", [None, {}, MappingProxyType({})])
@pytest.mark.parametrize("policy", [SchedulerPolicy(), Deadline()])
def test_a_request_may_bring_nothing(args: Mapping[str, Any] | None, policy: SchedulerPolicy) -> None:
    assert check_policy_args(policy, args) == ""
    assert parse_policy_args(policy, "") == (None if policy.args_class is None else Args())


@pytest.mark.parametrize("wrap", [dict, MappingProxyType, freeze])
def test_what_is_brought_travels_as_canonical_json(wrap: Callable[[Any], Mapping[str, Any]]) -> None:
    text = check_policy_args(Deadline(), wrap({"labels": wrap({"b": 1, "a": 2}), "deadline_s": 3}))
    assert text == '{"deadline_s":3,"labels":{"a":2,"b":1}}'
    assert parse_policy_args(Deadline(), text) == Args(3.0, {"a": 2, "b": 1})


REFUSED: list[tuple[Any, str]] = [
    ({"deadline": 3}, "$.policy_args.deadline: no such setting; did you mean 'deadline_s'?"),
    ({"deadline_s": "3"}, "$.policy_args.deadline_s: '3' is not a number"),
    ({"deadline_s": -1}, "$.policy_args.deadline_s: -1 is refused: 'deadline_s' must be > 0"),
    ({"deadline_s": float("inf")}, "$.policy_args.deadline_s: inf is not a finite number"),
    ({"labels": ["a"]}, "$.policy_args.labels: ['a'] is not a mapping"),
    ({"labels": {"boom": 1}}, "KeyError: 'boom'; this is a mistake in the scheduler policy Deadline"),
    ([1], "$.policy_args: [1] is not a mapping"),
    ("x", "$.policy_args: 'x' is not a mapping"),
    (False, "$.policy_args: False is not a mapping"),
    ({1: 2}, "$.policy_args: the key 1 is not a text"),
    ({"labels": {"x" * MAX_ARGS_BYTES: 1}}, f"at most {MAX_ARGS_BYTES}; send less"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_does_not_fit_is_refused_with_its_path(args: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_policy_args(Deadline(), args)
    assert message in str(caught.value)


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        check_policy_args(Deadline(), {"deadline_s": 0, "labels": 1, "x": 2})
    for path in ("$.policy_args.deadline_s: 0", "$.policy_args.labels: 1", "$.policy_args.x: no such"):
        assert path in str(caught.value)


def test_a_policy_that_reads_none_refuses_them_in_a_sentence() -> None:
    with pytest.raises(RequestError) as caught:
        check_policy_args(SchedulerPolicy(), {"deadline_s": 1})
    for part in ("$.policy_args", "SchedulerPolicy takes none", "leave policy_args out"):
        assert part in str(caught.value)


BAD_TEXTS = ["{", "[]", "1", "null", '{"deadline_s":NaN}', '{"x":1}', "[" * 100_000, '{"deadline_s":1e999}']


@pytest.mark.parametrize("text", BAD_TEXTS, ids=[text[:20] for text in BAD_TEXTS])
def test_a_text_that_nobody_checked_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"\$\.policy_args"):
        parse_policy_args(Deadline(), text)


def test_every_view_carries_the_one_instance(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def parse(policy: SchedulerPolicy, text: str) -> Any:
        calls.append(text)
        return parse_policy_args(policy, text)

    monkeypatch.setattr(policy_views, "parse_policy_args", parse)
    policy = Deadline()
    b = bench(policy, num_blocks=3, max_num_seqs=3)
    text = check_policy_args(policy, {"deadline_s": 5})
    b.add("urgent", length=4, max_tokens=6, policy_args=text)
    for name in "bc":
        b.add(name, length=4, max_tokens=6)
    b.run_out()
    assert {type(view) for view in policy.seen} == {WaitingView, RunningView}
    by_id = {name: [view for view in policy.seen if view.id == name] for name in ("urgent", "b", "c")}
    assert all(view.policy_args is by_id["urgent"][0].policy_args for view in by_id["urgent"])
    assert by_id["urgent"][0].policy_args == Args(5.0)
    assert all(view.policy_args == Args() for view in (*by_id["b"], *by_id["c"]))
    assert any(isinstance(view, RunningView) for view in by_id["b"])
    assert calls == ["", text], "the defaults once for all, the request's once at its arrival"
    assert b.guard.breaches == 0
    assert len(b.guard._views) == 0


def test_args_decide_who_goes_first(bench: Make) -> None:
    policy = Deadline()
    b = bench(policy, max_num_seqs=1)
    b.add("late", max_tokens=1)
    b.add("soon", max_tokens=1, policy_args=check_policy_args(policy, {"deadline_s": 1}))
    assert [b.step(), b.step()] == [["soon"], ["late"]]


@pytest.mark.parametrize("text", ['{"deadline_s":-1}', "{", '{"labels":{"boom":1}}', '{"x":1}'])
def test_a_text_that_does_not_fit_is_a_breach_and_the_defaults(
    bench: Make, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Deadline()
    b = bench(policy, max_num_seqs=1)
    with caplog.at_level(logging.WARNING):
        b.add("odd", max_tokens=1, policy_args=text)
    assert b.guard.breaches == 1
    [record] = caplog.records
    assert "args_class" in record.getMessage()
    b.run_out()
    assert policy.seen
    assert all(view.policy_args == Args() for view in policy.seen)
    assert b.guard.breaches == 1


def test_a_text_for_a_policy_that_reads_none_is_a_breach_and_none(bench: Make) -> None:
    class Looks(SchedulerPolicy):
        seen: ClassVar[list[Any]] = []

        def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
            self.seen.append(view.policy_args)
            return ()

    b = bench(Looks())
    b.add("a", policy_args='{"x":1}')
    assert b.guard.breaches == 1
    assert Looks.seen == [None]
    b.run_out()
