"""What every scheduler policy must keep to, as checks a plugin author runs on the policy's class.

Does not: judge whether an order is good; only whether the core can live with it. In service a policy that
breaks one of these loses its turn and is switched off in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from random import Random

from vtcore.interfaces.scheduler_policy import (
    Arrived,
    Event,
    Finished,
    PolicyContext,
    Preempted,
    RunningView,
    Scheduled,
    SchedulerPolicy,
    WaitingView,
)

MAX_WINDOW = 1024
"""Source: `SchedulerPolicy.window`."""

_TIMES = (0.0, 1e-9, 1.5, 1e9)
_COUNTS = (0, 1, 7, 2**31 - 1)
_PRIORITIES = (0, 1, -1, 2**31 - 1, -(2**31))
_TENANTS = ("", "a", "\N{GREEK SMALL LETTER OMEGA}\x00", "t" * 500)
_HASHES = ((), (b"\0" * 32,), tuple(bytes([i]) * 32 for i in range(40)))


def check_policy(make: Callable[[], SchedulerPolicy], trials: int = 60, seed: int = 0) -> None:
    """Run every check.

    Args:
        make: The policy's class, or a function that makes one.
        trials: Random situations of each kind.
        seed: Of all random choices.

    Raises:
        AssertionError: The policy breaks a rule; the message says which.
    """
    check_class(make)
    check_key(make, Random(seed), trials)
    check_order(make, Random(seed), trials)
    check_victim(make, Random(seed), trials)
    check_events(make, Random(seed), trials)


def check_class(make: Callable[[], SchedulerPolicy]) -> None:
    """The class attributes have their types and ranges.

    Raises:
        AssertionError: They have not.
    """
    policy = make()
    assert isinstance(policy, SchedulerPolicy), "the policy is no SchedulerPolicy"
    assert type(policy.static) is bool, f"static is {policy.static!r}, not a bool"
    window = policy.window
    assert type(window) is int, f"window is {window!r}, not an int"
    assert 1 <= window <= MAX_WINDOW, f"window is {window}, outside 1..{MAX_WINDOW}"
    if policy.static:
        assert type(policy).order is SchedulerPolicy.order, "static says that `order` is never called"


def check_key(make: Callable[[], SchedulerPolicy], random: Random, trials: int = 60) -> None:
    """Keys are tuples of plain ints, floats (no NaN) and strings, and any two of one policy compare.

    Raises:
        AssertionError: One is not.
    """
    policy, keys = make(), []
    for _ in range(trials):
        key = policy.key(waiting_view(random, "r"))
        assert type(key) is tuple, f"key {key!r} is no tuple"
        for part in key:
            assert type(part) in (int, float, str), f"key part {part!r} is no plain int, float or str"
            assert not (isinstance(part, float) and math.isnan(part)), "a NaN has no place in an order"
        keys.append(tuple(map(type, key)))
    kinds = {tuple("text" if kind is str else "number" for kind in key) for key in keys}
    assert len(kinds) == 1, f"keys have different forms, {sorted(kinds)}: they do not compare"


def check_order(make: Callable[[], SchedulerPolicy], random: Random, trials: int = 60) -> None:
    """`order` is a permutation of plain ints, and pure: asked twice, it answers the same.

    Raises:
        AssertionError: One of these fails.
    """
    policy = make()
    for trial in range(trials):
        size = (0, 1, 2, policy.window)[trial % 4]
        window = [waiting_view(random, f"r{index}") for index in range(size)]
        ctx = context(random)
        given = list(window)
        order = list(policy.order(window, ctx))
        assert window == given, "order changed the window it was given"
        assert all(type(index) is int for index in order), f"order holds no plain ints: {order[:8]}"
        assert sorted(order) == list(range(size)), f"order is no permutation of range({size}): {order[:8]}"
        assert list(policy.order(window, ctx)) == order, "order is not pure: asked twice, it differs"


def check_victim(make: Callable[[], SchedulerPolicy], random: Random, trials: int = 60) -> None:
    """`victim` is None or an index of a running request, and pure.

    Raises:
        AssertionError: It is something else.
    """
    policy = make()
    for trial in range(trials):
        running = [running_view(random, f"r{index}") for index in range(1 + trial % 9)]
        ctx, given = context(random), list(running)
        choice = policy.victim(running, ctx)
        assert running == given, "victim changed the list it was given"
        if choice is not None:
            assert type(choice) is int, f"victim {choice!r} is no plain int"
            assert 0 <= choice < len(running), f"victim {choice} is outside 0..{len(running) - 1}"
        assert policy.victim(running, ctx) == choice, "victim is not pure: asked twice, it differs"


def check_events(make: Callable[[], SchedulerPolicy], random: Random, trials: int = 60) -> None:
    """Any events may come in any order, also of requests never seen, and other answers stay legal.

    Raises:
        AssertionError: A later order is none.
    """
    policy = make()
    for _ in range(trials):
        policy.on_events(tuple(_event(random) for _ in range(random.randrange(6))))
    # State gathered from events must not make the policy illegal.
    check_order(lambda: deepcopy(policy), random, trials)
    check_victim(lambda: deepcopy(policy), random, trials)


def waiting_view(random: Random, name: str) -> WaitingView:
    """A waiting request with usual and extreme values."""
    return WaitingView(
        id=name,
        arrival_s=random.choice(_TIMES),
        age_s=random.choice(_TIMES),
        priority=random.choice(_PRIORITIES),
        tenant=random.choice(_TENANTS),
        num_prompt_tokens=random.choice(_COUNTS[1:]),
        max_tokens=random.choice(_COUNTS[1:]),
        num_preemptions=random.choice(_COUNTS),
        cached_tokens=random.choice(_COUNTS),
        block_hashes=random.choice(_HASHES),
    )


def running_view(random: Random, name: str) -> RunningView:
    """A running request with usual and extreme values."""
    return RunningView(
        id=name,
        arrival_s=random.choice(_TIMES),
        age_s=random.choice(_TIMES),
        priority=random.choice(_PRIORITIES),
        tenant=random.choice(_TENANTS),
        num_prompt_tokens=random.choice(_COUNTS[1:]),
        max_tokens=random.choice(_COUNTS[1:]),
        num_preemptions=random.choice(_COUNTS),
        num_computed_tokens=random.choice(_COUNTS),
        num_freeable=random.choice(((), (0,), (3, 1), (2**31, 0, 5))),
        admitted_step=random.choice(_COUNTS),
    )


def context(random: Random) -> PolicyContext:
    """A situation with usual and extreme values."""
    return PolicyContext(
        now_s=random.choice(_TIMES),
        free_blocks=random.choice(((), (0,), (3, 1), (2**31, 0, 5))),
        budget=random.choice(_COUNTS),
        block_size=random.choice((1, 16, 32)),
        prefix_caching=random.choice((False, True)),
        num_waiting=random.choice(_COUNTS),
        cache_generation=random.choice(_COUNTS),
    )


def _event(random: Random) -> Event:
    name = f"r{random.randrange(20)}"
    return random.choice(
        (
            Arrived(name),
            Scheduled(name, random.choice(_COUNTS[1:])),
            Preempted(name),
            Finished(name, random.choice(_COUNTS)),
        )
    )
