"""Figures of a simulation: fairness by its formula and by hand, percentiles, the fitted cost model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from vtcore.errors import ConfigError
from vtcore.interfaces.scheduler_policy import SchedulerPolicy, WaitingView
from vtcore.simulation.cost_model import (
    CostModel,
    StepWork,
    cost_model_from,
    read_cost_model,
    write_cost_model,
)
from vtcore.simulation.measure import fit_cost_model
from vtcore.simulation.simulate import PolicyRun
from vtcore.simulation.summary import jain_index, spread, summarize
from vtcore.simulation.trace import TraceRequest

Run = Callable[..., PolicyRun]


class TenantFirst(SchedulerPolicy):
    """Tenants in the order of their names."""

    def key(self, view: WaitingView) -> tuple[str]:
        return (view.tenant,)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_jains_index_is_one_for_equal_shares_and_one_nth_when_one_takes_all(n: int) -> None:
    assert jain_index([7.0] * n) == pytest.approx(1.0)
    assert jain_index([7.0] + [0.0] * (n - 1)) == pytest.approx(1 / n)
    assert jain_index([1.0, 3.0]) == pytest.approx(16 / 20)


@pytest.mark.parametrize("shares", [[], [5.0], [0.0, 0.0]])
def test_there_is_no_fairness_without_shares_to_compare(shares: list[float]) -> None:
    assert jain_index(shares) is None


def trace(*tenants: str) -> list[TraceRequest]:
    return [
        TraceRequest(id=str(i), prompt_tokens=4, output_tokens=1, tenant=tenant)
        for i, tenant in enumerate(tenants)
    ]


def test_only_tenants_that_wait_together_are_compared(run: Run) -> None:
    # One row, steps of 1.4 s, in turn a b a b a b. When a step is launched, what it serves waits no more.
    # Both wait in steps 0 to 3; in step 4, b alone; in step 5, nobody.
    summary = summarize(run(trace(*"ababab"), max_num_seqs=1), {})
    a, b = summary["tenants"]["a"], summary["tenants"]["b"]
    assert a["contended_s"] == b["contended_s"] == pytest.approx(4 * 1.4)
    assert a["contended_tokens"] == b["contended_tokens"] == 2 * (4 + 1)
    assert summary["jain_index"] == 1.0


def test_a_policy_that_serves_one_tenant_first_is_unfair_unless_that_is_its_due(run: Run) -> None:
    # Both wait only while a is served: steps 0 and 1.
    done = run(trace(*"ababab"), TenantFirst, max_num_seqs=1)
    summary = summarize(done, {})
    assert summary["tenants"]["b"]["contended_tokens"] == 0
    assert summary["jain_index"] == 0.5
    even = run(trace(*"aabaabaab"), max_num_seqs=1)
    weighted, plain = (summarize(even, weights)["jain_index"] for weights in ({"a": 2.0}, {}))
    assert weighted > 0.98 > plain


def test_a_tenants_first_tokens_are_its_own_requests(run: Run) -> None:
    # a's come after steps 1, 3 and 5 of 1.4 s.
    a = summarize(run(trace(*"ababab"), max_num_seqs=1), {})["tenants"]["a"]
    assert (a["mean_ttft_s"], a["p90_ttft_s"]) == pytest.approx((3 * 1.4, (3 + 0.8 * 2) * 1.4))


def test_one_tenant_competes_with_nobody(run: Run) -> None:
    summary = summarize(run(trace(*"aaa"), max_num_seqs=1), {})
    assert summary["jain_index"] is None
    assert summary["tenants"]["a"]["served_per_s_and_weight"] is None


def test_tokens_found_in_the_cache_count_as_served(run: Run) -> None:
    requests = [
        TraceRequest(id=str(i), prefix=(("p", 8),), prompt_tokens=1, output_tokens=1, tenant=tenant)
        for i, tenant in enumerate("abab")
    ]
    done = run(requests, max_num_seqs=1, max_num_batched_tokens=16)
    assert done.record.cached == [0, 8, 8, 8]
    # Steps 0 and 1: one request of each, 9 prompt tokens and an answer.
    tenants = summarize(done, {})["tenants"]
    assert [tenants[name]["contended_tokens"] for name in "ab"] == [10, 10]


def test_rates_are_tokens_per_virtual_second(run: Run) -> None:
    # See test_simulate: 16 prompt tokens and 3 of answers in 5.1 s.
    requests = [
        TraceRequest(id="a", prompt_tokens=6, output_tokens=2),
        TraceRequest(id="b", arrival_s=0.5, prompt_tokens=10, output_tokens=1),
    ]
    summary = summarize(run(requests), {})
    assert summary["makespan_s"] == pytest.approx(5.1)
    assert summary["output_tokens_per_s"] == pytest.approx(3 / 5.1)
    assert summary["total_tokens_per_s"] == pytest.approx(19 / 5.1)
    assert summary["ttft_s"]["mean"] == pytest.approx((1.6 + 4.6) / 2)
    assert summary["latency_s"]["p50"] == pytest.approx((3.8 + 4.6) / 2)
    assert summary["hit_rate"] == 0.0


def test_percentiles_are_interpolated_and_none_for_nothing() -> None:
    assert spread(np.arange(101.0)) == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert set(spread(np.zeros(0)).values()) == {None}


def works(num: int) -> list[StepWork]:
    random = Random(0)
    return [StepWork(random.randrange(500), random.randrange(16), random.randrange(9000)) for _ in range(num)]


def test_the_fit_finds_the_numbers_that_made_the_times() -> None:
    made = CostModel(fixed_s=0.01, per_prefill_token_s=2e-4, per_decode_row_s=3e-3, per_context_token_s=1e-6)
    steps = works(50)
    found = fit_cost_model(steps, [made.step_s(work) for work in steps], "a machine")
    assert found.terms() == pytest.approx(made.terms(), rel=1e-4)
    assert found.source == "measured: 50 steps of a machine, 0 % off on average"


def test_the_fit_has_no_negative_term() -> None:
    steps = works(50)
    seconds = [0.1 + 1e-4 * work.prefill_tokens - 2e-3 * work.decode_rows for work in steps]
    found = fit_cost_model(steps, seconds, "a machine")
    assert min(found.terms()) == 0
    assert found.per_prefill_token_s == pytest.approx(1e-4, rel=0.2)


def test_a_cost_model_survives_its_file(tmp_path: Path) -> None:
    model = CostModel(fixed_s=0.5, host_s=0.125, source="somewhere")
    write_cost_model(model, str(tmp_path / "cost.json"))
    assert cost_model_from(read_cost_model(str(tmp_path / "cost.json")), "a file") == model


def test_a_partial_cost_model_says_what_is_assumed() -> None:
    model = cost_model_from({"fixed_s": 1, "per_prefill_token_s": 0}, "as given")
    assert model.source == "as given (per_decode_row_s assumed, per_context_token_s assumed)"
    assert model.per_context_token_s == CostModel().per_context_token_s


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"fixed_s": -1}, r"\$\.cost\.fixed_s: -1\.0 is below 0; give seconds"),
        ({"fixed_s": float("inf")}, r"\$\.cost\.fixed_s: inf is not a finite number"),
        ({"fixed_s": "1"}, r"\$\.cost\.fixed_s: '1' is not a number"),
        ({"fixd_s": 1}, r"\$\.cost\.fixd_s: no such option; did you mean 'fixed_s'"),
    ],
)
def test_a_wrong_number_of_a_cost_model_is_named(data: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        cost_model_from(data, "as given")


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_file_that_is_no_cost_model_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(ConfigError, match=r"\$\.cost_file: .*cost\.json is no JSON"):
        read_cost_model(str(tmp_path / "cost.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cost_model(str(tmp_path / "absent.json"))


def test_a_written_cost_model_is_plain_json(tmp_path: Path) -> None:
    write_cost_model(CostModel(), str(tmp_path / "cost.json"))
    assert json.loads((tmp_path / "cost.json").read_text())["fixed_s"] == CostModel().fixed_s
