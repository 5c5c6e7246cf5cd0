"""What the user may set: who weighs how much, and what a token costs.

Does not: know tenants that are not named; they weigh `default_weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Attribute, field, frozen, validators

LEAST, MOST = 1e-6, 1e6
"""Of weights and costs; so no sum of them is infinite or lost in rounding."""

_in_range = validators.and_(validators.ge(LEAST), validators.le(MOST))


def _each_in_range(instance: Any, attribute: Attribute[Any], weights: Mapping[str, float]) -> None:
    for tenant, weight in weights.items():
        if not LEAST <= weight <= MOST:
            raise ValueError(f"the weight of {tenant!r} is {weight}, not from {LEAST:g} to {MOST:g}")


@frozen(kw_only=True)
class FairShareOptions:
    """`--policy-config JSON`. Of two tenants that both wait, one of twice the weight is served twice as much.

    Args:
        weights: Tenant -> weight.
        default_weight: Of tenants that are not named, each; the tenant "" is those that give no name.
        prompt_cost: Of a prompt token that is computed; one that the prefix cache has is free.
        output_cost: Of an output token; twice a prompt token's by default.
            Source: Sheng et al., Fairness in serving large language models (OSDI 2024), w_p = 1 and w_q = 2.
    """

    weights: Mapping[str, float] = field(factory=dict, validator=_each_in_range)
    default_weight: float = field(default=1.0, validator=_in_range)
    prompt_cost: float = field(default=1.0, validator=_in_range)
    output_cost: float = field(default=2.0, validator=_in_range)
