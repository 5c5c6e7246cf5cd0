"""`LLM`: the offline interface, in vLLM's shape.

Does not: do anything itself; it builds an engine and hands prompts to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from vtcore.config.engine_config import EngineConfig
from vtcore.config.layers import GivenOptions, gather_options
from vtcore.engine.chat import build_chat_renderer, render_conversations
from vtcore.engine.engine import Engine
from vtcore.engine.frontend import TextParts, build_frontend, load_text_parts
from vtcore.engine.metrics import Metric, collect_metrics
from vtcore.errors import ConfigError, RequestError
from vtcore.internals import Internals
from vtcore.lifetime import LifetimeEvent
from vtcore.loader import load_core
from vtcore.outputs import RequestOutput
from vtcore.registry import PluginRegistry
from vtcore.request import Prompt, RenderedPrompt, SamplingParams
from vtcore.request_handling import spread_handling
from vtcore.tokenization.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_BYTES = (bytes, bytearray, memoryview)


def load_engine(
    given: GivenOptions,
    internals: Internals | None = None,
    on_event: Callable[[LifetimeEvent], None] | None = None,
    registry: PluginRegistry | None = None,
) -> Engine:
    """Load a core and put the front end on it; arguments and errors as `load_core`."""
    for note in given.notes:
        log.info("%s", note)
    parts: list[TextParts] = []
    core = load_core(
        given.options,
        sources=given.sources,
        registry=registry,
        environment=given.environment,
        internals=internals,
        on_config=lambda config, checkpoint: parts.append(load_text_parts(config, checkpoint)),
        on_event=on_event,
    )
    return build_frontend(core, parts[0])


class LLM:
    """A loaded model that generates.

    Args:
        model: Checkpoint directory, checkpoint source or Hub id; None where `config` or VTCORE_MODEL has it.
        config: File of options, TOML or (by its ending) YAML; options given here win over it, and it wins
            over the environment. None reads no file.
        options: Fields of `UserOptions`, by name (dtype, device, block_size, num_blocks, max_model_len,
            max_num_seqs, max_num_batched_tokens, enable_prefix_caching, scheduling_policy, seed,
            generation_config, skip_tokenizer_init, ...); None or absent means "decide for me".

    Raises:
        ConfigError: An option is unknown or illegal; all are named at once.
        CheckpointError: The checkpoint cannot be served.
        MemoryPlanError: Weights and caches do not fit.
    """

    def __init__(
        self, model: str | Path | None = None, *, config: str | Path | None = None, **options: Any
    ) -> None:
        # Anything else goes on as it is, for its type to be refused with the other options.
        name = os.fspath(model) if isinstance(model, os.PathLike) else model
        if config is not None and not isinstance(config, str | os.PathLike):
            raise ConfigError(
                f"config is of type {type(config).__name__}; give the path of a file of options"
            )
        self.engine = load_engine(gather_options({"model": name, **options}, config_file=config))

    @property
    def config(self) -> EngineConfig:
        """Every setting of the engine as it was resolved; `config.origins` says where each came from."""
        return self.engine.loaded.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        tenant: str | Sequence[str | None] | None = None,
        policy_args: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or several; all are checked before the first one starts.

        Args:
            prompts: Each a string, {"prompt": text} or {"prompt_token_ids": ids}.
            sampling_params: One for all, or one per prompt, taken as they are; None is
                `get_default_sampling_params()`.
            priority: One for all, or one per prompt; -2**31 to 2**31 - 1, smaller goes first under a policy
                that looks at it, as `priority` does. `fcfs`, the default, does not. None is 0.
            tenant: Whose requests these are, one for all or one per prompt, at most 256 characters; for
                policies that share between tenants.
            policy_args: What else the scheduler policy takes, by name: one mapping for all, or one per
                prompt.
            cache_salt: One for all, or one per prompt, 1 to 256 characters. Prefixes are shared only between
                prompts of equal salt; None shares with all that have none.
            use_tqdm: Show progress on stderr.

        Returns:
            One finished output per prompt, in order. None of priority, tenant, policy_args and cache_salt
            changes it.

        Raises:
            RequestError: A prompt, a parameter or another argument cannot be served; nothing was started.
            EngineClosedError: `close` was called.
        """
        # Bytes are a sequence of numbers to Python, none of which is a prompt.
        if isinstance(prompts, _BYTES) or not isinstance(prompts, Iterable | RenderedPrompt):
            raise RequestError(
                f"prompts is of type {type(prompts).__name__}; give a prompt or a sequence of prompts"
            )
        several = [prompts] if isinstance(prompts, str | Mapping | RenderedPrompt) else list(prompts)
        params = sampling_params
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.get_default_sampling_params()] * len(several)
        if not isinstance(params, Sequence):
            raise RequestError(
                f"sampling_params is of type {type(params).__name__}; give one SamplingParams, or one for "
                f"each prompt"
            )
        if len(params) != len(several):
            raise RequestError(
                f"{len(several)} prompts came with {len(params)} sampling_params; give one, or one for each"
            )
        handling = spread_handling(
            len(several), priority=priority, tenant=tenant, policy_args=policy_args, cache_salt=cache_salt
        )
        with tqdm(total=len(several), disable=not use_tqdm, desc="generate", unit="prompt") as progress:
            return self.engine.generate(
                list(zip(several, params, strict=True)), lambda output: progress.update(1), handling
            )

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        tenant: str | Sequence[str | None] | None = None,
        policy_args: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation or several.

        Args:
            messages: A list of messages in the form of the Chat Completions API, or a list of such lists.
            sampling_params: One for all, or one per conversation, taken as they are; None is
                `get_default_sampling_params()` with max_tokens as the checkpoint sets it, else all that the
                prompt leaves of the context.
            tools: JSON objects that describe functions, `{"type": "function", "function": {...}}` or the
                inner ones, for all conversations.
            documents: JSON objects that the template may show.
            chat_template: Jinja source, or the name of one of the checkpoint's templates; None lets the
                option `chat_template` and the checkpoint decide.
            add_generation_prompt: The prompt ends where the assistant's answer begins.
            continue_final_message: The prompt ends right after the last message, an assistant's, which the
                output continues; needs add_generation_prompt=False.
            chat_template_kwargs: Variables for the template: {"enable_thinking": False}.
            priority, tenant, policy_args, cache_salt: As for `generate`, one for all or one per conversation.
            use_tqdm: Show progress on stderr.

        Returns:
            One finished output per conversation, in order; its `prompt` is what the template wrote.

        Raises:
            RequestError: A message, tool or parameter cannot be served; nothing was started.
            ChatTemplateError: The chat template refuses the messages, fails on them or exceeds its limits.
            ConfigError: The file of the option `chat_template` is no readable template any more.
            EngineClosedError: `close` was called.
        """
        renderer = build_chat_renderer(self.engine)
        prompts = render_conversations(
            renderer,
            messages,
            tools=tools,
            documents=documents,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        if sampling_params is None:
            defaults = self.engine.sampling_defaults
            sampling_params = defaults.params(max_tokens=defaults.given.get("max_tokens"))
        return self.generate(
            prompts,
            sampling_params,
            priority=priority,
            tenant=tenant,
            policy_args=policy_args,
            cache_salt=cache_salt,
            use_tqdm=use_tqdm,
        )

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters of a prompt that brings none: those of the options `generation_config` and
        `override_generation_config`, and `SamplingParams()` for all else.
        """
        return self.engine.sampling_defaults.params()

    def reset_prefix_cache(self) -> None:
        """Let no later request start from anything that was computed before this call.

        Requests that run meanwhile go on unharmed; a second call changes nothing. Use it where prompts or
        weights are compared, or where a tenant's prompts are to be forgotten.

        Raises:
            EngineClosedError: `close` was called.
        """
        self.engine.reset_prefix_cache()

    def get_metrics(self) -> tuple[Metric, ...]:
        """What the engine has done and holds, as it stands now; docs/metrics.md lists the names.

        Raises:
            EngineClosedError: `close` was called.
        """
        return collect_metrics(self.engine)

    def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None when it was skipped."""
        return self.engine.tokenizer

    def close(self) -> None:
        """Free everything; idempotent."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
