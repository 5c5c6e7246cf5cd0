"""What users see of the prefix cache: hits by request and in all, salts, and the reset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vtcore import LLM, SamplingParams
from vtcore.config.options import UserOptions
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import build_frontend
from vtcore.errors import EngineClosedError
from vtcore.internals import Internals
from vtcore.loader import load_core
from vtcore.outputs import RequestOutput
from vtcore.request_handling import Handling
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.schedules import toy_registry

BLOCK = 4
PROMPT = tuple(range(10))
FULL = 8
"""Tokens of PROMPT in full blocks."""
PLAIN, HYBRID = ("whole",), ("whole", "state")


@pytest.fixture(params=[(PLAIN, 1), (HYBRID, 1), (HYBRID, 2)], ids=["plain", "hybrid", "hybrid-depth2"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    parts, depth = request.param
    built = toy_engine(parts, depth)
    yield built
    built.close()


def toy_engine(parts: tuple[str, ...], depth: int = 1, **options: Any) -> Engine:
    given: dict[str, Any] = {
        "dtype": "float64",
        "enable_prefix_caching": True,
        "block_size": BLOCK,
        "num_blocks": 32,
    }
    given |= {"max_num_seqs": 4, **options}
    config = {"model_type": "toy", "vocab_size": 16, "parts": list(parts)}
    internals = Internals(depth=depth, check=check_invariants)
    return build_frontend(
        load_core(
            UserOptions(**given),
            hf_config=config,
            tensors={},
            registry=toy_registry(),
            internals=internals,
        )
    )


def run(
    engine: Engine, prompt: tuple[int, ...] = PROMPT, salt: str | None = None, **params: Any
) -> RequestOutput:
    sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 3, **params})
    [output] = engine.generate(
        [({"prompt_token_ids": prompt}, sampling)], handling=[Handling(cache_salt=salt)]
    )
    return output


def finish(engine: Engine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step(final_only=True)
    return outputs


def test_a_hit_is_reported_and_changes_nothing(engine: Engine) -> None:
    cold, warm = run(engine), run(engine)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, FULL)
    assert warm.outputs == cold.outputs


def test_prefixes_are_shared_only_within_a_salt(engine: Engine) -> None:
    outputs = [run(engine, salt=salt) for salt in (None, "a", "b", "a", None, "b", "ab")]
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 0, FULL, FULL, FULL, 0]
    assert len({output.outputs for output in outputs}) == 1


def test_all_samples_of_a_prompt_have_its_hits_reported_once(engine: Engine) -> None:
    params: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 7}
    cold, warm = run(engine, **params), run(engine, **params)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, FULL)
    assert warm.outputs == cold.outputs
    assert run(engine, prompt_logprobs=1).num_cached_tokens == 0


def test_nothing_from_before_a_reset_is_served_after_it(engine: Engine) -> None:
    cold = run(engine)
    assert run(engine).num_cached_tokens == FULL
    for _ in range(2):
        engine.reset_prefix_cache()
        engine.reset_prefix_cache()
        again = run(engine)
        assert again.num_cached_tokens == 0
        assert again.outputs == cold.outputs
        assert run(engine).num_cached_tokens == FULL
    check_idle(engine.loaded.core)


@pytest.mark.parametrize(("num_steps", "n"), [(0, 3), (1, 1), (1, 3), (2, 3), (5, 1)])
def test_requests_go_on_through_a_reset_and_what_they_had_is_not_served(
    engine: Engine, num_steps: int, n: int
) -> None:
    params: dict[str, Any] = {"max_tokens": 12, "n": n, "temperature": 1.0, "seed": 3}
    undisturbed = run(engine, **params)
    engine.reset_prefix_cache()
    sampling = SamplingParams(ignore_eos=True, **params)
    engine.add_request({"prompt_token_ids": PROMPT}, sampling)
    early: list[RequestOutput] = []
    for _ in range(num_steps):
        early += engine.step(final_only=True)
    engine.reset_prefix_cache()
    counters = engine.loaded.core.scheduler.counters
    before = counters.prefilled_tokens
    [output] = early + finish(engine)
    computed_after = counters.prefilled_tokens - before
    assert output.outputs == undisturbed.outputs
    longer = PROMPT + output.outputs[0].token_ids
    found = run(engine, longer).num_cached_tokens
    # Only a sample that computed its whole prompt after the reset (one that took the place of the first, or
    # that found no row to fork into) may serve others; without steps before it, all of them did.
    assert found == 0 or computed_after >= len(PROMPT)
    if not num_steps:
        assert found > 0
    check_idle(engine.loaded.core)


def test_a_request_that_waits_gets_no_hit_from_before_a_reset(engine: Engine) -> None:
    run(engine)
    engine.add_request({"prompt_token_ids": PROMPT}, SamplingParams(max_tokens=2))
    engine.reset_prefix_cache()
    [output] = finish(engine)
    assert output.num_cached_tokens == 0


def test_a_reset_without_a_cache_is_no_fault() -> None:
    engine = toy_engine(PLAIN, enable_prefix_caching=False)
    try:
        first = run(engine)
        engine.reset_prefix_cache()
        assert run(engine).outputs == first.outputs
    finally:
        engine.close()
    with pytest.raises(EngineClosedError):
        engine.reset_prefix_cache()


@pytest.mark.parametrize("parts", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_a_preempted_request_reports_what_its_first_start_found(parts: tuple[str, ...]) -> None:
    engine = toy_engine(parts, num_blocks=8)
    try:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=12)
        prompts = [tuple(range(i, i + 10)) for i in range(4)]
        outputs = engine.generate([({"prompt_token_ids": prompt}, sampling) for prompt in prompts])
        stats = engine.stats()
        assert stats["preemptions"] > 0
        assert stats["preempted_queried_tokens"] > 0
        assert [output.num_cached_tokens for output in outputs] == [0] * 4
        assert stats["hit_tokens"] == 0
        assert all(output.num_cached_tokens <= FULL for output in (run(engine, prompt) for prompt in prompts))
    finally:
        engine.close()


def test_the_real_thing(tiny_checkpoint: Path, engine_options: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=8)
    system = "You are a helpful assistant who answers at length. " * 3
    prompts = [system + "Hi.", system + "Bye."]
    options = {**engine_options, "num_blocks": 96, "max_model_len": 160}
    with LLM(tiny_checkpoint, **options) as llm:
        cold = llm.generate(prompts, params, use_tqdm=False)
    with LLM(tiny_checkpoint, enable_prefix_caching=True, **options) as llm:
        assert llm.config.cache.num_state_checkpoints == 4 * engine_options["max_num_seqs"]
        grid = llm.engine.loaded.plan.grid
        for salts, hits in ((None, (0, 0)), (None, (1, 1)), (["a", "b"], (0, 0)), (["a", "b"], (1, 1))):
            warm = llm.generate(prompts, params, cache_salt=salts, use_tqdm=False)
            assert [output.outputs for output in warm] == [output.outputs for output in cold]
            for output, is_hit in zip(warm, hits, strict=True):
                whole = (len(output.prompt_token_ids) - 1) // grid * grid
                assert output.num_cached_tokens == is_hit * whole
        llm.reset_prefix_cache()
        [again] = llm.generate(prompts[0], params, use_tqdm=False)
        assert again.num_cached_tokens == 0
        assert again.outputs == cold[0].outputs
