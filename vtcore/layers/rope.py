"""Angles of the rotary position embedding, as one table per model.

Does not: rotate; see `vtcore.ops.rope`.

Shape letters: P positions, T query tokens, R rotated width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.interfaces.step import StepInputs
from vtcore.ops.once import once


class RotaryTable:
    """cos and sin of position * theta^(-2j/R) for j in [0, R/2).

    Source: Su et al. 2021, RoFormer, equation 15.

    Args:
        theta: Base of the geometric sequence of frequencies, > 0.
        rotary_dim: R, even, >= 2.
        max_position: P, positions served.
        dtype: Accumulation dtype of the rotation; angles are always formed in float64.
        device: torch device string.

    Attributes:
        table_PR: cos of R/2 angles, then their sin, by position.
    """

    def __init__(
        self, *, theta: float, rotary_dim: int, max_position: int, dtype: torch.dtype, device: str
    ) -> None:
        exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
        angles = torch.arange(max_position, dtype=torch.float64)[:, None] * theta**-exponent
        self.table_PR = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device=device, dtype=dtype)

    def at(self, step: StepInputs) -> tuple[Tensor, Tensor]:
        """The step's cos and sin, each [T, 1, R], looked up once per step.

        The halves of cos are equal; those of sin have opposite signs, as the op wants them.
        """
        return once(step, ("rotary", id(self)), lambda: self._look_up(step.positions))

    def _look_up(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.table_PR.index_select(0, positions_T).unsqueeze(1).chunk(2, -1)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
