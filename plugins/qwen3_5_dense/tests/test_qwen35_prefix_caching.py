"""A prefix hit changes nothing: in float64 warm equals cold, and states are kept where requests part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from attrs import define
from qwen35_oracle import build_oracle, tiny_text_config

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, FinishRequest
from vtcore.interfaces.batch import EngineRequest, RowParams, TokenLogprobs
from vtcore.internals import Internals
from vtcore.loader import LoadedCore, load_core
from vtcore.plugins import build_registry
from vtcore.testing.invariants import check_invariants

VOCAB = 24
CONFIG = tiny_text_config(vocab_size=VOCAB, max_position_embeddings=1024)
REGISTRY = build_registry()
GRID = 64
"""lcm of the block size and the chunk of the gated delta rule."""


@cache
def tensors() -> dict[str, object]:
    return dict(build_oracle(CONFIG).state_dict())


def load(depth: int = 1, **options: object) -> LoadedCore:
    settings: dict[str, object] = {
        "dtype": "float64",
        "max_model_len": 640,
        "num_blocks": 160,
        "block_size": 32,
        "max_num_seqs": 4,
        **options,
    }
    return load_core(
        UserOptions(**settings),  # type: ignore[arg-type]
        hf_config=CONFIG,
        tensors=tensors(),  # type: ignore[arg-type]
        registry=REGISTRY,
        environment=Environment(),
        internals=Internals(depth=depth, check=check_invariants),
    )


@define
class Answer:
    """What one request gave."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    cached: int


def ask(
    loaded: LoadedCore, prompts: Sequence[Sequence[int]], max_tokens: int = 5, first: int = 0
) -> list[Answer]:
    """Run prompts together; request i has the seed first + i."""
    core = loaded.core
    answers = [Answer([], [], 0) for _ in prompts]
    for index, prompt in enumerate(prompts):
        params = RowParams(temperature=index % 2, seed=first + index, logprobs=2)
        core.inbox.append(AddRequest(EngineRequest(
            id=f"{index}", prompt_token_ids=tuple(prompt), params=params, max_tokens=max_tokens
        )))  # fmt: skip
    while core.has_work:
        for update in core.step():
            answer = answers[int(update.id)]
            answer.tokens += update.tokens
            answer.logprobs += update.logprobs
            answer.cached = update.num_cached_tokens
    return answers


def text(length: int, salt: int) -> list[int]:
    return [(salt * 7 + 5 * i + i * i * (salt + 1)) % VOCAB for i in range(length)]


def assert_same(warm: Sequence[Answer], cold: Sequence[Answer]) -> None:
    for one, other in zip(warm, cold, strict=True):
        assert one.tokens == other.tokens
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            assert a.top_ids == b.top_ids
            assert abs(a.logprob - b.logprob) <= 1e-8


@pytest.fixture(scope="module")
def cold() -> Iterator[LoadedCore]:
    loaded = load(enable_prefix_caching=False)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_turns_of_a_chat_begin_within_one_grid_interval_of_what_is_known(
    cold: LoadedCore, depth: int
) -> None:
    warm = load(depth, enable_prefix_caching=True)
    prompt = text(50, 1)
    for turn in range(3):
        known = len(prompt)
        (got,), (wanted,) = ask(warm, [prompt], 40, turn), ask(cold, [prompt], 40, turn)
        assert_same([got], [wanted])
        assert wanted.cached == 0
        if turn:
            # All but the last token of the turn before was computed; the new words were not.
            assert 0 <= (known - 23 - 1) - got.cached < GRID
            assert got.cached % GRID == 0
        prompt = prompt + got.tokens + text(23, turn + 2)
    assert warm.core.scheduler.counters.hits == 2
    warm.close()


@pytest.mark.parametrize(("shared", "depth"), [(63, 1), (64, 1), (65, 2), (128, 2), (200, 1)])
def test_a_shared_system_prompt_is_computed_twice_at_most(cold: LoadedCore, shared: int, depth: int) -> None:
    """The first request does not know where others will part from it; the second one does."""
    warm = load(depth, enable_prefix_caching=True)
    prompts = [text(shared, 3) + text(40 + 5 * i, 4 + i) for i in range(3)]
    for index, prompt in enumerate(prompts):
        got, wanted = ask(warm, [prompt], 3, index), ask(cold, [prompt], 3, index)
        assert_same(got, wanted)
        if index >= 2:
            # Two prompts may agree on a token or two beyond what they were made to share.
            assert shared - got[0].cached < GRID
    counters = warm.core.scheduler.counters
    assert counters.prefilled_tokens == counters.queried_tokens - counters.hit_tokens
    warm.close()


@pytest.mark.parametrize("length", [32, 63, 64, 65, 128, 129])
def test_the_same_prompt_again_leaves_less_than_a_grid_interval(cold: LoadedCore, length: int) -> None:
    warm = load(enable_prefix_caching=True)
    prompt = text(length, 9)
    wanted = ask(cold, [prompt], 3)
    assert_same(ask(warm, [prompt], 3), wanted)
    again = ask(warm, [prompt], 3)
    assert_same(again, wanted)
    assert again[0].cached == (length - 1) // GRID * GRID
    warm.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_few_states_and_few_blocks_evict_and_still_give_the_same(cold: LoadedCore, depth: int) -> None:
    # Two requests fit until they grow past 96 tokens; then one of them loses its memory.
    warm = load(depth, enable_prefix_caching=True, num_state_checkpoints=1, num_blocks=7, max_model_len=224)
    counters = warm.core.scheduler.counters
    for round_ in range(2):
        prompts = [text(70, round_) + text(20, i % 2) for i in range(4)]
        assert_same(ask(warm, prompts, 12, round_), ask(cold, prompts, 12, round_))
    assert counters.hits
    assert counters.preemptions
    assert counters.state_checkpoints > 1
    warm.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_what_an_aborted_request_left_is_right(cold: LoadedCore, depth: int) -> None:
    warm = load(depth, enable_prefix_caching=True, max_num_batched_tokens=70)
    core, prompt = warm.core, text(300, 5)
    for steps in (1, 3, 6):
        request = EngineRequest(
            id="x", prompt_token_ids=tuple(prompt[: 250 + steps]), params=RowParams(), max_tokens=200
        )
        core.inbox.append(AddRequest(request))
        for _ in range(steps):
            core.step()
        core.inbox.append(FinishRequest("x", "abort"))
        assert_same(ask(warm, [prompt], 4, steps), ask(cold, [prompt], 4, steps))
    assert core.scheduler.counters.hits
    warm.close()


def test_long_prompts_are_kept_at_every_interval(cold: LoadedCore) -> None:
    warm = load(enable_prefix_caching=True, state_checkpoint_interval=128)
    prompt = text(500, 2)
    ask(warm, [prompt], 1)
    assert warm.core.scheduler.counters.state_checkpoints == 4
    for cut in (450, 400, 300, 140):
        changed = prompt[:cut] + text(30, cut)
        got, wanted = ask(warm, [changed], 3), ask(cold, [changed], 3)
        assert_same(got, wanted)
        assert got[0].cached >= min(cut // 128 * 128, 384)
    warm.close()


def test_without_a_budget_of_states_nothing_is_kept_of_a_decoder_that_has_some() -> None:
    loaded = load(enable_prefix_caching=False)
    ask(loaded, [text(200, 1)])
    assert loaded.core.scheduler.counters.state_checkpoints == 0
    assert loaded.plan.checkpoint_bytes == 0
    loaded.close()
