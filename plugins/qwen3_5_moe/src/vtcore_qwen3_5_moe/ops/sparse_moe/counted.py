"""The mixture of experts for benchmarks: with a count of the experts that its steps read, and with a routing
that prefers some experts.

Serves where the `op_overrides` option names a function of it; without that nothing of it runs. Skewed, expert
e is chosen as if its probability were divided by 1 + e. The count is kept on the device; rows that pad a step
count too, as their experts are read too.
Does not: change a result by counting.

Shape letters: as in `naive`; R routed experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vtcore.interfaces.model_arch import GroupedLinear
from vtcore.layers.dtypes import acc_dtype
from vtcore_qwen3_5_moe.ops.sparse_moe import naive

_tallies: dict[torch.device, Tensor] = {}
"""By device, int64 [3]: calls, and the sums over them of experts with a row and of rows of the fullest."""
_penalties: dict[tuple[torch.device, torch.dtype, int], Tensor] = {}
"""By device, dtype and width of the logits: what the skewed routing takes off them, [X]."""


def sparse_moe_counted(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """See `naive.sparse_moe`."""
    _count(gates_TX, top_k)
    return _serve(x_TH, gates_TX, in_proj, out_proj, top_k, shared_TH)


def sparse_moe_skewed(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """See `naive.sparse_moe`; one subtraction more."""
    return _serve(x_TH, _skewed(gates_TX), in_proj, out_proj, top_k, shared_TH)


def sparse_moe_skewed_counted(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    """See `naive.sparse_moe`."""
    return sparse_moe_counted(x_TH, _skewed(gates_TX), in_proj, out_proj, top_k, shared_TH)


def take_tally() -> tuple[int, int, int]:
    """Calls (one per layer and step) since the last look, and the sums over them of distinct routed experts
    and of the rows of the expert that got most.

    Waits for the device.
    """
    totals = [tally.tolist() for tally in _tallies.values() if not tally.is_meta]
    # The tallies are made in this mode, and so may be written in no other.
    with torch.inference_mode():
        for tally in _tallies.values():
            tally.zero_()
    calls, distinct, largest = (sum(total[i] for total in totals) for i in range(3))
    return calls, distinct, largest


@torch.inference_mode()
def _count(gates_TX: Tensor, top_k: int) -> None:
    device = gates_TX.device
    experts = naive.route(gates_TX[:, :-1].to(acc_dtype(gates_TX.dtype)), top_k)[0].flatten()
    rows_R = torch.zeros(gates_TX.shape[1] - 1, dtype=torch.int64, device=device)
    rows_R.scatter_add_(0, experts, torch.ones_like(experts))
    if device not in _tallies:
        _tallies[device] = torch.zeros(3, dtype=torch.int64, device=device)
    _tallies[device] += torch.stack((torch.ones_like(rows_R[0]), rows_R.count_nonzero(), rows_R.max()))


def _skewed(gates_TX: Tensor) -> Tensor:
    key = (gates_TX.device, gates_TX.dtype, gates_TX.shape[1])
    if key not in _penalties:
        penalty = torch.arange(1, key[2] + 1, device=key[0], dtype=torch.float32).log_()
        # The last logit is the shared expert's gate.
        penalty[-1:] = 0
        _penalties[key] = penalty.to(key[1])
    return gates_TX - _penalties[key]


def _serve(
    x_TH: Tensor,
    gates_TX: Tensor,
    in_proj: GroupedLinear,
    out_proj: GroupedLinear,
    top_k: int,
    shared_TH: Tensor | None,
) -> Tensor:
    if x_TH.device.type == "cpu":
        return naive.sparse_moe(x_TH, gates_TX, in_proj, out_proj, top_k, shared_TH)
    # Here, because a CPU needs nothing of it.
    from vtcore_qwen3_5_moe.ops.sparse_moe.triton import sparse_moe

    return sparse_moe(x_TH, gates_TX, in_proj, out_proj, top_k, shared_TH)
