"""The plain data that crosses from the engine to an executor and back.

Every class here is frozen, holds only numbers, strings, tuples and each other, and survives msgpack.
Does not: hold tensors or behaviour. The rules that bind these structures: docs/architecture.md, The step.

Terms: row, an entry of the device tables that one running request owns (0 is null); position, index of a
token in its sequence; uniform row, one that continues from the device's own `last_token`; prefill row, one
whose ids come from the host.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class RowParams:
    """Sampling parameters of one row, resolved: nothing here means "default".

    Args:
        temperature: 0 is greedy.
        top_k: 0 keeps all. top_p: 1 keeps all. min_p: 0 keeps all.
        repetition_penalty: 1 is off. presence_penalty, frequency_penalty: 0 is off.
        seed: 0 <= seed < 2**63; with the position and the token id it keys all noise.
        logit_bias: (token id, bias) pairs.
        allowed_token_ids: None allows all.
        bad_words: Token sequences that must not be completed.
        min_tokens: `stop_ids` are masked while fewer output tokens exist.
        stop_ids: Token ids that end the request (eos included unless ignored).
        logprobs: None, or how many of the most likely ids are reported beside the sampled one; -1 is all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None

    @property
    def needs_history(self) -> bool:
        """Whether sampling reads the tokens before the position that is drawn."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.bad_words)
        )


@frozen(kw_only=True)
class TokenLogprobs:
    """Log probabilities at one position, from the raw logits.

    Args:
        token_id, logprob, rank: The token that stands there; rank 1 is the most likely.
        top_ids, top_logprobs: The most likely ids, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@frozen(kw_only=True)
class EngineRequest:
    """A checked request as the core takes it.

    Args:
        max_tokens: Output tokens at most, >= 1.
        stop_token_ids: Ids that end the request and become its stop reason.
        eos_token_ids: Ids that end it without one; empty when eos is ignored.
        prompt_logprobs: None, or how many of the most likely ids per prompt position; -1 is all.
        arrival_s: The core's clock.
        needs_mask: A host mask (grammar) takes part in sampling this request.
        policy_args: For the scheduler policy, as a JSON object, checked; "" brings none.
        cache_salt: Blocks and states are shared only between requests of equal salt.
        fork_of: Id of the request whose prompt this one shares, token by token; "" is of its own.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: RowParams
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    arrival_s: float = 0.0
    priority: int = 0
    tenant: str = ""
    needs_mask: bool = False
    policy_args: str = ""
    cache_salt: str = ""
    fork_of: str = ""


@frozen
class TableDelta:
    """Block table entry `index` of `row` in `pool` becomes `id`."""

    pool: int
    row: int
    index: int
    id: int


@frozen
class RowInit:
    """Replaces a whole table row when a request is admitted.

    Args:
        computed: Tokens already in the cache (a prefix hit), which no query will cover.
        tokens: All known tokens, when the row or the drafter reads history, else empty.
        tables: Block ids by pool; empty for slot pools.
        slots: The request's state slots by pool, S each; empty for paged pools.
        prompt_len, limit: In tokens; no position >= limit is ever sampled.
    """

    row: int
    computed: int
    tokens: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]
    params: RowParams
    prompt_len: int
    limit: int


@frozen
class CopyOp:
    """A unit of a pool is written as a whole: `src` 0 zeroes `dst`, else it is copied there."""

    pool: int
    src: int
    dst: int


@frozen
class Checkpoint:
    """A row's state after `position` tokens is to be kept in slot `dst` of a slot pool.

    Taken at the end of the step's sampling if computed < position <= the row's new `computed`; of a prefill
    row only if it is its new `computed`.
    """

    pool: int
    row: int
    position: int
    dst: int


@frozen
class Fork:
    """Row `child` samples from the same logits as prefill row `parent` and goes on from its end."""

    parent: int
    child: int


@frozen
class PrefillRow:
    """A query whose ids the host knows.

    Args:
        start: Position of ids[0]; equals the row's `computed` on the device.
        sample: Whether the last query position yields a token.
        prompt_logprobs: None, or how many most likely ids are reported for each target; -1 is all.
        targets: With prompt_logprobs, the known token after each of the first len(targets) positions.
        next_id: The known token after the chunk, None when the step samples it.
    """

    row: int
    start: int
    ids: tuple[int, ...]
    sample: bool
    prompt_logprobs: int | None = None
    targets: tuple[int, ...] = ()
    next_id: int | None = None


@frozen
class ScheduledBatch:
    """One step: what is uploaded, copied, computed, verified and proposed, in that order.

    Args:
        num_drafts_in: Drafts verified per uniform row in this step; each takes 1 + num_drafts_in tokens.
        num_drafts_out: Drafts proposed at the end of this step for every sampled row.
        max_context: Upper bound of computed + query over the uniform rows, in tokens; 0 without any.
        before: Copies in list order.
        uniform: Rows; they come first in the flat token layout, in this order.
        forks: Rows that share the last logits of a sampling prefill row of this step, and are admitted by it.
        after: Copies in list order, when the step has sampled and before the next one's `before`.
        checkpoints: States to keep, when the step has sampled and before `after`.
    """

    step: int
    num_drafts_in: int
    num_drafts_out: int
    max_context: int
    deltas: tuple[TableDelta, ...]
    inits: tuple[RowInit, ...]
    before: tuple[CopyOp, ...]
    uniform: tuple[int, ...]
    prefill: tuple[PrefillRow, ...]
    forks: tuple[Fork, ...] = ()
    after: tuple[CopyOp, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Query tokens of the step, padding by illegal drafts included."""
        return len(self.uniform) * (1 + self.num_drafts_in) + sum(len(p.ids) for p in self.prefill)


@frozen
class RowResult:
    """What one row's step produced.

    Args:
        position: The row's `computed` before the step.
        tokens: Emitted tokens; the first stands at position + 1 in a uniform row, at position + the chunk's
            length in a sampled prefill row, at its parent's in a fork.
        logprobs: One per emitted token when asked, else empty.
        drafts: The row's drafts after the step, -1 from the first unused entry on.
        prompt_logprobs: One per target of a prefill row.
    """

    row: int
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@frozen
class StepResult:
    """Results of one step: uniform rows first, then prefill rows, then forks, in batch order.

    Args:
        checkpoints: Whether each checkpoint of the batch was written, in its order.
    """

    step: int
    rows: tuple[RowResult, ...]
    checkpoints: tuple[bool, ...] = ()


@frozen
class RowMasks:
    """Host masks of one row, one per query row: packed little-endian bits over the vocabulary, or None."""

    row: int
    masks: tuple[bytes | None, ...]


@frozen(kw_only=True)
class RequestUpdate:
    """What a commit tells the front end about one request.

    Args:
        tokens: New output tokens, in order.
        logprobs: One per new token when asked, else empty.
        prompt_logprobs: (position, logprobs) of prompt tokens, in order of position; position 0 has none.
        finish_reason: "stop", "length" or "abort" when this update is the last one.
        stop_reason: The stop token id that ended it; None for an eos token or another reason.
    """

    id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | None = None
