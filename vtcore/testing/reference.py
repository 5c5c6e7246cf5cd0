"""One request at a time, from scratch: what any schedule of the toy architecture must give.

Does not: use pools, frames or the scheduler. Sampling is the engine's own sampler on single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import frozen

from vtcore.interfaces.batch import RowParams, TokenLogprobs
from vtcore.sampling.params_table import RowParamsTable
from vtcore.sampling.sampler import Sampler
from vtcore.testing.toy_hash import hidden_of, logits_of


@frozen
class ToyReference:
    """The toy model's parts, as its config gives them."""

    vocab_size: int
    parts: tuple[str, ...]
    window: int

    def hidden(self, tokens: Sequence[int]) -> int:
        """Hidden value after `tokens`."""
        return hidden_of(tokens, self.window, self.parts)

    def continue_prompt(
        self,
        prompt: Sequence[int],
        params: RowParams,
        num_tokens: int,
        mask: Callable[[Sequence[int]], bytes | None] | None = None,
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Sample `num_tokens` tokens, stopping for nothing.

        Returns:
            The output tokens and their logprobs.
        """
        table = RowParamsTable(2, self.vocab_size, "cpu")
        table.set(1, params, len(prompt))
        sampler = Sampler(table)
        history = torch.zeros((2, len(prompt) + num_tokens), dtype=torch.int64)
        history[1, : len(prompt)] = torch.tensor(list(prompt))
        tokens, logprobs = list(prompt), []
        for _ in range(num_tokens):
            logits = torch.tensor([logits_of(self.hidden(tokens), self.vocab_size)], dtype=torch.float64)
            masks = None if mask is None else [mask(tokens)]
            out = sampler.sample(logits, [1], torch.tensor([len(tokens)]), history, masks)
            history[1, len(tokens)] = out.ids_N[0]
            tokens.append(int(out.ids_N[0]))
            logprobs.append(out.logprobs[0])
        return tokens[len(prompt) :], logprobs
