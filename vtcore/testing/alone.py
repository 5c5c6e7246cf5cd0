"""What each request of a real architecture gives alone, checked once against a reference's logits.

Does not: schedule anything beside the one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vtcore.config.env import Environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest
from vtcore.interfaces.batch import EngineRequest, RowParams, TokenLogprobs
from vtcore.loader import load_core
from vtcore.registry import PluginRegistry
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler
from vtcore.testing.schedule_case import ToyMask


class Alone:
    """Runs one request at a time on one engine, for good.

    Args:
        registry, hf_config, tensors: As `load_core` takes them.
        reference_logits: Token ids -> [T, V] float64 logits of the reference.
        vocab_size: V.
        dtype: The engine's.
        max_model_len: Tokens per request.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        hf_config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        reference_logits: Callable[[list[int]], Tensor],
        *,
        vocab_size: int,
        dtype: str = "float64",
        max_model_len: int = 512,
    ) -> None:
        self.tensors = tensors
        self.reference_logits = reference_logits
        self.vocab_size = vocab_size
        self.loaded = load_core(
            UserOptions(dtype=dtype, max_model_len=max_model_len, block_size=32),
            hf_config=hf_config,
            tensors=tensors,
            registry=registry,
            environment=Environment(),
        )
        self.known: dict[object, tuple[list[int], list[TokenLogprobs | None]]] = {}

    def continue_prompt(
        self,
        prompt: Sequence[int],
        params: RowParams,
        num_tokens: int,
        mask: Callable[[Sequence[int]], bytes | None] | None = None,
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Sample `num_tokens` tokens; the first time they are held to the reference.

        Raises:
            AssertionError: The engine alone differs from the reference.
        """
        key = (tuple(prompt), params, num_tokens, mask is None)
        if key not in self.known:
            self.known[key] = self.run(tuple(prompt), params, num_tokens, mask is not None)
            self._check(prompt, params, *self.known[key], mask)
        return self.known[key]

    def run(
        self, prompt: tuple[int, ...], params: RowParams, num_tokens: int, masked: bool
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Tokens and log probabilities of one request, unchecked."""
        core = self.loaded.core
        request = EngineRequest(
            id="alone", prompt_token_ids=prompt, params=params, max_tokens=num_tokens, needs_mask=masked
        )
        core.inbox.append(AddRequest(request, ToyMask(self.vocab_size) if masked else None))
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        while core.has_work:
            for update in core.step():
                tokens += update.tokens
                logprobs += update.logprobs
        assert len(tokens) == num_tokens
        return tokens, logprobs

    def _check(
        self,
        prompt: Sequence[int],
        params: RowParams,
        tokens: list[int],
        logprobs: list[TokenLogprobs | None],
        mask: Callable[[Sequence[int]], bytes | None] | None,
    ) -> None:
        """Teacher-forced: the reference's logits after every prefix must sample the same tokens."""
        ids = [*prompt, *tokens]
        start = len(prompt) - 1
        logits = self.reference_logits(ids[:-1])[start:]
        table = RowParamsTable(2, self.vocab_size, "cpu")
        table.set(1, params, len(prompt))
        masks = None if mask is None else [mask(ids[: start + 1 + i]) for i in range(len(tokens))]
        positions = torch.arange(start + 1, len(ids))
        history = torch.tensor([[0] * len(ids), ids])
        out = Sampler(table).sample(logits, [1] * len(tokens), positions, history, masks)
        assert out.ids_N.tolist() == tokens, "the engine alone differs from the reference"
        if params.logprobs is not None:
            for found, wanted in zip(logprobs, out.logprobs, strict=True):
                assert found is not None
                assert wanted is not None
                assert abs(found.logprob - wanted.logprob) <= 1e-8
                assert found.top_ids == wanted.top_ids
