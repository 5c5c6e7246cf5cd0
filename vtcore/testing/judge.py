"""Judges what a request gave in a schedule against what it gives alone.

Does not: run anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from vtcore.interfaces.batch import EngineRequest, TokenLogprobs
from vtcore.testing.schedule_case import CaseRequest

LOGPROB_TOLERANCE = 1e-8
"""In float64, between schedules. Source: the design's eighth law."""


@frozen
class Given:
    """What the front end saw of one request.

    Args:
        prompt_logprobs: By position.
        reason: (finish reason, stop reason).
    """

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    prompt_logprobs: Mapping[int, TokenLogprobs]
    reason: tuple[str | None, int | None]


def judge(
    case: CaseRequest,
    request: EngineRequest,
    given: Given,
    alone: tuple[Sequence[int], Sequence[TokenLogprobs | None]],
    max_model_len: int,
) -> None:
    """Assert tokens, end, and log probabilities where asked.

    Args:
        alone: Tokens and log probabilities that the request gives alone, past every end of it.

    Raises:
        AssertionError: Something differs.
    """
    name, got, (tokens, logprobs) = request.id, list(given.tokens), alone
    limit = min(case.max_tokens, max_model_len - len(request.prompt_token_ids))
    length, reason = _end(tokens[:limit], case)
    if given.reason[0] == "abort" or case.stop_string_at is not None:
        assert got == tokens[: len(got)], f"{name}: {got} is no prefix of {tokens}"
        assert len(got) <= length
    else:
        assert got == tokens[:length], f"{name}: {got} != {tokens[:length]}"
        assert given.reason == reason, f"{name}: ended by {given.reason}, not {reason}"
    if case.params.logprobs is not None:
        for found, wanted in zip(given.logprobs, logprobs[: len(got)], strict=True):
            _assert_same_logprobs(found, wanted)
    if request.prompt_logprobs is not None and got:
        known = given.prompt_logprobs
        assert sorted(known) == list(range(1, len(request.prompt_token_ids))), f"{name}: {sorted(known)}"
        for position, entry in known.items():
            assert entry.token_id == request.prompt_token_ids[position]


def _assert_same_logprobs(found: TokenLogprobs, wanted: TokenLogprobs | None) -> None:
    assert wanted is not None
    assert (found.token_id, found.rank, found.top_ids) == (wanted.token_id, wanted.rank, wanted.top_ids)
    for one, other in zip(
        (found.logprob, *found.top_logprobs), (wanted.logprob, *wanted.top_logprobs), strict=True
    ):
        assert abs(one - other) <= LOGPROB_TOLERANCE


def _end(tokens: Sequence[int], case: CaseRequest) -> tuple[int, tuple[str, int | None]]:
    for count, token in enumerate(tokens, start=1):
        if count < case.params.min_tokens:
            continue
        if token in case.eos:
            return count, ("stop", None)
        if token in case.stop:
            return count, ("stop", token)
    return len(tokens), ("length", None)
