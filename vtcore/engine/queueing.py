"""From a prompt and its parameters to the core's requests: what is wrong is found here, before any is queued.

Does not: queue them, choose their ids or follow them; the engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from vtcore.config.engine_config import EngineConfig
from vtcore.engine.output import Sample, SampleGroup
from vtcore.errors import RequestError
from vtcore.interfaces.batch import EngineRequest
from vtcore.request import (
    Prompt,
    SamplingParams,
    check_prompt,
    child_seed,
    parse_prompt,
    resolve_max_tokens,
    resolve_row_params,
)
from vtcore.request_handling import Handling, check_handling
from vtcore.scheduling.policy_args import check_policy_args
from vtcore.tokenization.detokenizer import IncrementalDetokenizer
from vtcore.tokenization.tokenizer import Tokenizer, encode_bad_words

if TYPE_CHECKING:
    from vtcore.interfaces.scheduler_policy import SchedulerPolicy


@frozen
class CheckedRequest:
    """A request that can be served: its text if it came as text, its ids, its bad words as ids.

    Args:
        policy_args: As JSON, checked by the policy; "" brings none.
    """

    text: str | None
    token_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]
    params: SamplingParams
    handling: Handling
    policy_args: str


@frozen(kw_only=True)
class RequestMaker:
    """What the requests of one engine have in common.

    Args:
        tokenizer: None serves token ids only.
        policy: Of the scheduler; says what a request may bring for it.
        config: The engine's settings.
        max_model_len: Tokens a request may reach, prompt and output.
        vocab_size: Token ids are below it.
        eos_token_ids: End a sample unless its parameters say otherwise.
    """

    tokenizer: Tokenizer | None
    policy: SchedulerPolicy
    config: EngineConfig
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def check(self, prompt: Prompt, params: SamplingParams, handling: Handling) -> CheckedRequest:
        """Everything that can be wrong with a request.

        Raises:
            RequestError: The prompt, a parameter or a word on its handling cannot be served.
        """
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is of type {type(params).__name__}, not a SamplingParams; make one"
            )
        text, ids = parse_prompt(prompt)
        if self.tokenizer is None and (text is not None or params.stop or params.bad_words):
            raise RequestError(
                "the engine has no tokenizer, so text prompts, stop and bad_words are not served; give "
                "prompt_token_ids and stop_token_ids, or start without skip_tokenizer_init"
            )
        if ids is None:
            assert self.tokenizer is not None
            assert text is not None
            ids = self.tokenizer.encode(text)
        check_prompt(ids, params, self.vocab_size, self.max_model_len, _more_room(self.config))
        bad_words: tuple[tuple[int, ...], ...] = ()
        if params.bad_words:
            assert self.tokenizer is not None
            bad_words = encode_bad_words(self.tokenizer, params.bad_words)
        check_handling(handling)
        policy_args = check_policy_args(self.policy, handling.policy_args)
        return CheckedRequest(text, tuple(ids), bad_words, params, handling, policy_args)

    def build(
        self, checked: CheckedRequest, request_id: str, number: int, arrival_s: float
    ) -> tuple[SampleGroup, list[EngineRequest]]:
        """What the front end follows, and the core's requests: one of each per sample, all handled alike.

        Args:
            request_id: In no use.
            number: The engine's prompts so far; seeds those that bring no seed.
            arrival_s: By the core's clock.
        """
        params, handling = checked.params, checked.handling
        eos = () if params.ignore_eos else self.eos_token_ids
        stop_ids = (*eos, *params.stop_token_ids)
        seed = params.seed
        if seed is None:
            seed = child_seed(self.config.model.seed, number + 1)
        max_tokens = resolve_max_tokens(params, len(checked.token_ids), self.max_model_len)
        decode = None if self.tokenizer is None else self.tokenizer.token_string
        group = SampleGroup(request_id, checked.text, checked.token_ids, params, decode)
        requests = []
        for index in range(params.n):
            sample = Sample(f"{request_id}/{index}", index, self._detokenizer(checked), group.decode)
            group.samples.append(sample)
            request = EngineRequest(
                id=sample.id,
                prompt_token_ids=checked.token_ids,
                params=resolve_row_params(params, child_seed(seed, index), stop_ids, checked.bad_words),
                max_tokens=max_tokens,
                stop_token_ids=params.stop_token_ids,
                eos_token_ids=eos,
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
                arrival_s=arrival_s,
                priority=handling.priority,
                tenant=handling.tenant or "",
                policy_args=checked.policy_args,
                cache_salt=handling.cache_salt or "",
                fork_of=group.samples[0].id if index else "",
            )
            requests.append(request)
        return group, requests

    def _detokenizer(self, checked: CheckedRequest) -> IncrementalDetokenizer | None:
        params = checked.params
        if self.tokenizer is None or not params.detokenize:
            return None
        return IncrementalDetokenizer(
            self.tokenizer,
            checked.token_ids,
            params.stop,
            params.include_stop_str_in_output,
            params.skip_special_tokens,
            params.min_tokens,
        )


def _more_room(config: EngineConfig) -> str:
    """What would make max_model_len larger: more cache, where that decided, else the option, where it did."""
    origin = config.origins.get("model.max_model_len")
    if origin is None or origin.source == "memory plan":
        return "give the cache more room (num_blocks or kv_cache_memory_bytes)"
    return "" if origin.source == "checkpoint" else "raise max_model_len"
