"""A trace: when each request comes, how long its prompt and its answer are, and what it shares with others.

Does not: read or write files (`trace_file.py`) or hold token ids, unless the trace itself does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from vtcore.config.frozen_dict import freeze
from vtcore.errors import ConfigError
from vtcore.simulation.tokens import sequence_ids

MAX_PROBLEMS = 20
"""Wrong lines that are named; the rest are counted."""


@frozen(kw_only=True)
class TraceRequest:
    """One request. Its prompt is, in this order: prompt and answer of the request that it follows, the parts
    of `prefix`, `prompt_token_ids`, and `prompt_tokens` ids of its own.

    Args:
        id: Unique in the trace.
        arrival_s: Seconds since the start of the trace, >= 0; a request that follows another does not come
            before that one has ended.
        after_s: Seconds after the end of the request that it follows.
        prompt_tokens: Ids that no other request has, >= 0.
        prompt_token_ids: Ids as given.
        prefix: (group, tokens): the first `tokens` ids of a sequence that all of the group share.
        output_tokens: Length of the answer, >= 1.
        follows: Id of an earlier request of the trace; "" for none.
        policy_args: For the scheduler policy.
        place: Where it stands, for errors: "trace.jsonl:3".
    """

    id: str
    arrival_s: float = 0.0
    after_s: float = 0.0
    prompt_tokens: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    prefix: tuple[tuple[str, int], ...] = ()
    output_tokens: int = 1
    follows: str = ""
    tenant: str = ""
    priority: int = 0
    policy_args: Mapping[str, Any] = field(factory=dict, converter=freeze)
    cache_salt: str = ""
    place: str = field(default="", eq=False)

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens without those of the request that it follows."""
        return sum(tokens for _, tokens in self.prefix) + len(self.prompt_token_ids) + self.prompt_tokens

    def new_ids(self, vocab_size: int) -> list[int]:
        """Ids of the prompt without those of the request that it follows."""
        ids: list[int] = []
        for group, tokens in self.prefix:
            ids += sequence_ids(f"group/{group}", tokens, vocab_size)
        ids += self.prompt_token_ids
        return ids + sequence_ids(f"request/{self.id}", self.prompt_tokens, vocab_size)


def prompt_lengths(requests: Sequence[TraceRequest]) -> list[int]:
    """Tokens of each prompt, those of followed requests included; earlier requests come first."""
    whole: dict[str, int] = {}
    lengths = []
    for request in requests:
        length = whole.get(request.follows, 0) + request.num_new_tokens
        whole[request.id] = length + request.output_tokens
        lengths.append(length)
    return lengths


def check_trace_fits(requests: Sequence[TraceRequest], max_model_len: int, vocab_size: int) -> None:
    """Check what can only be checked once the engine's limits are known.

    Raises:
        ConfigError: A request is longer than `max_model_len`, or has an id that is no token of the model; a
            sentence for each, up to `MAX_PROBLEMS`.
    """
    problems = []
    for request, length in zip(requests, prompt_lengths(requests), strict=True):
        whole = length + request.output_tokens
        if whole > max_model_len:
            problems.append(
                f"{request.place}: the prompt of {length} tokens and the answer of {request.output_tokens} "
                f"are {whole}, max_model_len is {max_model_len}; shorten one, or raise --max-model-len or "
                f"--num-blocks"
            )
        wrong = next((i for i in request.prompt_token_ids if i >= vocab_size), None)
        if wrong is not None:
            problems.append(
                f"{request.place}: prompt_token_ids has {wrong}, the ids are 0 to {vocab_size - 1}; use the "
                f"model's own"
            )
    raise_problems(problems, "requests do not fit")


def raise_problems(problems: Iterable[str], rest: str) -> None:
    """Raise one ConfigError with the first `MAX_PROBLEMS` sentences, if there are any, and count the rest."""
    sentences = list(problems)
    if len(sentences) > MAX_PROBLEMS:
        more = len(sentences) - MAX_PROBLEMS
        sentences[MAX_PROBLEMS:] = [f"{more} more {rest}"]
    if sentences:
        raise ConfigError(*sentences)
