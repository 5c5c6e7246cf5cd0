"""The numbers of a Qwen3.5 mixture-of-experts text model, read from any form of its config.json.

Does not: read files or know tensor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from vtcore_qwen3_5_dense.public import Qwen35Config, parse_config, read_count, refuse_field, text_section

_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
}
"""Where the class defaults differ from the dense models'.

Source: transformers, Qwen3_5MoeTextConfig.
"""

_SERVED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "decoder_sparse_step": ((None, 1), "1 (every layer has experts)"),
    "mlp_only_layers": ((None, [], ()), "an empty list (every layer has experts)"),
    "norm_topk_prob": ((None, True), "true (the weights of the chosen experts always sum to 1)"),
    "scoring_func": ((None, "softmax"), "'softmax'"),
    "routed_scaling_factor": ((None, 1), "1"),
    "n_group": ((None, 1), "1 (experts are chosen among all)"),
    "topk_group": ((None, 1), "1 (experts are chosen among all)"),
}
"""Fields of other mixtures of experts that writers may leave here: values served, and how to say so."""


@frozen(kw_only=True)
class Qwen35MoeConfig:
    """Geometry of the text model.

    Args:
        text: What it has in common with the dense models; its `intermediate_size` means nothing here.
        num_experts: Routed experts of each layer.
        experts_per_token: How many of them each token goes to, at most `num_experts`.
        expert_size: Inner width of a routed expert.
        shared_size: Inner width of the shared expert.
    """

    text: Qwen35Config
    num_experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int

    @property
    def shared_is_group(self) -> bool:
        """Whether the shared expert is as wide as the routed ones, and so one group more of their
        products."""
        return self.shared_size == self.expert_size


def parse_moe_config(hf_config: Mapping[str, Any]) -> Qwen35MoeConfig:
    """Read nested and flat forms; absent fields take the class defaults of the released models.

    Source of defaults: transformers, Qwen3_5MoeTextConfig.

    Args:
        hf_config: The parsed config.json, outer form.

    Raises:
        CheckpointError: A field has a wrong type or range, or a value that is not served.
    """
    section = text_section(hf_config)
    for field, (values, wanted) in _SERVED.items():
        value = section.get(field)
        # True equals 1 in Python, but not in a config.
        if not any(
            value == served and isinstance(value, bool) == isinstance(served, bool) for served in values
        ):
            raise refuse_field(field, value, wanted)
    num_experts = read_count(section, "num_experts", 256)
    experts_per_token = read_count(section, "num_experts_per_tok", 8)
    if experts_per_token > num_experts:
        raise refuse_field("num_experts_per_tok", experts_per_token, f"at most num_experts ({num_experts})")
    # Files may carry a meaningless intermediate_size; the dense parser refuses experts.
    dense = {key: section[key] for key in section if key not in ("num_experts", "intermediate_size")}
    return Qwen35MoeConfig(
        text=parse_config({**hf_config, "text_config": {**_DEFAULTS, **dense}}),
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert_size=read_count(section, "moe_intermediate_size", 512),
        shared_size=read_count(section, "shared_expert_intermediate_size", 512),
    )
