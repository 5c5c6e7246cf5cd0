"""The synchronous front end: prompts in, request outputs out, over one core.

Does not: schedule or sample. Text is made here, stop strings are matched here, and what follows a match is
dropped here; the core is only told to stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from vtcore.engine.core import AddRequest, FinishRequest, ResetPrefixCache, counters_of
from vtcore.engine.interrupts import interrupts_deferred
from vtcore.engine.metrics import FrontendCounts
from vtcore.engine.output import Sample, SampleGroup
from vtcore.engine.queueing import CheckedRequest as CheckedRequest
from vtcore.engine.queueing import RequestMaker
from vtcore.engine.sampling_defaults import SamplingDefaults, combine_sampling_defaults
from vtcore.errors import EngineClosedError, EngineError, RequestError
from vtcore.ops.compile_count import num_late
from vtcore.outputs import RequestOutput
from vtcore.request import Prompt, SamplingParams
from vtcore.request_handling import NO_HANDLING, Handling
from vtcore.tokenization.eos import resolve_eos_token_ids
from vtcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from vtcore.loader import LoadedCore

log = logging.getLogger(__name__)


class Engine:
    """One core with its tokenizer.

    Args:
        loaded: Owned from now on; `close` closes it.
        tokenizer: None serves token ids only.
        sampling_defaults: Of requests that bring no parameters; None is SamplingParams' own.
    """

    def __init__(
        self,
        loaded: LoadedCore,
        tokenizer: Tokenizer | None,
        sampling_defaults: SamplingDefaults | None = None,
    ) -> None:
        self.loaded = loaded
        self.tokenizer = tokenizer
        self.sampling_defaults = sampling_defaults or combine_sampling_defaults({})
        self.counts = FrontendCounts()
        checkpoint = loaded.checkpoint
        self.eos_token_ids = resolve_eos_token_ids(
            checkpoint.generation_config if checkpoint is not None else {},
            checkpoint.tokenizer_config if checkpoint is not None else {},
            loaded.hf_config,
            None if tokenizer is None else tokenizer.token_id,
        )
        self._core = loaded.core
        self._maker = RequestMaker(
            tokenizer=tokenizer,
            policy=loaded.policy,
            config=loaded.config,
            max_model_len=self.max_model_len,
            vocab_size=loaded.arch.dims.vocab_size,
            eos_token_ids=self.eos_token_ids,
        )
        self._groups: dict[str, SampleGroup] = {}
        self._samples: dict[str, tuple[SampleGroup, Sample]] = {}
        self._unclaimed: list[RequestOutput] = []
        self._held: list[RequestOutput] = []
        self._lock = threading.Lock()
        self._numbers = count()
        self._closed = False

    @property
    def max_model_len(self) -> int:
        """Tokens a request may reach, prompt and output."""
        return self.loaded.plan.max_model_len

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has more to give."""
        return bool(self._groups or self._unclaimed)

    @property
    def unfinished_sample_ids(self) -> Collection[str]:
        """Ids, as the core knows them, of all samples that go on."""
        return self._samples.keys()

    def check_request(
        self, prompt: Prompt, params: SamplingParams, handling: Handling = NO_HANDLING
    ) -> CheckedRequest:
        """Everything that can be wrong with a request, found before the engine sees any of it.

        Raises:
            RequestError: The prompt, a parameter or a word on its handling cannot be served.
        """
        return self._maker.check(prompt, params, handling)

    def _check_numbered(
        self, index: int, count: int, prompt: Prompt, params: SamplingParams, handling: Handling
    ) -> CheckedRequest:
        try:
            return self.check_request(prompt, params, handling)
        except RequestError as error:
            if count == 1:
                raise
            raise RequestError(f"prompt {index} of {count}: {error}") from error

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        handling: Handling = NO_HANDLING,
    ) -> str:
        """Queue a prompt; n > 1 becomes as many requests of the core, all handled alike.

        Args:
            request_id: Any text that is not in use; None lets the engine choose.
            handling: Priority, tenant, policy_args and cache salt.

        Returns:
            The request's id.

        Raises:
            RequestError: The request cannot be served, or its id is no text or in use; nothing was queued.
            EngineClosedError: The engine is closed.
        """
        self._check_open()
        if request_id is not None and not isinstance(request_id, str):
            raise RequestError(f"request id {request_id!r} is no text; give a string or leave it out")
        if request_id in self._groups:
            raise RequestError(f"request id {request_id!r} is in use; choose another")
        return self._queue(self.check_request(prompt, params, handling), request_id)

    def _queue(self, checked: CheckedRequest, request_id: str | None = None) -> str:
        number = next(self._numbers)
        if request_id is None:
            while f"request-{number}" in self._groups:
                number = next(self._numbers)
            request_id = f"request-{number}"
        group, requests = self._maker.build(checked, request_id, number, self._core.scheduler.now_s())
        self.counts.prompt_tokens += len(checked.token_ids)
        self._samples.update((sample.id, (group, sample)) for sample in group.samples)
        self._core.inbox.extend(map(AddRequest, requests))
        self._groups[request_id] = group
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request; None if it is unknown or has ended."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return None
        for sample in group.samples:
            if sample.finish_reason is None:
                sample.finish("abort")
                self.counts.finished["abort"] += 1
                self._core.inbox.append(FinishRequest(sample.id, "abort"))
            self._samples.pop(sample.id, None)
        return group.output()

    def step(self, final_only: bool = False) -> list[RequestOutput]:
        """Run one step of the core.

        Args:
            final_only: Leave unfinished requests out; a long output is then not copied at every token.

        Returns:
            An output for every request with new tokens, its state so far.
        """
        self._check_open()
        if not self._lock.acquire(blocking=False):
            raise EngineError(
                "another thread is in a step of this engine; use one engine per thread, or a lock"
            )
        try:
            with interrupts_deferred():
                outputs = self._step(final_only)
        except BaseException:
            # What a failed or interrupted step had to give is given by the next one.
            self._unclaimed, self._held = self._held, []
            raise
        finally:
            self._lock.release()
        self._held = []
        return outputs

    def _step(self, final_only: bool) -> list[RequestOutput]:
        outputs, self._unclaimed = self._unclaimed, []
        self._held = outputs
        touched: dict[str, SampleGroup] = {}
        for update in self._core.step():
            known = self._samples.get(update.id)
            if known is None:
                continue
            group, sample = known
            group.note(update)
            before = len(sample.token_ids)
            if sample.take(update, group.params):
                self._core.inbox.append(FinishRequest(sample.id, "stop", len(sample.token_ids)))
            self.counts.generation_tokens += max(0, len(sample.token_ids) - before)
            if sample.finish_reason is not None:
                self.counts.finished[sample.finish_reason] += 1
                del self._samples[sample.id]
            touched[group.request_id] = group
        for group in touched.values():
            if group.is_finished:
                del self._groups[group.request_id]
            elif final_only:
                continue
            outputs.append(group.output())
        return outputs

    def generate(
        self,
        requests: Sequence[tuple[Prompt, SamplingParams]],
        on_finished: Callable[[RequestOutput], object] = lambda output: None,
        handling: Sequence[Handling] | None = None,
    ) -> list[RequestOutput]:
        """Run requests to their end; all are checked before the first one starts.

        Requests that `add_request` queued go on meanwhile; the next `step` returns what they finished.

        Args:
            on_finished: Told of each output as it finishes.
            handling: One for each request; None is `NO_HANDLING` for all.

        Raises:
            RequestError: One of them cannot be served; none was started.
            EngineClosedError: The engine is closed.
        """
        self._check_open()
        handling = [NO_HANDLING] * len(requests) if handling is None else handling
        handled = zip(requests, handling, strict=True)
        checked = [
            self._check_numbered(index, len(requests), *request, how)
            for index, (request, how) in enumerate(handled)
        ]
        num_nan = self._num_nan_rows()
        ids: list[str] = []
        done: dict[str, RequestOutput] = {}
        foreign: list[RequestOutput] = []
        try:
            for request in checked:
                ids.append(self._queue(request))
            own = set(ids)
            while len(done) < len(ids):
                for output in self.step(final_only=True):
                    if output.request_id in own:
                        done[output.request_id] = output
                        on_finished(output)
                    else:
                        foreign.append(output)
        except BaseException:
            # Ctrl-C or a fault must not leave half of the batch running into the next call.
            for request_id in ids:
                self.abort(request_id)
            raise
        finally:
            self._unclaimed += foreign
        if num_nan := self._num_nan_rows() - num_nan:
            log.warning("%d tokens came from logits with NaN: the weights or the dtype are at fault", num_nan)
        return [done[request_id] for request_id in ids]

    def reset_prefix_cache(self) -> None:
        """Let no later request start from anything that was computed before this call.

        Requests that run go on unharmed. May be called from any thread, at any time, as often as liked.

        Raises:
            EngineClosedError: The engine is closed.
        """
        self._check_open()
        self._core.inbox.append(ResetPrefixCache())

    def close(self) -> None:
        """End every request and take the engine down; idempotent."""
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._groups):
            self.abort(request_id)
        self.loaded.close()
        del self._core

    def stats(self) -> Mapping[str, int]:
        """Counters since the start: of the scheduler, the core, plugins' breaches, faults in sampling."""
        self._check_open()
        sampler = self.loaded.runner.sampler.counters()
        return {
            **counters_of(self._core),
            "nan_logit_rows": sampler.num_nan_rows,
            "empty_logit_rows": sampler.num_empty_rows,
            "policy_breaches": self._core.scheduler.policy.breaches,
            "kv_cache_spec_breaches": self._core.scheduler.memory.guard.breaches,
            "illegal_drafts": self.loaded.runner.num_illegal_drafts,
            "late_kernels": num_late(),
        }

    def _num_nan_rows(self) -> int:
        return self.loaded.runner.sampler.counters().num_nan_rows

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine is closed; make a new one")
