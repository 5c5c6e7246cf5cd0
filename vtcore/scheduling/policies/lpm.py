"""Longest prefix match: of few waiting requests, those go first that the cache has most of.

Does not: look anything up; the core's views say what is cached. Beyond its window of requests, and without
prefix caching, it is first come, first served.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtcore.interfaces.scheduler_policy import PolicyContext, SchedulerPolicy, WaitingView

CHECK_THRESHOLD_TOKENS = 32
"""A request with a longer match than this is not compared with the others.

Source: SGLang, schedule_policy.py, IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD.
"""
DEPRIORITISE_THRESHOLD_TOKENS = 32
"""A request that shares at least so much with one before it goes behind all that do not.

Source: SGLang, schedule_policy.py, IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD.
"""


class LpmPolicy(SchedulerPolicy):
    """Orders by cached prefix; requests that would compute the same new prefix do not start together.

    Two waiting requests with a common beginning that is not cached yet would both compute it. So in order of
    arrival, each that has (almost) nothing cached is compared with those before it, and goes behind all
    others if it shares `DEPRIORITISE_THRESHOLD_TOKENS` with one. Ties keep the order of arrival.
    """

    window = 128
    static = False
    needs_prefix_caching = True

    def is_active(self, ctx: PolicyContext) -> bool:
        """Whether so few wait that it pays to order them. Source: SGLang, schedule_policy.py, 128."""
        return ctx.prefix_caching and 1 < ctx.num_waiting <= self.window

    def order(self, window: Sequence[WaitingView], ctx: PolicyContext) -> Sequence[int]:
        """Those that start alone before those that share; in each, the longest match first."""
        # A block's hash names all blocks before it too. So the leading `blocks` blocks are equal if the last
        # of their hashes is, and no other hash needs to be kept.
        blocks = -(-DEPRIORITISE_THRESHOLD_TOKENS // ctx.block_size)
        seen: set[bytes] = set()
        last: list[int] = []
        first: list[int] = []
        for index, view in enumerate(window):
            if view.cached_tokens <= CHECK_THRESHOLD_TOKENS and len(view.block_hashes) >= blocks:
                block_hash = view.block_hashes[blocks - 1]
                if block_hash in seen:
                    last.append(index)
                    continue
                seen.add(block_hash)
            first.append(index)
        longest = [-view.cached_tokens for view in window].__getitem__
        return sorted(first, key=longest) + sorted(last, key=longest)
