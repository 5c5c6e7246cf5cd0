"""Lifts the float32 casts inside a reference model, so that it computes in float64 throughout.

Does not: change anything outside the context manager, or know a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn


@contextmanager
def float32_casts_lifted() -> Iterator[None]:
    """Inside, casting float64 to float32 leaves it alone, and integers (positions) become float64."""
    to, softmax = Tensor.to, nn.functional.softmax

    def keep(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.dtype == torch.float64:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return to(self, *args, **kwargs)

    def wide_float(self: Tensor) -> Tensor:
        is_narrow = self.is_floating_point() and self.dtype != torch.float64
        return to(self, torch.float32 if is_narrow else torch.float64)

    def wide_softmax(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype == torch.float64:
            kwargs["dtype"] = None
        return softmax(x, *args, **kwargs)

    with (
        patch.object(Tensor, "to", keep),
        patch.object(Tensor, "float", wide_float),
        patch.object(nn.functional, "softmax", wide_softmax),
    ):
        yield
