"""The real core in virtual time: times worked out by hand, lengths, hits, preemptions, orders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError
from vtcore.interfaces.scheduler_policy import PolicyContext, SchedulerPolicy, WaitingView
from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.geometry import Geometry, plan_model
from vtcore.simulation.simulate import PolicyRun, prepare_policies
from vtcore.simulation.trace import TraceRequest
from vtcore.simulation.workloads import WORKLOADS, Lengths, Workload, generate_trace

Run = Callable[..., PolicyRun]


class LastComeFirst(SchedulerPolicy):
    """The youngest request first."""

    def key(self, view: WaitingView) -> tuple[float]:
        return (-view.arrival_s,)


class NoOrder(SchedulerPolicy):
    """Breaks its contract whenever it is asked."""

    static = False

    def order(self, window: object, ctx: PolicyContext) -> list[int]:
        return []


def request(name: str, arrival_s: float, prompt: int, output: int, **more: object) -> TraceRequest:
    return TraceRequest(id=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, **more)  # type: ignore[arg-type]


def workload(kind: str, **more: object) -> Workload:
    small: dict[str, object] = {
        "num_requests": 40,
        "rate": 0.5,
        "prompt": Lengths(low=1, high=30),
        "output": Lengths(low=1, high=12),
        "tenants": {"a": 2.0, "b": 1.0},
        "priorities": {0: 1.0, 5: 1.0},
        "prefix_groups": 3,
        "prefix_tokens": 22,
        "think_s": 3.0,
    }
    return Workload(kind=kind, **{**small, **more})  # type: ignore[arg-type]


def test_times_are_those_worked_out_by_hand(run: Run) -> None:
    # 0.0: a computes 6 tokens, 1.6 s. 1.6: a decodes and b gets the 7 tokens left, 2.2 s: a has both its
    # tokens at 3.8. 3.8: the last 3 tokens of b, 1.3 s: b has its only token at 5.1.
    record = run([request("a", 0.0, 6, 2), request("b", 0.5, 10, 1)]).record
    assert record.first_s == pytest.approx([1.6, 5.1])
    assert record.last_s == pytest.approx([3.8, 5.1])
    assert list(record.gaps_s) == pytest.approx([2.2])
    assert record.busy_s == pytest.approx(5.1)
    assert (record.num_steps, record.prefilled_tokens) == (3, 16)


def test_every_row_pays_for_the_context_that_it_reads(run: Run) -> None:
    # Chunks that end at 8 and 10, then one decoding row that reads 11: 29 tokens of context.
    cost = CostModel(fixed_s=0, per_prefill_token_s=0, per_decode_row_s=0, per_context_token_s=1)
    assert run([request("a", 0.0, 10, 2)], cost=cost).record.last_s == [8 + 10 + 11]


def test_the_clock_waits_for_the_next_arrival(run: Run) -> None:
    record = run([request("a", 0.0, 5, 1), request("b", 100.0, 5, 1)]).record
    assert record.first_s == pytest.approx([1.5, 101.5])
    assert record.busy_s == pytest.approx(3.0)


def test_a_second_step_in_flight_hides_the_hosts_time(run: Run) -> None:
    cost = CostModel(fixed_s=1, per_prefill_token_s=0, per_decode_row_s=0, per_context_token_s=0, host_s=0.25)
    one, two = (run([request("a", 0.0, 8, 9)], cost=cost, depth=depth).record for depth in (1, 2))
    assert one.last_s == pytest.approx([9 * 1.25])
    assert two.last_s == pytest.approx([9 + 0.25])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_request_gets_its_answer_and_every_prompt_token_is_found_or_computed(
    kind: str, depth: int, run: Run
) -> None:
    trace = generate_trace(workload(kind))
    done = run(trace, depth=depth, max_num_seqs=8)
    record = done.record
    assert record.num_output == [one.output_tokens for one in trace]
    assert done.counters["preemptions"] == 0
    assert record.prefilled_tokens + sum(record.cached) == sum(record.prompt_len)
    assert record.prefilled_tokens == done.counters["prefilled_tokens"]
    assert sum(record.cached) == done.counters["hit_tokens"]
    assert len(record.gaps_s) == sum(record.num_output) - len(trace)


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_requests_get_their_whole_answers(depth: int, run: Run) -> None:
    trace = generate_trace(
        workload("bursty", prompt=Lengths(low=10, high=30), output=Lengths(low=8, high=30))
    )
    done = run(trace, depth=depth, max_num_seqs=6, num_blocks=24)
    assert done.counters["preemptions"] > 0
    assert done.record.num_output == [one.output_tokens for one in trace]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_next_turn_finds_the_whole_blocks_of_the_last_one(depth: int, run: Run) -> None:
    first = request("one", 0.0, 10, 7)
    second = request("two", 0.0, 3, 1, follows="one", after_s=2.0)
    record = run([first, second], depth=depth).record
    # 17 tokens are known, but nobody computes what follows the last one.
    assert record.cached == [0, 16]
    assert record.prompt_len == [10, 20]
    assert record.arrival_s[1] == pytest.approx(record.last_s[0] + 2.0)


def test_a_follower_does_not_come_before_its_own_time(run: Run) -> None:
    record = run([request("one", 0.0, 4, 1), request("two", 50.0, 4, 1, follows="one")]).record
    assert record.arrival_s == [0.0, 50.0]


def test_a_group_shares_its_blocks_and_a_salt_keeps_them_apart(run: Run) -> None:
    def hits(**more: Any) -> list[int]:
        group = (("system", 16),)
        trace = [request(str(i), 60.0 * i, 3, 1, prefix=group) for i in range(2)]
        return run([trace[0], evolve(trace[1], **more)]).record.cached

    assert hits() == [0, 16]
    assert hits(prefix=(("system", 9),)) == [0, 8]
    assert hits(prefix=(("other", 16),)) == [0, 0]
    assert hits(cache_salt="b") == [0, 0]


def test_ids_given_in_the_trace_are_the_prompt(run: Run) -> None:
    ids = tuple(range(9))
    record = run([request(str(i), 60.0 * i, 0, 1, prompt_token_ids=ids) for i in range(2)]).record
    assert (record.prompt_len, record.cached) == ([9, 9], [0, 8])


def test_nothing_is_found_without_prefix_caching(run: Run) -> None:
    done = run(generate_trace(workload("shared-prefix")), enable_prefix_caching=False)
    assert done.record.cached == [0] * 40


def test_a_policy_decides_who_is_first(run: Run) -> None:
    trace = [request(str(i), 0.1 * i, 8, 3) for i in range(4)]
    fair = run(trace, max_num_seqs=1).record.first_s
    reverse = run(trace, LastComeFirst, max_num_seqs=1).record.first_s
    assert sorted(range(4), key=fair.__getitem__) == [0, 1, 2, 3]
    assert sorted(range(4), key=reverse.__getitem__) == [0, 3, 2, 1]


def test_requests_that_come_at_once_are_served_in_the_order_of_the_trace(run: Run) -> None:
    first = run([request(str(i), 0.0, 1, 1) for i in range(12)], max_num_seqs=1).record.first_s
    assert first == sorted(first)


def test_breaches_are_counted(run: Run) -> None:
    done = run([request(str(i), 0.0, 4, 2) for i in range(6)], NoOrder)
    assert done.breaches > 0
    assert done.record.num_output == [2] * 6


def test_a_hybrids_own_pools_are_simulated(run: Run, tmp_path: Path) -> None:
    make_checkpoint("qwen3_5_dense", "tiny", tmp_path / "model")
    options = UserOptions(model=str(tmp_path / "model"), enable_prefix_caching=True, max_num_seqs=4)
    geometry = plan_model(options, {}, Environment())
    assert sorted(pool.is_slot for pool in geometry.plan.pools) == [False, True]
    trace = generate_trace(workload("multi-turn", prompt=Lengths(low=80, high=200)))
    done = run(trace, geometry=geometry)
    assert done.record.num_output == [one.output_tokens for one in trace]
    assert done.record.prefilled_tokens + sum(done.record.cached) == sum(done.record.prompt_len)
    assert done.counters["state_checkpoints"] > 0
    assert sum(done.record.cached) > 0


def test_policy_args_reach_the_policies_that_take_them(engine: Callable[..., Geometry]) -> None:
    trace = [request("a", 0.0, 4, 1, policy_args={"x": 1}, place="t.jsonl:1")]
    with pytest.raises(
        ConfigError,
        match=r"t\.jsonl:1: policy_args are given, and fcfs of the comparison takes none; leave them out",
    ):
        prepare_policies(engine(), {"fcfs": {}}, trace)


def test_a_plain_decoder_is_simulated_where_torch_is_not() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from vtcore.cli.main import main\n"
        "sys.exit(main(['simulate', '--workload', 'poisson', '--requests', '3', '--policy', 'fcfs,lpm']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TTFT mean ms" in done.stdout


def test_a_gpu_is_simulated_where_the_cache_has_a_size(
    engine: Callable[..., Geometry], tmp_path: Path
) -> None:
    make_checkpoint("qwen3_5_dense", "tiny", tmp_path / "tiny")
    model = UserOptions(model=str(tmp_path / "tiny"), device="cuda")
    refused = pytest.raises(ConfigError, match=r"^\$\.device: 'cuda' sizes the cache by its memory, which is")
    with refused:
        engine(device="cuda", num_blocks=None)
    with refused:
        plan_model(model, {}, Environment(gpus_hidden=True))
    planned = engine(device="cuda", num_blocks=40, batch_invariant=True, max_num_batched_tokens=8)
    assert planned.plan.num_blocks == 40
    assert planned.plan.chunk == 64
    assert planned.config.scheduler.max_num_batched_tokens == planned.config.scheduler.max_num_seqs + 63
    assert plan_model(evolve(model, num_blocks=9), {}, Environment(gpus_hidden=True)).plan.num_blocks == 9
