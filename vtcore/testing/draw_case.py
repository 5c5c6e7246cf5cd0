"""Draws schedule cases from any source of choices: `random.Random.choice` or a hypothesis strategy.

Does not: run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vtcore.interfaces.batch import RowParams
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase

T = TypeVar("T")
"""What is chosen among."""

Choose = Callable[[Sequence[Any]], Any]
"""Picks one element."""

BUDGETS = (1, 2, 3, 7, 63, 64, 65, 2048)
"""Step budgets around the interesting edges: below a verify query, and around 64."""
PARTS = (("whole", "state"), ("whole",), ("whole", "window"), ("whole", "window", "state"), ("state",))
"""Which caches the toy model keeps: a hybrid, a plain decoder, window mixes, a pure recurrent model."""


def draw_params(choose: Choose, vocab_size: int) -> RowParams:
    """Sampling parameters; half of them greedy, every processor now and then."""
    extras: tuple[dict[str, Any], ...] = (
        {},
        {},
        {"presence_penalty": 0.5, "repetition_penalty": 1.3},
        {"frequency_penalty": 0.7, "top_k": 3},
        {"top_p": 0.8, "min_p": 0.05},
        {"logit_bias": ((1, 3.0), (2, -4.0)), "bad_words": ((1, 2), (0,))},
        {"allowed_token_ids": (0, 1, 3), "logprobs": 1},
        {"min_tokens": 4, "stop_ids": tuple(range(vocab_size // 2)), "logprobs": 2},
    )
    return RowParams(
        temperature=choose((0.0, 0.0, 1.0, 0.7)),
        seed=choose(range(1 << 16)) * 7919,
        **choose(extras),
    )


def draw_request(
    choose: Choose, index: int, vocab_size: int, base: tuple[int, ...], may_end: bool, num_own: Sequence[int]
) -> CaseRequest:
    """One request; often with the same prompt as others, or an earlier one's next turn."""
    tokens = range(vocab_size)
    own = tuple(choose(tokens) for _ in range(choose(num_own)))
    params = draw_params(choose, vocab_size)
    stop = params.stop_ids or ((choose(tokens),) if choose((False, False, True)) else ())
    follows = choose(range(index)) if index and choose((False, False, False, True)) else None
    is_fork = bool(index) and follows is None and choose((False, False, False, True))
    return CaseRequest(
        prompt=choose((base, base[: 1 + len(base) // 2] + own, own)),
        max_tokens=choose(range(1, 15)),
        params=params,
        eos=stop[:1],
        stop=stop[1:],
        arrival=choose((0, 0, 0, 1, 3, 8)),
        abort_after=choose((None, None, None, None, 0, 2, 5)) if may_end else None,
        stop_string_at=choose((None, None, None, None, None, 1, 4)) if may_end else None,
        masked=choose((False, False, False, True)),
        follows=follows,
        fork_of=choose(range(index)) if is_fork else None,
        cache_salt=choose(("", "", "", "a")),
        prompt_logprobs=choose((None, None, None, None, None, None, 1)),
        priority=choose((0, 0, 1, 2)),
    )


def draw_case(
    choose: Choose,
    policy: str = "fcfs",
    may_end: bool = True,
    vocab_sizes: Sequence[int] = (12, 4),
    num_own: Sequence[int] = range(1, 12),
    drafters: Sequence[str | None] = (None, "oracle", "half", "junk", "shifted"),
    block_sizes: Sequence[int] = (4, 4, 1, 8),
) -> ScheduleCase:
    """A case of one to seven requests.

    Args:
        may_end: Whether requests may be aborted or stopped from outside.
        num_own: Lengths of what a prompt has beside the shared beginning, in tokens.
    """
    vocab_size = choose(vocab_sizes)
    base = tuple(choose(range(vocab_size)) for _ in range(choose(range(1, 15))))
    requests = tuple(
        draw_request(choose, index, vocab_size, base, may_end, num_own)
        for index in range(choose(range(1, 8)))
    )
    drafter = choose(drafters)
    captured: tuple[int, ...] = (0,) if drafter is None else choose(((0, 1), (0, 1, 3), (0, 3)))
    return ScheduleCase(
        requests=requests,
        seed=choose(range(1 << 16)),
        depth=choose((1, 2)),
        budget=choose(BUDGETS),
        block_size=choose(block_sizes),
        # Mostly the pool holds just the largest request, so that preemption is usual.
        num_blocks=choose((None, None, None, 64)),
        prefix_caching=choose((None, True, True)),
        state_chunk=choose((1, 1, 4, 6)),
        num_state_checkpoints=choose((3, 1, 30)),
        checkpoint_interval=choose((16, 3)),
        resets=choose(((), (), (), (5, 20))),
        max_num_seqs=choose((4, 3, 2, 1)),
        parts=choose(PARTS),
        window=choose((5, 1, 9)),
        vocab_size=vocab_size,
        drafter=drafter,
        captured_k=captured,
        ks=tuple(choose(captured) for _ in range(5)),
        policy=policy,
    )
