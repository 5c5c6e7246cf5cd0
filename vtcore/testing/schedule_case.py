"""A random run as plain data: requests, limits and what disturbs them.

Does not: run it (`vtcore.testing.schedules`) or draw it (`vtcore.testing.draw_case`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from vtcore.interfaces.batch import RowParams
from vtcore.testing.toy_hash import mix


@frozen(kw_only=True)
class CaseRequest:
    """One request of a case.

    Args:
        arrival: Messages taken before this one arrives; equal numbers arrive together.
        abort_after: Output tokens the front end has seen when it aborts; None never does.
        stop_string_at: Output tokens kept by a late stop string; None has none.
        follows: Index of the request whose prompt and answer begin this prompt (a second turn).
        fork_of: Index of the earlier request whose prompt this one has, to be computed once.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 8
    params: RowParams = field(factory=RowParams)
    eos: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    arrival: int = 0
    abort_after: int | None = None
    stop_string_at: int | None = None
    masked: bool = False
    follows: int | None = None
    fork_of: int | None = None
    cache_salt: str = ""
    prompt_logprobs: int | None = None
    priority: int = 0
    policy_args: str = ""


@frozen(kw_only=True)
class ScheduleCase:
    """A whole run.

    Args:
        num_blocks: None is exactly what the largest request needs.
        state_chunk: Of the toy's state, in tokens.
        num_state_checkpoints, checkpoint_interval: See the options of these names.
        chunk: Multiple at which prompts' chunks end; the budget must leave room for one.
        resets: Ticks at which the prefix cache is reset.
        captured_k: () is no drafter. drafter: "oracle", "half" (an oracle that errs), "junk", "shifted".
        ks: Drawn from in turn for num_drafts_out.
        policy, policy_config: Scheduler policy and its settings; none are an empty mapping.
    """

    requests: tuple[CaseRequest, ...]
    seed: int = 0
    depth: int = 1
    budget: int = 64
    block_size: int = 4
    num_blocks: int | None = None
    max_num_seqs: int = 4
    parts: tuple[str, ...] = ("whole", "state")
    window: int = 5
    vocab_size: int = 12
    prefix_caching: bool | None = None
    state_chunk: int = 1
    num_state_checkpoints: int = 3
    checkpoint_interval: int = 16
    chunk: int = 1
    resets: tuple[int, ...] = ()
    drafter: str | None = None
    captured_k: tuple[int, ...] = (0,)
    ks: tuple[int, ...] = (0,)
    policy: str = "fcfs"
    policy_config: Mapping[str, Any] = field(factory=dict)


class ToyMask:
    """A grammar whose allowed ids depend on every token so far."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def mask(self, tokens: Sequence[int]) -> bytes | None:
        """Half of the ids, never none."""
        state = sum((index + 1) * token for index, token in enumerate(tokens))
        bits = bytearray(-(-self._vocab_size // 8))
        for token in range(self._vocab_size):
            if mix(state, token) % 2 or token == state % self._vocab_size:
                bits[token // 8] |= 1 << (token % 8)
        return bytes(bits)
