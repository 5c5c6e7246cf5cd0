"""Device copy of the sampling parameters that a draw without host reads needs, by table row.

Does not: hold lists (bans, biases): rows with those are sampled by the torch path.

Shape letters: R table rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vtcore.sampling.params_table import PACKED_COLUMNS, RowParamsTable

TEMPERATURE, MIN_P, TOP_P, SEED, TOP_K = range(len(PACKED_COLUMNS))
"""Columns; the first three are float64, the others int64."""


class DeviceParams:
    """Temperature, min_p, top_p, seed and top_k of each table row; row 0 stays plain greedy.

    Args:
        table: The host's values and the device. Every row starts as plain greedy.

    Attributes:
        ints_RC: [R, C] int64; the first three columns hold the bits of float64 numbers.
        floats_RC: The same memory as float64.
    """

    def __init__(self, table: RowParamsTable) -> None:
        self._table = table
        self.ints_RC = torch.zeros(len(table.flags), len(PACKED_COLUMNS), dtype=torch.int64).to(table.device)
        self.floats_RC = self.ints_RC.view(torch.float64)

    def update(self, rows: Sequence[int]) -> None:
        """Bring the host's values of `rows` to the device: one copy, without waiting for it.

        Args:
            rows: Table rows >= 1 whose parameters were set. Launches made later see the new values, and
                addresses stay, so a captured graph sees them too.
        """
        if not rows:
            return
        packed = self._table.send(self._table.pack(rows))
        self.ints_RC.index_copy_(0, packed[:, 0], packed[:, 1:])

    def columns(self, rows_N: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Parameters of logit rows.

        Args:
            rows_N: [N] int64 table rows, on the device.

        Returns:
            [N] each: temperature, min_p, top_p in float64; seed, top_k in int64.
        """
        floats, ints = self.floats_RC.index_select(0, rows_N), self.ints_RC.index_select(0, rows_N)
        return (floats[:, TEMPERATURE], floats[:, MIN_P], floats[:, TOP_P], ints[:, SEED], ints[:, TOP_K])
