"""What the scheduler obeys, and what it counts.

Does not: decide anything.
"""

from __future__ import annotations

from attrs import define, frozen


@frozen(kw_only=True)
class SchedulerLimits:
    """Numbers the scheduler obeys.

    Args:
        max_num_batched_tokens: The step budget, >= 1.
        captured_k: Draft counts a step may use, ascending, 0 among them.
        history_always: RowInit carries all known tokens even if sampling does not need them (drafters).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    captured_k: tuple[int, ...] = (0,)
    history_always: bool = False


@define
class SchedulerCounters:
    """Events since the start, for tests and metrics.

    Args:
        hits, hit_tokens, queried_tokens: Admissions that began with a prefix hit, its tokens, and the tokens
            for which one was looked up. The preempted_ ones are of requests that were admitted before.
        prefilled_tokens: Tokens of prefill queries launched.
        forks: Requests that went on from another one's prompt.
        state_checkpoints: States kept. state_checkpoints_skipped: Those for which no slot was to be had.
    """

    steps: int = 0
    preemptions: int = 0
    hits: int = 0
    hit_tokens: int = 0
    queried_tokens: int = 0
    preempted_hit_tokens: int = 0
    preempted_queried_tokens: int = 0
    prefilled_tokens: int = 0
    forks: int = 0
    state_checkpoints: int = 0
    state_checkpoints_skipped: int = 0
    late_results: int = 0
    stalls: int = 0

    def note_admission(self, hit_tokens: int, queried_tokens: int, is_first: bool) -> None:
        """Count a look-up and what it found; `is_first` says whether of a request that never ran before."""
        self.hits += bool(hit_tokens)
        if is_first:
            self.hit_tokens += hit_tokens
            self.queried_tokens += queried_tokens
        else:
            self.preempted_hit_tokens += hit_tokens
            self.preempted_queried_tokens += queried_tokens
