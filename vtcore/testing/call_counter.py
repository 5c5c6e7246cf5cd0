"""Counts aten calls, the host's cost of a step that no clock can blur.

Does not: time anything. Views, which run no kernel, are kept apart from calls that do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CallCounter(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        kernels: Calls that compute or write.
        views: Calls that only look at memory another way.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0
        self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call and count it."""
        result = func(*args, **(kwargs or {}))
        outputs = [o for o in (result if isinstance(result, tuple | list) else [result]) if _is_tensor(o)]
        inputs = {a.untyped_storage().data_ptr() for a in args if _is_tensor(a)}
        runs = (
            func._schema.is_mutable
            or not outputs
            or any(o.untyped_storage().data_ptr() not in inputs for o in outputs)
        )
        self.kernels += runs
        self.views += not runs
        return result


def _is_tensor(value: object) -> bool:
    # Packed weights have no storage to compare.
    return isinstance(value, Tensor) and value.layout is torch.strided
