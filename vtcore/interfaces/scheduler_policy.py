"""In which order waiting requests are admitted, and who is preempted when memory runs out.

Does not: allocate, see tensors or start requests; the core keeps the heap, the window and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen


@frozen
class WaitingView:
    """What a policy may know of a waiting request. Times in seconds, lengths in tokens."""

    id: str
    arrival_s: float
    age_s: float
    priority: int
    tenant: str
    num_prompt_tokens: int
    max_tokens: int
    num_preemptions: int
    cached_tokens: int
    block_hashes: tuple[bytes, ...]


@frozen
class RunningView:
    """What a policy may know of a running request; `num_freeable` is blocks or slots, by pool."""

    id: str
    arrival_s: float
    age_s: float
    priority: int
    tenant: str
    num_prompt_tokens: int
    max_tokens: int
    num_preemptions: int
    num_computed_tokens: int
    num_freeable: tuple[int, ...]
    admitted_step: int


@frozen
class PolicyContext:
    """The core's situation in this step; `now_s` is the core's clock, real or simulated."""

    now_s: float
    free_blocks: tuple[int, ...]
    budget: int
    block_size: int
    prefix_caching: bool
    num_waiting: int
    cache_generation: int


@frozen
class Arrived:
    """A request entered the waiting queue."""

    id: str


@frozen
class Scheduled:
    """A request was given `tokens` tokens of this step's budget."""

    id: str
    tokens: int


@frozen
class Preempted:
    """A request lost its memory and waits again."""

    id: str


@frozen
class Finished:
    """A request ended after `tokens` output tokens."""

    id: str
    tokens: int


Event = Arrived | Scheduled | Preempted | Finished


class SchedulerPolicy:
    """Subclass, override what differs from first come, first served, and register the class.

    Made without arguments, once per engine.
    """

    window: ClassVar[int] = 128
    """How many waiting requests `order` sees at most, 1 to 1024."""
    static: ClassVar[bool] = True
    """True: `order` is the identity and is not called."""

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        """Sort key, asked once at arrival; smaller goes first. The core appends (arrival, id)."""
        return ()

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        """A permutation of range(len(window)): the order of admission in this step."""
        return range(len(window))

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        """Index of the request to preempt; None leaves it to the core (largest key, last admitted)."""
        return None

    def on_events(self, events: Sequence[Event]) -> None:
        """Called once per step with what happened since, for accounting."""
