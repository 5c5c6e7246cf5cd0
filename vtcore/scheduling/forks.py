"""Who waits for whose prompt: samples of one prompt compute it once.

Does not: share memory (request_memory.py) or start a fork (scheduler.py).
"""

from __future__ import annotations

from vtcore.scheduling.request_state import RequestState, Status
from vtcore.scheduling.rows import RowTable
from vtcore.scheduling.waiting import WaitingQueue


def follow(request: RequestState, leader: RequestState | None, rows: RowTable) -> bool:
    """Let an arriving request wait for the end of another one's prompt, if that is still to come.

    Returns:
        False when it has to compute its prompt itself.
    """
    if leader is None or leader.leader is not None or leader.num_output or rows.uniform[leader.row]:
        return False
    if not leader.may_publish:
        # The cache was reset meanwhile; what the leader has so far is for nobody who comes now.
        return False
    if not has_same_prompt(request, leader) or request.req.prompt_logprobs is not None:
        return False
    request.status, request.leader = Status.FORKING, leader
    leader.followers.append(request)
    return True


def has_same_prompt(request: RequestState, other: RequestState) -> bool:
    """Whether both may use the same blocks from the first to the last token of their prompts."""
    mine, its = request.req, other.req
    return mine.prompt_token_ids == its.prompt_token_ids and mine.cache_salt == its.cache_salt


def stop_following(request: RequestState) -> None:
    """Take a request out of what it waits for, if it does."""
    if request.leader is not None:
        request.leader.followers.remove(request)
        request.leader = None


def pass_on(leader: RequestState, waiting: WaitingQueue) -> None:
    """Let the first of those who wait for `leader`'s prompt compute it, and the others wait for that one."""
    if not leader.followers:
        return
    (heir, *others), leader.followers = leader.followers, []
    heir.leader, heir.status, heir.followers = None, Status.WAITING, others
    for other in others:
        other.leader = heir
    waiting.push(heir)
