"""What a scheduler policy is shown: one of each for an author's own tests, and random ones for the kit.

Does not: judge a policy (`vtcore.testing.policy_kit` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from attrs import evolve

from vtcore.interfaces.scheduler_policy import (
    Arrived,
    Event,
    Finished,
    PolicyContext,
    Preempted,
    RunningView,
    Scheduled,
    WaitingView,
)

_WAITING = WaitingView(
    id="r0",
    arrival_s=0.0,
    age_s=0.0,
    priority=0,
    tenant="",
    num_prompt_tokens=8,
    max_tokens=16,
    num_preemptions=0,
    cached_tokens=0,
    block_hashes=(),
)
_RUNNING = RunningView(
    id="r0",
    arrival_s=0.0,
    age_s=0.0,
    priority=0,
    tenant="",
    num_prompt_tokens=8,
    max_tokens=16,
    num_preemptions=0,
    num_computed_tokens=8,
    num_freeable=(1,),
    admitted_step=0,
)
_CONTEXT = PolicyContext(
    now_s=0.0,
    free_blocks=(64,),
    budget=2048,
    block_size=16,
    prefix_caching=False,
    num_waiting=1,
    cache_generation=0,
)


def waiting_view(**changes: Any) -> WaitingView:
    """A request that arrived just now: 8 prompt tokens, at most 16 more, nothing cached, all else unset.

    Args:
        changes: Fields that differ.

    Raises:
        TypeError: A view has no such field.
    """
    return evolve(_WAITING, **changes)


def running_view(**changes: Any) -> RunningView:
    """The same request with its prompt computed, in one block that would come free; as `waiting_view`."""
    return evolve(_RUNNING, **changes)


def policy_context(**changes: Any) -> PolicyContext:
    """The core with one request waiting and 64 free blocks of 16, no prefix caching; as `waiting_view`."""
    return evolve(_CONTEXT, **changes)


_TIMES = (0.0, 1e-9, 1.5, 1e9)
_COUNTS = (0, 1, 7, 2**31 - 1)
_PRIORITIES = (0, 1, -1, 2**31 - 1, -(2**31))
_TENANTS = ("", "a", "\N{GREEK SMALL LETTER OMEGA}\x00", "t" * 500)
_HASHES = ((), (b"\0" * 32,), tuple(bytes([i]) * 32 for i in range(40)))


def any_waiting_view(
    random: Random, name: str, args: Sequence[Any] = (None,), now_s: float = _TIMES[-1]
) -> WaitingView:
    """A waiting request.

    Args:
        args: What its `policy_args` are drawn from.
        now_s: Its age is what has passed since it arrived, never less than nothing.
    """
    arrival_s = random.choice([time for time in _TIMES if time <= now_s])
    return WaitingView(
        id=name,
        arrival_s=arrival_s,
        age_s=now_s - arrival_s,
        priority=random.choice(_PRIORITIES),
        tenant=random.choice(_TENANTS),
        num_prompt_tokens=random.choice(_COUNTS[1:]),
        max_tokens=random.choice(_COUNTS[1:]),
        num_preemptions=random.choice(_COUNTS),
        cached_tokens=random.choice(_COUNTS),
        block_hashes=random.choice(_HASHES),
        policy_args=random.choice(args),
    )


def any_running_view(
    random: Random, name: str, args: Sequence[Any] = (None,), now_s: float = _TIMES[-1]
) -> RunningView:
    """A running request; the rest as for `any_waiting_view`."""
    arrival_s = random.choice([time for time in _TIMES if time <= now_s])
    return RunningView(
        id=name,
        arrival_s=arrival_s,
        age_s=now_s - arrival_s,
        priority=random.choice(_PRIORITIES),
        tenant=random.choice(_TENANTS),
        num_prompt_tokens=random.choice(_COUNTS[1:]),
        max_tokens=random.choice(_COUNTS[1:]),
        num_preemptions=random.choice(_COUNTS),
        num_computed_tokens=random.choice(_COUNTS),
        num_freeable=random.choice(((), (0,), (3, 1), (2**31, 0, 5))),
        admitted_step=random.choice(_COUNTS),
        policy_args=random.choice(args),
    )


def any_context(random: Random) -> PolicyContext:
    """A situation of the core."""
    return PolicyContext(
        now_s=random.choice(_TIMES),
        free_blocks=random.choice(((), (0,), (3, 1), (2**31, 0, 5))),
        budget=random.choice(_COUNTS),
        block_size=random.choice((1, 16, 32)),
        prefix_caching=random.choice((False, True)),
        num_waiting=random.choice(_COUNTS),
        cache_generation=random.choice(_COUNTS),
    )


def any_event(random: Random, args: Sequence[Any] = (None,)) -> Event:
    """Something that happened to one of twenty requests, also what its history forbids."""
    name = f"r{random.randrange(20)}"
    return random.choice(
        (
            Arrived(name, any_waiting_view(random, name, args)),
            Scheduled(name, random.choice(_COUNTS[1:])),
            Preempted(name),
            Finished(name, random.choice(_COUNTS)),
        )
    )
