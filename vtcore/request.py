"""What a user asks for: sampling parameters and prompts, checked before the engine sees them.

Does not: tokenize, give requests ids or know a model; `check_prompt` is told the model's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from attrs import field, fields, frozen
from numpy.typing import NDArray

from vtcore.config.options import REFERENCE
from vtcore.config.shown import shown
from vtcore.errors import RequestError
from vtcore.foreign_params import FOREIGN_PARAMS
from vtcore.interfaces.batch import RowParams
from vtcore.request_checks import Problems
from vtcore.sampling.mixing import child_seed
from vtcore.suggest import did_you_mean

__all__ = [
    "MAX_BIASED_IDS",
    "MAX_COUNT",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_SEED",
    "MAX_STOPS",
    "Prompt",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "check_prompt",
    "child_seed",
    "parse_prompt",
    "resolve_max_tokens",
    "resolve_row_params",
]

MAX_N = 1024
"""Most samples of one prompt: a single request must not fill the queue. (vLLM's default is 16384.)"""
MAX_LOGPROBS = 20
"""Most likely ids reported per position, unless all are asked for. Source: vLLM, max_logprobs; OpenAI API."""
MAX_STOPS = 256
"""Most stop strings, stop token ids or bad words of one request."""
MAX_BIASED_IDS = 1024
"""Most entries of logit_bias. (OpenAI's limit is 300, vLLM has none.)"""
MAX_COUNT = 2**31 - 1
"""Largest top_k, max_tokens and min_tokens, an int32: no vocabulary and no sequence is longer."""
MAX_SEED = 2**63 - 1
"""Largest seed. Source: `RowParams.seed`, an int64."""


def _to_strings(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _to_tuple(value)


def _to_tuple(value: Any) -> Any:
    """Lists become tuples, None becomes (); anything else stays, for the checks to name."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else value


def _to_ids(value: Sequence[int] | None) -> tuple[int, ...]:
    ids: tuple[int, ...] = _to_tuple(value)
    return ids


def _to_ids_or_none(value: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if value is None else _to_ids(value)


_MAX_ID_DIGITS = 20


def _to_bias(value: Mapping[int, float] | Mapping[str, float] | None) -> dict[int, float] | None:
    """Keys written as decimal strings become ints; keys that cannot stay, for the checks to name."""
    if not isinstance(value, Mapping):
        return value
    bias: dict[Any, float] = {}
    for key, number in value.items():
        # Python refuses to read thousands of digits; such a text stays, as one that is no id.
        is_decimal = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= _MAX_ID_DIGITS
        bias[int(key) if is_decimal else key] = number
    return bias


@frozen(kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, when they end, and what is reported about them.

    Names and defaults are vLLM's. Lists are kept as tuples; None in place of a list means empty.

    Args:
        n: Samples of the prompt, 1 to 1024; sample i has seed `child_seed(seed, i)`.
        temperature: >= 0; below 1e-5 is greedy, and then top_k, top_p, min_p and seed have no effect.
        top_p: 0 < top_p <= 1; the smallest set of most likely ids with this mass stays. 1 keeps all.
        top_k: The k most likely ids stay, all ids tied with the k-th included; 0 or -1 keeps all; < 2**31.
        min_p: 0 <= min_p <= 1; ids with less than min_p times the largest probability go. 0 keeps all.
        repetition_penalty: > 0; 1 is off; over ids of prompt and output.
        presence_penalty, frequency_penalty: -2 to 2; 0 is off; over ids of the output.
        seed: 0 <= seed < 2**63; None lets the engine choose one.
        max_tokens: Output tokens at most, 1 <= max_tokens < 2**31; None is what the prompt leaves of
            max_model_len.
        min_tokens: No stop token is drawn before that many, 0 <= min_tokens <= max_tokens.
        stop: Strings that end the output, one or several, none empty; needs `detokenize`.
        stop_token_ids: Ids that end the output, beside the model's own end-of-sequence ids.
        ignore_eos: The model's own end-of-sequence ids do not end the output.
        logprobs: None, or how many of the most likely ids are reported per output token beside the one drawn,
            0 to 20; -1 reports the whole vocabulary.
        prompt_logprobs: The same for prompt tokens.
        logit_bias: Token id (an int or its decimal string) -> number added to its logit, -100 to 100.
        allowed_token_ids: None, or the only ids that may be drawn.
        bad_words: Texts that must not be completed.
        include_stop_str_in_output: The text ends with the stop string instead of right before it.
        skip_special_tokens: Special tokens do not show in the text.
        detokenize: Text is made; without it only ids are returned.

    Raises:
        RequestError: A name is no parameter, or a value is of the wrong type or outside its range; all such
            are named at once.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = field(default=(), converter=_to_strings)
    stop_token_ids: tuple[int, ...] = field(default=(), converter=_to_ids)
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = field(default=None, converter=_to_bias, hash=False)
    allowed_token_ids: tuple[int, ...] | None = field(default=None, converter=_to_ids_or_none)
    bad_words: tuple[str, ...] = field(default=(), converter=_to_strings)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True

    # For type checkers the generated signature stays; at run time a wrong name is the typed error.
    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            """Check the names before the generated initialiser sees them."""
            _check_names(options)
            self.__attrs_init__(**options)

    def __attrs_post_init__(self) -> None:
        check = Problems()
        check.integer("n", self.n, 1, MAX_N, "for more, send several requests")
        check.number("temperature", self.temperature, low=0.0)
        check.number("top_p", self.top_p, above=0.0, high=1.0, remedy="1 keeps all ids")
        check.integer("top_k", self.top_k, -1, MAX_COUNT, "0 keeps all ids")
        check.number("min_p", self.min_p, low=0.0, high=1.0, remedy="0 keeps all ids")
        check.number("repetition_penalty", self.repetition_penalty, above=0.0, remedy="1 turns it off")
        check.number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0, remedy="0 turns it off")
        check.number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0, remedy="0 turns it off")
        check.optional_integer("seed", self.seed, 0, MAX_SEED, "leave it out and the engine chooses one")
        has_max = check.optional_integer(
            "max_tokens", self.max_tokens, 1, MAX_COUNT, "leave it out for all that is left"
        )
        if check.integer("min_tokens", self.min_tokens, 0, MAX_COUNT) and has_max:
            check.that(
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; raise max_tokens",
            )
        if check.strings("stop", self.stop, MAX_STOPS) and self.stop and self.detokenize is False:
            check.that(
                False,
                "stop needs text, but detokenize=False makes none; use stop_token_ids or detokenize=True",
            )
        check.ids("stop_token_ids", self.stop_token_ids, MAX_STOPS)
        check.strings("bad_words", self.bad_words, MAX_STOPS)
        for name in ("logprobs", "prompt_logprobs"):
            remedy = "-1 reports the whole vocabulary; leave it out for none"
            check.optional_integer(name, getattr(self, name), -1, MAX_LOGPROBS, remedy)
        check.bias("logit_bias", self.logit_bias, MAX_BIASED_IDS)
        if self.allowed_token_ids is not None and check.ids("allowed_token_ids", self.allowed_token_ids):
            check.that(
                len(self.allowed_token_ids) > 0, "allowed_token_ids is empty; leave it out to allow all ids"
            )
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"):
            check.boolean(name, getattr(self, name))
        check.raise_if_any()

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> SamplingParams:
        """Parameters from a mapping of their names.

        Raises:
            RequestError: As above.
        """
        return cls(**options)


def _check_names(names: Iterable[object]) -> None:
    """Raises: RequestError, if one is no parameter; all are named, each with the closest one."""
    check = Problems()
    for name in names:
        sentence = name_problem(name)
        check.that(sentence is None, f"{shown(name)} is {sentence}")
    check.raise_if_any()


def name_problem(name: object) -> str | None:
    """Why a name is no sampling parameter that is served, as what follows "it is"; None when it is one."""
    known = [attribute.name for attribute in fields(SamplingParams)]
    if name in known:
        return None
    if isinstance(name, str) and name in FOREIGN_PARAMS:
        return f"not served: {FOREIGN_PARAMS[name]}"
    return f"not a sampling parameter{did_you_mean(str(name), known, see=REFERENCE)}"


def resolve_row_params(
    params: SamplingParams, seed: int, stop_ids: Sequence[int], bad_words: Sequence[Sequence[int]]
) -> RowParams:
    """What the sampler needs of `params`, with nothing left to default.

    Args:
        seed: 0 <= seed < 2**63, of this sample of the request.
        stop_ids: All ids that end the request: its stop_token_ids, and the model's own unless eos is ignored.
        bad_words: Token sequences of `params.bad_words`, as the tokenizer writes them.
    """
    return RowParams(
        temperature=float(params.temperature),
        top_k=max(params.top_k, 0),
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        repetition_penalty=float(params.repetition_penalty),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        seed=seed,
        logit_bias=tuple((key, float(bias)) for key, bias in (params.logit_bias or {}).items()),
        allowed_token_ids=params.allowed_token_ids,
        bad_words=tuple(tuple(word) for word in bad_words),
        min_tokens=params.min_tokens,
        stop_ids=tuple(dict.fromkeys(stop_ids)),
        logprobs=params.logprobs,
    )


def check_prompt(
    token_ids: Sequence[int],
    params: SamplingParams,
    vocab_size: int,
    max_model_len: int,
    more_room: str = "raise max_model_len",
) -> None:
    """Whether the model can serve this prompt with these parameters.

    Args:
        vocab_size: Ids are 0 <= id < vocab_size.
        max_model_len: Prompt and output together, in tokens.
        more_room: How whoever runs the engine can raise that, for the error; "" where there is no way.

    Raises:
        RequestError: The prompt is empty, too long to leave room for one token (or for min_tokens, where the
            context is the limit), or holds something else than ids of the vocabulary; or a parameter names an
            id outside it. All problems are named at once.
    """
    check = Problems()
    or_room = f" or {more_room}" if more_room else ""
    check.that(len(token_ids) > 0, "the prompt is empty; give at least one token")
    check.that(
        len(token_ids) + 1 <= max_model_len or not token_ids,
        f"the prompt has {len(token_ids)} tokens, but max_model_len={max_model_len} leaves room for "
        f"{max_model_len - 1} and one output token; shorten the prompt{or_room}",
    )
    left = max_model_len - len(token_ids)
    check.that(
        params.max_tokens is not None or params.min_tokens <= left or left < 1 or not token_ids,
        f"min_tokens={params.min_tokens} is above the {left} tokens that a prompt of {len(token_ids)} leaves "
        f"of max_model_len={max_model_len}; lower min_tokens{or_room}",
    )
    check.in_vocabulary("prompt_token_ids", token_ids, vocab_size)
    check.in_vocabulary("stop_token_ids", params.stop_token_ids, vocab_size)
    check.in_vocabulary("logit_bias", tuple(params.logit_bias or ()), vocab_size)
    check.in_vocabulary("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    check.raise_if_any()


def resolve_max_tokens(params: SamplingParams, prompt_len: int, max_model_len: int) -> int:
    """Output tokens at most: `params.max_tokens`, or all that a prompt of `prompt_len` tokens leaves."""
    return max_model_len - prompt_len if params.max_tokens is None else params.max_tokens


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids: any sequence of integers, numpy's too."""

    prompt_token_ids: Sequence[int] | NDArray[np.integer[Any]]


@frozen
class RenderedPrompt:
    """A conversation's text with its ids: the text is shown, the ids are what the model reads.

    Args:
        text: As the chat template wrote it.
        token_ids: Its encoding without the tokenizer's own prefix, which the template writes itself.
    """

    text: str
    token_ids: tuple[int, ...]


Prompt = str | TextPrompt | TokensPrompt | RenderedPrompt

_FORMS = 'a prompt is a string, {"prompt": "text"} or {"prompt_token_ids": [1, 2]}'


def parse_prompt(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """The prompt's text or its token ids, as Python's own integers; the other one is None, unless it was
    rendered.

    Raises:
        RequestError: It has another form.
    """
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, RenderedPrompt):
        return prompt.text, list(prompt.token_ids)
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise RequestError(f"a prompt of type {type(prompt).__name__} is not served; decode it: {_FORMS}")
    if not isinstance(prompt, Mapping):
        raise RequestError(f"a prompt of type {type(prompt).__name__} is not served: {_FORMS}")
    if set(prompt) == {"prompt"}:
        text = prompt["prompt"]  # type: ignore[typeddict-item]
        if not isinstance(text, str):
            raise RequestError(f'"prompt" is of type {type(text).__name__}, not a string: {_FORMS}')
        return text, None
    if set(prompt) == {"prompt_token_ids"}:
        ids = prompt["prompt_token_ids"]  # type: ignore[typeddict-item]
        return None, _plain_ids(ids)
    raise RequestError(f"a prompt with keys {sorted(map(str, prompt))} is not served: {_FORMS}")


def _plain_ids(ids: Any) -> list[int]:
    """Integers of any kind become ints; other items stay, for `check_prompt` to name by index."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1:
        plain: list[int] = ids.tolist()
        return plain
    if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Sequence):
        raise RequestError(
            f'"prompt_token_ids" is of type {type(ids).__name__}, not a sequence of integers: {_FORMS}'
        )
    return [int(item) if isinstance(item, np.integer) else item for item in ids]
