"""A request's token budget: how many tokens one step may compute, resolved once and spent here.

Does not: choose who gets it; the scheduler asks in its order.
"""

from __future__ import annotations

from attrs import define


def resolve_token_budget(
    explicit: int | None, max_num_seqs: int, max_model_len: int, arch_default: int
) -> int:
    """Decide `max_num_batched_tokens`, the query tokens one step may compute.

    The default never grows with `max_num_seqs`: the activations of a chunked prefill grow with the tokens
    of a step, whatever the number of requests. It shrinks to what all rows together can hold. A given value
    has no ceiling. Every running request can always get one token: any value is raised to max_num_seqs.

    Args:
        explicit: The user's value in tokens, >= 1; None applies the arch's default.
        max_num_seqs: Requests that run at once, >= 1.
        max_model_len: Tokens per request, >= 1.
        arch_default: The arch's own default in tokens, >= 1.

    Returns:
        Tokens, >= max_num_seqs.

    Source: vllm.cpp model_loader.h, ResolveMaxNumBatchedTokens.
    """
    if explicit is not None:
        return max(explicit, max_num_seqs)
    return max(min(arch_default, max_model_len * max_num_seqs), max_num_seqs)


@define
class StepBudget:
    """The tokens left in one step.

    Args:
        left: max_num_batched_tokens at the start of the step, >= 1.
    """

    left: int

    def take(self, num_tokens: int) -> None:
        """Spend `num_tokens`; the caller has seen that they are left.

        Raises:
            ValueError: More is taken than is left.
        """
        if num_tokens > self.left:
            raise ValueError(f"step budget has {self.left} tokens left, {num_tokens} asked")
        self.left -= num_tokens
