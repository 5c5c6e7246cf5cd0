"""Metrics move with what the engine really does, and are named as Prometheus would name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.engine.metrics import Metric, collect_metrics
from vtcore.errors import EngineClosedError
from vtcore.kv_cache.specs import FullAttentionSpec
from vtcore.loader import load_core
from vtcore.scheduling.policies.priority import PriorityPolicy
from vtcore.testing.schedules import toy_registry

PROMPT = "The quick brown fox"


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})


def values(llm: LLM) -> dict[str, int]:
    """Name -> value; of the finished requests, with the reason after the name."""
    return {key(metric): metric.value for metric in llm.get_metrics()}


def key(metric: Metric) -> str:
    further = [value for name, value in metric.labels.items() if name != "model_name"]
    return " ".join([metric.name, *further])


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_names_kinds_labels_and_helps_have_one_form(llm: LLM, tiny_checkpoint: Path) -> None:
    metrics = llm.get_metrics()
    assert len({key(metric) for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"vtcore_[a-z0-9_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.labels["model_name"] == str(tiny_checkpoint)
        assert metric.help.endswith(".")
        assert metric.value >= 0
    with pytest.raises(AttributeError):
        metrics[0].value = 1  # type: ignore[misc]


def test_the_served_name_is_the_label(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> None:
    with LLM(tiny_checkpoint, served_model_name=["short"], **engine_options) as llm:
        assert {metric.labels["model_name"] for metric in llm.get_metrics()} == {"short"}


def test_tokens_and_outcomes_are_counted(llm: LLM) -> None:
    before = values(llm)
    outputs = llm.generate([PROMPT, "a"], [greedy(max_tokens=5), greedy(max_tokens=3, n=2)], use_tqdm=False)
    news = risen(before, values(llm))
    assert news["vtcore_prompt_tokens_total"] == sum(len(output.prompt_token_ids) for output in outputs)
    assert news["vtcore_generation_tokens_total"] == 5 + 3 + 3
    assert news["vtcore_requests_finished_total length"] == 3
    assert news["vtcore_steps_total"] >= 5
    assert not any(name.endswith(("stop", "abort")) for name in news)


def test_a_stop_string_counts_at_once_and_only_kept_tokens_do(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, greedy(max_tokens=12), use_tqdm=False)
    before = values(llm)
    [output] = llm.generate(PROMPT, greedy(max_tokens=12, stop=free.outputs[0].text[4:7]), use_tqdm=False)
    after = values(llm)
    news = risen(before, after)
    assert output.outputs[0].finish_reason == "stop"
    assert news["vtcore_requests_finished_total stop"] == 1
    assert news["vtcore_generation_tokens_total"] == len(output.outputs[0].token_ids) < 12
    assert after["vtcore_requests_running"] == after["vtcore_requests_waiting"] == 0


def test_an_abort_is_counted(llm: LLM) -> None:
    before = values(llm)
    llm.engine.abort(llm.engine.add_request(PROMPT, greedy(n=2)))
    assert risen(before, values(llm))["vtcore_requests_finished_total abort"] == 2


def test_gauges_show_running_waiting_and_memory_and_fall_again(
    llm: LLM, engine_options: dict[str, Any]
) -> None:
    idle = values(llm)
    ids = [llm.engine.add_request(PROMPT, greedy(max_tokens=4)) for _ in range(6)]
    queued = values(llm)
    assert (queued["vtcore_requests_running"], queued["vtcore_requests_waiting"]) == (0, 6)
    llm.engine.step()
    busy = values(llm)
    most = engine_options["max_num_seqs"]
    assert 1 <= busy["vtcore_requests_running"] <= most
    assert busy["vtcore_requests_running"] + busy["vtcore_requests_waiting"] == 6
    assert busy["vtcore_kv_blocks 0 whole"] == engine_options["num_blocks"]
    assert 0 < busy["vtcore_kv_blocks_used 0 whole"] <= engine_options["num_blocks"]
    assert busy["vtcore_kv_slots 1 slot"] == most
    assert busy["vtcore_kv_slots_used 1 slot"] == busy["vtcore_requests_running"]
    finished = []
    while llm.engine.has_unfinished_requests:
        finished += [output.request_id for output in llm.engine.step(final_only=True)]
    assert sorted(finished) == sorted(ids)
    after = values(llm)
    assert {name: after[name] for name in after if not name.split()[0].endswith("_total")} == {
        name: idle[name] for name in idle if not name.split()[0].endswith("_total")
    }


def test_bytes_are_the_plans(llm: LLM) -> None:
    plan, shown = llm.engine.loaded.plan, values(llm)
    assert shown["vtcore_weight_bytes"] == plan.weight_bytes > 0
    assert shown["vtcore_kv_pool_bytes 0 whole"] == plan.pools[0].num_bytes > 0
    assert shown["vtcore_kv_pool_bytes 1 slot"] == plan.pools[1].num_bytes > 0


def test_preemptions_are_counted(llm: LLM) -> None:
    before = values(llm)
    prompts = ["mate " * i for i in range(1, 8)]
    llm.generate(prompts, greedy(max_tokens=18), use_tqdm=False)
    assert risen(before, values(llm))["vtcore_preemptions_total"] > 0


@pytest.fixture
def toy() -> Iterator[Engine]:
    """A plain decoder with prefix caching and so few blocks that four requests of ten tokens press."""
    options = UserOptions(
        dtype="float64", block_size=4, num_blocks=12, max_num_seqs=4, enable_prefix_caching=True
    )
    config = {"model_type": "toy", "vocab_size": 16, "parts": ["whole"]}
    engine = build_frontend(load_core(options, hf_config=config, tensors={}, registry=toy_registry()))
    yield engine
    engine.close()


def toy_values(engine: Engine) -> dict[str, int]:
    return {key(metric): metric.value for metric in collect_metrics(engine)}


def test_prefix_hits_are_counted_in_tokens_with_what_was_looked_for(toy: Engine) -> None:
    shown = [toy_values(toy)]
    for _ in range(2):
        toy.generate([({"prompt_token_ids": range(10)}, greedy(max_tokens=2))])
        shown.append(toy_values(toy))
    cold, warm = (risen(*shown[i : i + 2]) for i in range(2))
    assert cold["vtcore_prefix_cache_queries_total"] == warm["vtcore_prefix_cache_queries_total"] == 10
    assert not any(name.startswith("vtcore_prefix_cache_hit") for name in cold)
    assert warm["vtcore_prefix_cache_hits_total"] == 8
    assert warm["vtcore_prefix_cache_hit_requests_total"] == 1
    assert not any("preempted" in name for name in {**cold, **warm})


def test_lookups_after_a_preemption_are_counted_apart(toy: Engine) -> None:
    before = toy_values(toy)
    toy.generate([({"prompt_token_ids": range(i, i + 10)}, greedy(max_tokens=14)) for i in range(4)])
    news = risen(before, toy_values(toy))
    assert news["vtcore_preemptions_total"] > 0
    assert news["vtcore_prefix_cache_queries_total"] == 40
    assert news["vtcore_prefix_cache_preempted_queries_total"] >= 10 * news["vtcore_preemptions_total"]
    assert "vtcore_prefix_cache_hits_total" not in news


def test_samples_that_take_over_a_prompt_are_counted(toy: Engine) -> None:
    before = toy_values(toy)
    toy.generate([({"prompt_token_ids": range(10)}, greedy(max_tokens=2, n=3))])
    assert risen(before, toy_values(toy))["vtcore_forks_total"] == 2


def test_kept_states_are_counted(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> None:
    more: dict[str, Any] = {"enable_prefix_caching": True, "num_state_checkpoints": 2}
    more |= {"num_blocks": 64, "max_model_len": 192}
    with LLM(tiny_checkpoint, **{**engine_options, **more}) as llm:
        before = values(llm)
        ids = [1] * (llm.engine.loaded.plan.grid + 1)
        llm.generate({"prompt_token_ids": ids}, greedy(max_tokens=2), use_tqdm=False)
        assert risen(before, values(llm))["vtcore_state_checkpoints_total"] >= 1
        after = values(llm)
        assert after["vtcore_kv_slots 1 slot"] == engine_options["max_num_seqs"]
        assert after["vtcore_kv_slots_used 1 slot"] == 0


def test_a_closed_engine_has_no_metrics(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> None:
    llm = LLM(tiny_checkpoint, **engine_options)
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.get_metrics()


def test_breaches_of_the_policy_and_of_a_cache_spec_are_counted(
    tiny_checkpoint: Path, engine_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_key(*args: object) -> tuple[int, ...]:
        raise RuntimeError("no idea")

    options = {**engine_options, "scheduling_policy": "priority", "enable_prefix_caching": True}
    options |= {"num_blocks": 32, "max_model_len": 96}
    with LLM(tiny_checkpoint, **options) as llm:
        before = values(llm)
        monkeypatch.setattr(PriorityPolicy, "key", no_key)
        monkeypatch.setattr(FullAttentionSpec, "cuts", lambda *args: (0.5,))
        llm.generate(["a", "b"], greedy(max_tokens=2), use_tqdm=False)
        news = risen(before, values(llm))
        assert news["vtcore_policy_breaches_total"] == 2
        # One group of each request is asked at its admission.
        assert news["vtcore_kv_cache_spec_breaches_total"] == 2
        assert before["vtcore_policy_breaches_total"] == before["vtcore_kv_cache_spec_breaches_total"] == 0
