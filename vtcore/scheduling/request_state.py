"""A request inside the core: its tokens, its memory and where it stands.

Does not: change itself; schedule, commit and messages each write the fields named for them.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field

from vtcore.interfaces.batch import EngineRequest


class Status(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    FORKING = "forking"
    """Waits for the end of another request's prompt, to go on from there as its fork."""
    RUNNING = "running"
    FINISHED = "finished"


@define(eq=False)
class RequestState:
    """One request of the core.

    Args:
        tokens: Prompt and output known to the host. Written by commit.
        limit: No position >= limit is sampled; min(prompt + max_tokens, max_model_len), in tokens.
        computed: Committed tokens in the cache. Written by commit; 0 while waiting.
        row: Device row, 0 while it has none. blocks: Block ids by pool, 0 where null. slots: By pool.
        hashes: Block hashes of known full blocks. published: Leading blocks already offered to the cache.
        first_needed: By pool, the first block index that is not null.
        checkpoints: Positions of its prompt at which a chunk ends so that the state there can be kept.
        home_drafts: The row's drafts as of the last committed frame.
        may_publish: Whether what it computes may serve others; not after the cache was reset meanwhile.
        decode_checkpoint: (slot, hash) of the last state kept while it decoded.
        leader, followers: Whose prompt it waits for, and who waits for its prompt.
        order_key: (policy key..., arrival, id), fixed at arrival.
        waits_since: The core's clock when it entered the queue, or came back to it.
    """

    req: EngineRequest
    tokens: list[int]
    limit: int
    order_key: tuple[object, ...] = ()
    status: Status = Status.WAITING
    computed: int = 0
    row: int = 0
    blocks: list[list[int]] = field(factory=list)
    slots: list[list[int]] = field(factory=list)
    first_needed: list[int] = field(factory=list)
    hashes: list[bytes] = field(factory=list)
    published: int = 0
    cuts: tuple[int, ...] = ()
    checkpoints: tuple[int, ...] = ()
    home_drafts: tuple[int, ...] = ()
    may_publish: bool = True
    decode_checkpoint: tuple[int, bytes] | None = None
    leader: RequestState | None = None
    followers: list[RequestState] = field(factory=list)
    waits_since: float = field(init=False)

    @waits_since.default
    def _arrival(self) -> float:
        return self.req.arrival_s

    num_cached_tokens: int = -1
    num_preemptions: int = 0
    admitted_step: int = -1
    admission: int = -1
    prompt_logprobs_done: int = 1

    @property
    def id(self) -> str:
        """The request's id."""
        return self.req.id

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.req.prompt_token_ids)

    @property
    def num_output(self) -> int:
        """Output tokens known to the host."""
        return len(self.tokens) - len(self.req.prompt_token_ids)

    @property
    def reads_cache(self) -> bool:
        """Whether a prefix hit may stand in for computing; prompt logprobs need every hidden state."""
        return self.req.prompt_logprobs is None
