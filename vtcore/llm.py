"""`LLM`: the offline interface, in vLLM's shape.

Does not: do anything itself; it builds an engine and hands prompts to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tqdm import tqdm

from vtcore.config.options import UserOptions
from vtcore.config.structure import structure_options
from vtcore.engine.engine import Engine, build_frontend
from vtcore.errors import RequestError
from vtcore.lifetime import LifetimeEvent
from vtcore.loader import Internals, load_core
from vtcore.outputs import RequestOutput
from vtcore.request import Prompt, SamplingParams
from vtcore.tokenization.tokenizer import Tokenizer


def load_engine(
    options: UserOptions,
    internals: Internals | None = None,
    on_event: Callable[[LifetimeEvent], None] | None = None,
) -> Engine:
    """Load a core and put the front end on it; arguments and errors as `load_core`."""
    return build_frontend(load_core(options, internals=internals, on_event=on_event))


class LLM:
    """A loaded model that generates.

    Args:
        model: Checkpoint directory.
        options: Fields of `UserOptions`, by name (dtype, device, block_size, num_blocks, max_model_len,
            max_num_seqs, max_num_batched_tokens, enable_prefix_caching, scheduling_policy, seed,
            skip_tokenizer_init, ...); None or absent means "decide for me".

    Raises:
        ConfigError: An option is unknown or illegal; all are named at once.
        CheckpointError: The checkpoint cannot be served.
        MemoryPlanError: Weights and caches do not fit.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.engine = load_engine(structure_options({"model": str(model), **options}))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or several; all are checked before the first one starts.

        Args:
            prompts: Each a string, {"prompt": text} or {"prompt_token_ids": ids}.
            sampling_params: One for all, or one per prompt; None is `SamplingParams()`.
            use_tqdm: Show progress on stderr.

        Returns:
            One finished output per prompt, in order.

        Raises:
            RequestError: A prompt or a parameter cannot be served; nothing was started.
            EngineClosedError: `close` was called.
        """
        if not isinstance(prompts, Iterable):
            raise RequestError(
                f"prompts is a {type(prompts).__name__}; give a prompt or a sequence of prompts"
            )
        several = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        params = sampling_params
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(several)
        if not isinstance(params, Sequence):
            raise RequestError(
                f"sampling_params is a {type(params).__name__}; give one SamplingParams, or one per prompt"
            )
        if len(params) != len(several):
            raise RequestError(
                f"{len(several)} prompts came with {len(params)} sampling_params; give one, or one for each"
            )
        with tqdm(total=len(several), disable=not use_tqdm, desc="generate", unit="prompt") as progress:
            return self.engine.generate(
                list(zip(several, params, strict=True)), lambda output: progress.update(1)
            )

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
