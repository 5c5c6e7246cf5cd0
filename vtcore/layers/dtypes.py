"""The one rule for the precision of sums.

Does not: choose the engine's dtype.
"""

from __future__ import annotations

import torch

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
"""Dtype names of options and cache specs."""


def acc_dtype(dtype: torch.dtype) -> torch.dtype:
    """Accumulation dtype of every naive op: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
