"""A window shorter than the prompt gives what transformers gives, and blocks behind it are used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mistral_oracle import VOCAB, build_oracle, oracle_logits, random_ids, tiny_config

from vtcore import LLM, SamplingParams
from vtcore.outputs import RequestOutput
from vtcore.testing.exact_casts import float32_casts_lifted

WINDOW = 5
BLOCK = 4
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * BLOCK, 3 * WINDOW + 5, 61)
NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, logprobs=2, ignore_eos=True)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return build_oracle(tiny_config(sliding_window=WINDOW))


@pytest.fixture(scope="module")
def checkpoint(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint as transformers writes it."""
    folder = tmp_path_factory.mktemp("mistral")
    oracle.save_pretrained(folder)
    return folder


def load(checkpoint: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {
        "dtype": "float64",
        "block_size": BLOCK,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "skip_tokenizer_init": True,
    }
    return LLM(checkpoint, **{**given, **options})


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with load(checkpoint, enable_prefix_caching=False) as loaded:
        yield loaded


def generate(llm: LLM, *prompts: list[int], params: SamplingParams = GREEDY) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def assert_as_transformers(oracle: Any, output: RequestOutput) -> None:
    """Every token is the likeliest after the ones before it, with the reference's log probability."""
    prompt, sample = list(output.prompt_token_ids), output.outputs[0]
    tokens = list(sample.token_ids)
    assert len(tokens) == NUM_TOKENS
    wanted = oracle_logits(oracle, [*prompt, *tokens][:-1])[len(prompt) - 1 :].log_softmax(-1)
    assert wanted.argmax(-1).tolist() == tokens
    for row, entry in zip(wanted, sample.logprobs, strict=True):
        for token, found in entry.items():
            assert abs(found.logprob - float(row[token])) <= 1e-8


def assert_same(found: RequestOutput, wanted: RequestOutput) -> None:
    one, other = found.outputs[0], wanted.outputs[0]
    assert one.token_ids == other.token_ids
    for left, right in zip(one.logprobs, other.logprobs, strict=True):
        assert left.keys() == right.keys()
        assert all(abs(left[token].logprob - right[token].logprob) <= 1e-8 for token in left)


@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_around_the_window_give_transformers_tokens_and_logprobs(
    llm: LLM, oracle: Any, length: int
) -> None:
    (output,) = generate(llm, random_ids(length))
    assert_as_transformers(oracle, output)


def test_transformers_counts_the_querys_own_position_into_the_window() -> None:
    """With one layer, changing position p changes the logits up to p + W - 1: `Window(W)`, no off-by-one."""
    single = build_oracle(tiny_config(sliding_window=WINDOW, num_hidden_layers=1))
    ids = random_ids(20)
    other = [*ids]
    other[6] = (ids[6] + 1) % VOCAB
    changed = (oracle_logits(single, ids) != oracle_logits(single, other)).any(-1).nonzero().view(-1)
    assert changed.tolist() == list(range(6, 6 + WINDOW))


def test_greedy_tokens_equal_transformers_generate_with_its_own_cache(llm: LLM, oracle: Any) -> None:
    prompt = random_ids(3 * WINDOW + 5)
    ids = torch.tensor([prompt])
    with float32_casts_lifted(), torch.inference_mode():
        wanted = oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
    (output,) = generate(llm, prompt)
    assert list(output.outputs[0].token_ids) == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("budget", [1, 3, BLOCK, WINDOW + 1])
def test_a_chunked_prompt_gives_what_a_whole_one_gives(llm: LLM, checkpoint: Path, budget: int) -> None:
    prompts = [random_ids(length) for length in LENGTHS[1:6]]
    wanted = generate(llm, *prompts)
    with load(checkpoint, max_num_seqs=1, max_num_batched_tokens=budget) as chunked:
        for found, whole in zip(generate(chunked, *prompts), wanted, strict=True):
            assert_same(found, whole)


def test_prefix_hits_give_what_a_cold_start_gives(llm: LLM, checkpoint: Path) -> None:
    shared = random_ids(3 * WINDOW + 5)
    prompts = [
        shared,
        [*shared, *random_ids(7, seed=1)],
        [*shared, *random_ids(2, seed=2)],
        shared[: 3 * BLOCK],
    ]
    with load(checkpoint, enable_prefix_caching=True) as caching:
        for again in (False, True):
            for ids, cold in zip(prompts, generate(llm, *prompts), strict=True):
                (warm,) = generate(caching, ids)
                assert_same(warm, cold)
                if again:
                    # Whole blocks, and one token at least is left to compute.
                    assert warm.num_cached_tokens == (len(ids) - 1) // BLOCK * BLOCK


def test_a_second_turn_starts_where_the_first_one_ended(llm: LLM, checkpoint: Path) -> None:
    with load(checkpoint, enable_prefix_caching=True) as caching:
        prompt, computed = random_ids(3 * WINDOW + 5), 0
        for turn in range(4):
            (warm,), (cold,) = generate(caching, prompt), generate(llm, prompt)
            assert_same(warm, cold)
            assert warm.num_cached_tokens == computed // BLOCK * BLOCK
            # The last token of an answer is sampled but not yet computed.
            computed = len(prompt) + NUM_TOKENS - 1
            prompt = [*prompt, *warm.outputs[0].token_ids, *random_ids(3, seed=turn)]


def test_blocks_behind_the_window_are_used_again(checkpoint: Path) -> None:
    """The pool has far fewer blocks than the sequence, so it ends only if blocks come back."""
    params = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    with load(checkpoint, max_num_seqs=1, max_num_batched_tokens=BLOCK, enable_prefix_caching=False) as small:
        metrics = {metric.name: metric.value for metric in small.get_metrics()}
        blocks = metrics["vtcore_kv_blocks"]
        assert blocks == -(-(WINDOW - 1 + BLOCK) // BLOCK) + 1
        (output,) = generate(small, random_ids(61), params=params)
        assert len(output.outputs[0].token_ids) == 150
        assert blocks * BLOCK < 61 + 150


def test_a_prefix_whose_beginning_is_gone_is_still_hit(llm: LLM, checkpoint: Path) -> None:
    """Three blocks hold the end of a turn and no more; the next turn needs no more."""
    prompt = random_ids(3 * WINDOW + 5)
    options = {"max_num_seqs": 1, "max_num_batched_tokens": BLOCK, "enable_prefix_caching": True}
    with load(checkpoint, **options) as small:
        (first,) = generate(small, prompt)
        prompt = [*prompt, *first.outputs[0].token_ids]
        (warm,), (cold,) = generate(small, prompt), generate(llm, prompt)
        assert_same(warm, cold)
        assert warm.num_cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK > 3 * BLOCK
        # Another sequence takes the blocks, so that nothing is left to start from.
        generate(small, random_ids(4 * BLOCK, seed=5))
        (warm,), (cold,) = generate(small, prompt), generate(llm, prompt)
        assert_same(warm, cold)
        assert warm.num_cached_tokens == 0
