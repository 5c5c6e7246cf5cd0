"""In which order waiting requests are admitted, and who is preempted when memory runs out.

Does not: allocate, see tensors or start requests; the core keeps the heap, the window and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import frozen


@frozen
class WaitingView:
    """What a policy may know of a waiting request. Times in seconds, lengths in tokens.

    Args:
        id: The request's; unique among those that have not ended.
        arrival_s: When it came, on the clock of `PolicyContext.now_s`; a preemption does not change it.
        age_s: Seconds since then, never negative; close to 0 in `key`.
        priority: The caller's; 0 unless given. Only a policy gives it a meaning.
        tenant: The caller's name for whom it is; "" unless given.
        num_prompt_tokens: Length of its prompt, at least 1.
        max_tokens: Most tokens it may generate in all, at least 1.
        num_preemptions: How often it lost its memory.
        cached_tokens: Of its known tokens (the prompt; after a preemption its output too), those a prefix hit
            would give it now; 0 in `key`, which is asked once.
        block_hashes: Chain hashes of its full prompt blocks: equal ones mean equal tokens from the first on.
            Empty with prefix caching off.
        policy_args: The request's own, an instance of the policy's `args_class`; None without one.
    """

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
    policy_args: Any = None


@frozen
class RunningView:
    """What a policy may know of a running request; what `WaitingView` has too means the same here.

    Args:
        num_computed_tokens: Tokens whose cache entries are computed; a preemption loses them, apart from what
            the prefix cache keeps.
        num_freeable: Blocks or slots that its preemption would free now, by pool, as `free_blocks`; what
            another request shares is not among them.
        admitted_step: Number of the step in which it was last admitted; larger is later.
    """

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
    policy_args: Any = None


@frozen
class PolicyContext:
    """The core's situation in this step.

    Args:
        now_s: The core's clock, real or simulated, in seconds from an arbitrary start; it never goes back.
        free_blocks: Blocks or slots that can be handed out now, by pool, cached ones that nobody holds too.
        budget: Tokens that this step may still schedule.
        block_size: Tokens of a block.
        prefix_caching: Whether it is on.
        num_waiting: Requests that wait, also those outside the window.
        cache_generation: Changes whenever the prefix cache's contents do; while it is equal, so is what is
            cached of a request that was not preempted.
    """

    now_s: float
    free_blocks: tuple[int, ...]
    budget: int
    block_size: int
    prefix_caching: bool
    num_waiting: int
    cache_generation: int


@frozen
class Arrived:
    """A request waits for its turn, or for the prompt of its first sample; `view` is as `key` saw it."""

    id: str
    view: WaitingView


@frozen
class Scheduled:
    """A request was given `tokens` tokens of a step's budget; 0: it took over another sample's prompt."""

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

    Made once per engine: without arguments, or with an instance of `options_class` if there is one.

    Args:
        options: The user's, checked; None without an `options_class`.
    """

    window: ClassVar[int] = 128
    """How many waiting requests `order` sees at most, 1 to 1024."""
    static: ClassVar[bool] = True
    """True: `order` is the identity; neither it nor `is_active` is called."""
    needs_prefix_caching: ClassVar[bool] = False
    """True: without prefix caching the policy is not what it is chosen for; the start warns. New in 0.2."""
    options_class: ClassVar[type[Any] | None] = None
    """A frozen attrs class of the policy's own settings, filled from `policy_config`; None takes none.

    Every field needs a default. Its validators' ValueErrors become the user's message. New in 0.2.
    """
    args_class: ClassVar[type[Any] | None] = None
    """The same for what one request may bring, its `policy_args`. New in 0.2."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def key(self, view: WaitingView) -> tuple[int | float | str, ...]:
        """Sort key, asked once at arrival; smaller goes first. The core appends (arrival, id)."""
        return ()

    def is_active(self, ctx: PolicyContext) -> bool:
        """Whether `order` has anything to say in this step; pure, asked before the window is looked at.

        Not asked if `static`. False: requests are admitted by their keys, which costs no window and no views
        however many wait. `ctx` is the one that `order` is given. New in 0.2.
        """
        return True

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        """A permutation of range(len(window)): the order of admission in this step."""
        return range(len(window))

    def victim(self, running: Sequence[RunningView], ctx: PolicyContext) -> int | None:
        """Index of the request to preempt; None leaves it to the core (largest key, last admitted)."""
        return None

    def on_events(self, events: Sequence[Event]) -> None:
        """Called once per step, before admission, with what happened since, for accounting."""
