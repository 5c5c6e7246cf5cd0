"""What a scheduler policy sees of requests; what does not change is made once per request.

Does not: call the policy.
"""

from __future__ import annotations

from typing import Any

from attrs import define

from vtcore.interfaces.scheduler_policy import RunningView, SchedulerPolicy, WaitingView
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.scheduling.policy_args import parse_policy_args
from vtcore.scheduling.request_state import RequestState


@define(eq=False)
class _Seen:
    """A request's lasting part, and its cached blocks as of (cache generation, preemptions)."""

    block_hashes: tuple[bytes, ...]
    policy_args: Any
    counted_at: tuple[int, int] | None = None
    cached_tokens: int = 0


class PolicyViews:
    """Makes the views of one policy.

    Args:
        policy: For the class of its `policy_args`.
        memory: For cached lengths and freeable units.
    """

    def __init__(self, policy: SchedulerPolicy, memory: RequestMemory) -> None:
        self._policy = policy
        self._memory = memory
        self._default_args = parse_policy_args(policy, "")
        self._seen: dict[str, _Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def read_args(self, request: RequestState) -> None:
        """Read what an arriving request brings for the policy; views carry it from now on.

        Raises:
            RequestError: It does not fit the policy; the views then carry the defaults.
        """
        self._lasting(request).policy_args = parse_policy_args(self._policy, request.req.policy_args)

    def forget(self, request: RequestState) -> None:
        """Drop what is kept of a request that ended."""
        self._seen.pop(request.id, None)

    def arriving(self, request: RequestState, now_s: float) -> WaitingView:
        """A request that was not looked up in the cache yet."""
        return self._waiting(request, self._lasting(request), now_s, 0)

    def waiting(self, request: RequestState, now_s: float, generation: int) -> WaitingView:
        """A waiting request, with what is cached of it in this generation of the cache."""
        seen = self._lasting(request)
        # A preempted request knows more tokens than before, so the same cache may have more of it.
        moment = (generation, request.num_preemptions)
        if seen.counted_at != moment:
            self._memory.update_hashes(request)
            seen.cached_tokens = self._memory.num_cached_blocks(request) * self._memory.block_size
            seen.counted_at = moment
        return self._waiting(request, seen, now_s, seen.cached_tokens)

    def running(self, request: RequestState, now_s: float) -> RunningView:
        """A running request."""
        req = request.req
        return RunningView(
            req.id,
            req.arrival_s,
            now_s - req.arrival_s,
            req.priority,
            req.tenant,
            request.num_prompt,
            req.max_tokens,
            request.num_preemptions,
            request.computed,
            self._memory.freeable([request]),
            request.admitted_step,
            self._lasting(request).policy_args,
        )

    def _lasting(self, request: RequestState) -> _Seen:
        seen = self._seen.get(request.id)
        if seen is None:
            hashes = tuple(request.hashes[: request.num_prompt // self._memory.block_size])
            seen = self._seen[request.id] = _Seen(hashes, self._default_args)
        return seen

    def _waiting(self, request: RequestState, seen: _Seen, now_s: float, cached_tokens: int) -> WaitingView:
        # By position: up to 1024 of these are made in a step.
        req = request.req
        return WaitingView(
            req.id,
            req.arrival_s,
            now_s - req.arrival_s,
            req.priority,
            req.tenant,
            len(req.prompt_token_ids),
            req.max_tokens,
            request.num_preemptions,
            cached_tokens,
            seen.block_hashes,
            seen.policy_args,
        )
