"""The gated attention mixer: projection, head norms, partial rotation, paged attention, gate, projection.

Does not: choose blocks or hold keys; the core owns them.

Shape letters: T query tokens, H hidden size, N query heads, G key/value heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.model_arch import BuildContext
from vtcore.interfaces.step import LayerCache, PagedPool, StepInputs
from vtcore.layers.norm import build_rms_weight
from vtcore.layers.paged_kv import PagedKV, build_paged_kv
from vtcore.layers.rope import RotaryTable
from vtcore_qwen3_5_dense.config import Qwen35Config


class GatedAttention:
    """One full attention layer's mixer.

    Args:
        config: Geometry.
        ctx: Weights and ops.
        name: Parameter prefix, "layers.3.".
        rotary: Angles, shared by all layers.
    """

    def __init__(self, config: Qwen35Config, ctx: BuildContext, name: str, rotary: RotaryTable) -> None:
        name += "attn."
        self._scale = config.head_dim**-0.5
        rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._split = (rows + kv_rows, kv_rows, rows)
        self._in_proj = ctx.linear(f"{name}in_proj")
        self._out_proj = ctx.linear(f"{name}out_proj")
        q_norm, k_norm = ctx.param(f"{name}q_norm"), ctx.param(f"{name}k_norm")
        # Query and key heads lie side by side, so one norm with a weight per head serves both.
        by_head = torch.cat((q_norm.expand(config.num_heads, -1), k_norm.expand(config.num_kv_heads, -1)))
        self._qk_norm = build_rms_weight(by_head, config.rms_norm_eps, zero_centred=True)
        self._rotary = rotary
        self._prepare = ctx.ops["qk_norm_rope_write"]
        self._attend = ctx.ops["paged_attention"]
        self._kv: PagedKV | None = None

    def bind(self, cache: LayerCache) -> None:
        """Take the layer's `k` and `v`, each [blocks, block_size, G, D]."""
        self._kv = build_paged_kv(cache)

    def __call__(self, x_TH: Tensor, step: StepInputs) -> Tensor:
        """[T, H] -> [T, H]; writes the tokens' keys and values.

        Raises:
            EngineError: No caches were bound, or the bound pool is not one of blocks.
        """
        if self._kv is None:
            raise EngineError("an attention layer ran before its caches were bound")
        pool = step.pools[self._kv.pool]
        if not isinstance(pool, PagedPool):
            raise EngineError(f"pool {self._kv.pool} holds slots, but an attention layer was bound to it")
        qk, v, gate = self._in_proj(x_TH).split_with_sizes(self._split, -1)
        q_TND: Tensor = self._prepare(qk, v, self._qk_norm, self._rotary, self._kv, step, pool)
        out_TND: Tensor = self._attend(q_TND, self._kv, step, pool, self._scale, gate)
        return self._out_proj(out_TND.view(gate.shape))
