"""What a finished or running request looks like to its user, in vLLM's shape.

Does not: decode text; the front end hands it in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from attrs import frozen

from vtcore.interfaces.batch import TokenLogprobs


@frozen
class Logprob:
    """One id at one position.

    Args:
        logprob: Natural logarithm of its probability under the raw logits.
        rank: 1 + the number of ids with a strictly larger one.
        decoded_token: Its text; None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


@frozen(kw_only=True)
class CompletionOutput:
    """One sample of a prompt.

    Args:
        index: 0 <= index < n.
        text: "" when no text is made.
        token_ids: Output tokens, the one that ended the output included.
        cumulative_logprob: Sum of the logprobs of `token_ids`; None unless logprobs were asked for.
        logprobs: One dict per token, id -> `Logprob`; None unless asked for.
        finish_reason: "stop", "length", "abort"; None while it runs.
        stop_reason: The stop string or stop token id that ended it; None for eos and all else.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether no more tokens follow."""
        return self.finish_reason is not None


@frozen(kw_only=True)
class RequestOutput:
    """All samples of one prompt.

    Args:
        prompt: Its text; None if it was given as ids.
        prompt_logprobs: One entry per prompt token, None for the first, which nothing precedes; None unless
            asked for.
        outputs: Samples in order of index.
        finished: Whether all samples are.
        num_cached_tokens: Prompt tokens that a prefix hit spared the first sample when it first started; what
            the other samples take over from it, and hits after a preemption, are not in it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    num_cached_tokens: int = 0


def to_logprob_dict(entry: TokenLogprobs, decode: Callable[[int], str] | None = None) -> dict[int, Logprob]:
    """The reported ids of one position: the token that stands there, then the most likely ones in order.

    Args:
        decode: Text of one id; None leaves `decoded_token` None.
    """

    def shown(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, None if decode is None else decode(token_id))

    found = {entry.token_id: shown(entry.token_id, entry.logprob, entry.rank)}
    rank, previous = 1, inf
    for place, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1):
        if logprob < previous:
            rank, previous = place, logprob
        if token_id not in found:
            found[token_id] = shown(token_id, logprob, rank)
    return found


def output_as_json(output: RequestOutput) -> dict[str, Any]:
    """An output in JSON's types: the samples, and the prompt's logprobs where they were asked for.

    Only what depends on the request alone is in it, so that equal requests give equal objects: no request id,
    no cache hits.

    Returns:
        "num_prompt_tokens", "outputs" and maybe "prompt_logprobs". Logprobs are lists, one entry per token,
        of {"token_id", "logprob", "rank", "token"}, the token that stands there first; -inf is null.
    """
    shown: dict[str, Any] = {"num_prompt_tokens": len(output.prompt_token_ids)}
    if output.prompt_logprobs is not None:
        shown["prompt_logprobs"] = [entry and _logprobs_as_json(entry) for entry in output.prompt_logprobs]
    shown["outputs"] = [_sample_as_json(sample) for sample in output.outputs]
    return shown


def _sample_as_json(sample: CompletionOutput) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": sample.index,
        "text": sample.text,
        "token_ids": list(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
    }
    if sample.logprobs is not None:
        shown["cumulative_logprob"] = _finite(sample.cumulative_logprob)
        shown["logprobs"] = [_logprobs_as_json(entry) for entry in sample.logprobs]
    return shown


def _logprobs_as_json(entry: Mapping[int, Logprob]) -> list[dict[str, Any]]:
    return [
        {"token_id": token_id, "logprob": _finite(at.logprob), "rank": at.rank, "token": at.decoded_token}
        for token_id, at in entry.items()
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
