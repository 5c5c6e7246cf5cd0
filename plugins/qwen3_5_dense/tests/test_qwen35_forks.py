"""Samples of one prompt share its computation, and in float64 each is what it would be on its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.outputs import CompletionOutput
from vtcore.request import TokensPrompt, child_seed
from vtcore.testing.invariants import check_idle

OPTIONS: dict[str, Any] = {
    "dtype": "float64",
    "block_size": 32,
    "num_blocks": 24,
    "max_model_len": 256,
    "max_num_seqs": 6,
}
SAMPLED = SamplingParams(temperature=2.0, seed=11, max_tokens=4, logprobs=2, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("forks") / "checkpoint"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), max_num_batched_tokens=64, **OPTIONS) as llm:
        yield llm
        llm.engine.step()
        check_idle(llm.engine.loaded.core)


def prompt(length: int) -> TokensPrompt:
    return {"prompt_token_ids": [(7 * i + i * i) % 90 for i in range(length)]}


def assert_same(one: CompletionOutput, other: CompletionOutput) -> None:
    assert one.token_ids == other.token_ids
    assert one.finish_reason == other.finish_reason
    assert one.logprobs is not None
    assert other.logprobs is not None
    for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
        assert ours.keys() == theirs.keys()
        for token, entry in ours.items():
            assert abs(entry.logprob - theirs[token].logprob) <= 1e-8
            assert entry.rank == theirs[token].rank


def alone(llm: LLM, length: int, params: SamplingParams, index: int) -> CompletionOutput:
    """Sample `index` of a prompt as a request of its own."""
    assert params.seed is not None
    own = evolve(params, n=1, seed=child_seed(params.seed, index))
    [output] = llm.generate(prompt(length), own, use_tqdm=False)
    return output.outputs[0]


@pytest.mark.parametrize(("n", "length"), [(1, 70), (2, 1), (3, 64), (5, 70)])
def test_n_samples_equal_as_many_separate_requests(llm: LLM, n: int, length: int) -> None:
    counters = llm.engine.loaded.core.scheduler.counters
    before = (counters.forks, counters.prefilled_tokens)
    [output] = llm.generate(prompt(length), evolve(SAMPLED, n=n), use_tqdm=False)
    assert (counters.forks - before[0], counters.prefilled_tokens - before[1]) == (n - 1, length)
    assert len({sample.token_ids for sample in output.outputs}) == n
    for index, sample in enumerate(output.outputs):
        assert_same(sample, alone(llm, length, SAMPLED, index))


def test_samples_with_penalties_keep_histories_of_their_own(llm: LLM) -> None:
    params = evolve(SAMPLED, presence_penalty=0.8, repetition_penalty=1.5)
    [output] = llm.generate(prompt(70), evolve(params, n=2), use_tqdm=False)
    for index, sample in enumerate(output.outputs):
        assert_same(sample, alone(llm, 70, params, index))


def test_aborted_samples_take_nothing_from_other_requests(llm: LLM) -> None:
    engine = llm.engine
    wanted = alone(llm, 100, SAMPLED, 0)
    for steps in (1, 2):
        doomed = engine.add_request(prompt(100), evolve(SAMPLED, n=3))
        kept = engine.add_request(prompt(100), evolve(SAMPLED, seed=child_seed(11, 0)))
        outputs = [output for _ in range(steps) for output in engine.step(final_only=True)]
        engine.abort(doomed)
        while engine.has_unfinished_requests:
            outputs += engine.step(final_only=True)
        [found] = [output for output in outputs if output.request_id == kept]
        assert_same(found.outputs[0], wanted)


def test_samples_of_a_prompt_that_is_cached_fork_from_its_end(llm: LLM, checkpoint: Path) -> None:
    with LLM(str(checkpoint), enable_prefix_caching=True, **OPTIONS) as warm:
        counters = warm.engine.loaded.core.scheduler.counters
        for cached in (0, 64):
            [output] = warm.generate(prompt(100), evolve(SAMPLED, n=2), use_tqdm=False)
            assert output.num_cached_tokens == cached
            for index, sample in enumerate(output.outputs):
                assert_same(sample, alone(llm, 100, SAMPLED, index))
        assert counters.forks == 2
        assert counters.prefilled_tokens == 100 + 36
