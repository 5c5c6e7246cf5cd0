"""A request's token budget: how many tokens one step may compute, resolved once and spent here.

Does not: choose who gets it; the scheduler asks in its order.
"""

from __future__ import annotations

from attrs import define

from vtcore.errors import ConfigError


def resolve_token_budget(
    explicit: int | None, max_num_seqs: int, max_model_len: int, arch_default: int
) -> int:
    """Decide `max_num_batched_tokens`, the query tokens one step may compute.

    The default never grows with `max_num_seqs`: the activations of a chunked prefill grow with the tokens
    of a step, whatever the number of requests. It shrinks to what all rows together can hold, and every
    running request can always get one token.

    Args:
        explicit: The user's value in tokens; None applies the arch's default.
        max_num_seqs: Requests that run at once, >= 1.
        max_model_len: Tokens per request, >= 1.
        arch_default: The arch's own default in tokens, >= 1.

    Returns:
        Tokens, >= max_num_seqs.

    Raises:
        ConfigError: `explicit` is below `max_num_seqs`.

    Source: vllm.cpp model_loader.h ResolveMaxNumBatchedTokens for the default, its ceiling and floor; vLLM
    config/scheduler.py SchedulerConfig.verify_max_model_len for refusing a value below the floor.
    """
    if explicit is not None:
        if explicit < max_num_seqs:
            raise ConfigError(
                f"$.max_num_batched_tokens: {explicit} is below max_num_seqs {max_num_seqs}, so a running "
                f"request could starve; raise it to {max_num_seqs} or lower max_num_seqs"
            )
        return explicit
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
