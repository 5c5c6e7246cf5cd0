"""FLOPs of the Qwen3.5 mixers that are no product with a weight: attention and the gated delta rule.

Does not: count projections, which the core reads from the rules, or anything elementwise.
"""

from __future__ import annotations

from vtcore.interfaces.model_arch import ModelCosts
from vtcore_qwen3_5_dense.config import FULL, LINEAR, Qwen35Config
from vtcore_qwen3_5_dense.ops.gated_delta_rule.chunk import CHUNK


def hybrid_costs(config: Qwen35Config) -> ModelCosts:
    """Costs of all mixers of one model; of the groups of experts it knows nothing."""
    num_full, num_linear = (config.layer_types.count(kind) for kind in (FULL, LINEAR))
    # q k^T and p v, two FLOPs for each of head_dim elements.
    pair = 4 * config.num_heads * config.head_dim
    return ModelCosts(
        pair_flops=num_full * pair,
        recurrence_flops=num_linear * config.linear_num_value_heads * _delta_rule_flops(config),
    )


def _delta_rule_flops(config: Qwen35Config) -> int:
    """For one token and value head, in chunks of C tokens.

    Of a chunk, with K and V the widths of a key and a value head: k k^T, q k^T and T k (2 C C K each), T v
    and the inner product with v (2 C C V each), the inverse of a triangular matrix (C C C); against the
    carried state w S, q S and the update (2 C K V each).
    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, section 3.
    """
    width_k, width_v = config.linear_key_head_dim, config.linear_value_head_dim
    return 2 * CHUNK * (3 * width_k + 2 * width_v) + CHUNK * CHUNK + 6 * width_k * width_v
