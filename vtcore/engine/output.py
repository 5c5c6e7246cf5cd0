"""Gathers what the core reports about one prompt's samples into the output a user sees.

Does not: talk to the core; the engine passes on what these decide.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from vtcore.interfaces.batch import RequestUpdate, TokenLogprobs
from vtcore.outputs import CompletionOutput, Logprob, RequestOutput, to_logprob_dict
from vtcore.request import SamplingParams
from vtcore.tokenization.detokenizer import IncrementalDetokenizer


@define(eq=False)
class Sample:
    """One sample of a prompt: the tokens so far and how it ended.

    Args:
        decode: Text of one token id; None without a tokenizer.
        logprobs: One dict per token where asked; made once, since every output shows all of them.
    """

    id: str
    index: int
    detokenizer: IncrementalDetokenizer | None
    decode: Callable[[int], str] | None
    token_ids: list[int] = field(factory=list)
    logprobs: list[dict[int, Logprob]] = field(factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, update: RequestUpdate, params: SamplingParams) -> bool:
        """Add an update's tokens.

        A stop token wins over a stop string that ends on it; a stop string wins over the length.

        Returns:
            Whether a stop string ended the sample while the core goes on.
        """
        self.token_ids += update.tokens
        self._note_logprobs(update.logprobs)
        match = None
        if self.detokenizer is not None:
            ended = update.finish_reason == "stop"
            match = self.detokenizer.append(update.tokens[:-1] if ended else update.tokens)
            if ended and match is None and params.include_stop_str_in_output:
                # Its text is kept, but a stop string that ends on it does not count.
                self.detokenizer.append(update.tokens[-1:])
        if match is None:
            self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason
            return False
        self.finish_reason, self.stop_reason = "stop", match.stop
        del self.token_ids[match.num_tokens :]
        if self.logprobs:
            del self.logprobs[match.num_tokens :]
            kept = zip(self.token_ids, self.logprobs, strict=True)
            self.cumulative_logprob = sum(entry[token_id].logprob for token_id, entry in kept)
        return update.finish_reason is None

    def _note_logprobs(self, entries: tuple[TokenLogprobs, ...]) -> None:
        self.logprobs += [to_logprob_dict(entry, self.decode) for entry in entries]
        self.cumulative_logprob += sum(entry.logprob for entry in entries)

    def finish(self, reason: str) -> None:
        """End it from outside."""
        self.finish_reason = reason

    def output(self, wants_logprobs: bool) -> CompletionOutput:
        """The sample as its user sees it now."""
        finished = self.finish_reason is not None
        return CompletionOutput(
            index=self.index,
            text="" if self.detokenizer is None else self.detokenizer.text(finished),
            token_ids=tuple(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


@define(eq=False)
class SampleGroup:
    """All samples of one prompt.

    Args:
        decode: Text of one token id; None without a tokenizer.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    decode: Callable[[int], str] | None
    samples: list[Sample] = field(factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(factory=dict)
    num_cached_tokens: int = 0

    def note(self, update: RequestUpdate) -> None:
        """Keep what concerns the prompt; the first sample reports it."""
        self.prompt_logprobs.update(update.prompt_logprobs)
        if update.id == self.samples[0].id:
            self.num_cached_tokens = min(update.num_cached_tokens, len(self.prompt_token_ids))

    @property
    def is_finished(self) -> bool:
        """Whether all samples are."""
        return all(sample.finish_reason is not None for sample in self.samples)

    def output(self) -> RequestOutput:
        """The request as its user sees it now."""
        prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
        if self.params.prompt_logprobs is not None:
            known = range(1, 1 + len(self.prompt_logprobs))
            prompt_logprobs = (None, *(to_logprob_dict(self.prompt_logprobs[p], self.decode) for p in known))
        wants_logprobs = self.params.logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=tuple(sample.output(wants_logprobs) for sample in self.samples),
            finished=self.is_finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
        )
