"""Bytes of the tensors that each kernel or operation of a step is given, by its name.

On a GPU the step runs on torch's meta device, where launches are recorded instead of run; on a CPU a real
step runs beside a counter. A tensor counts once and whole: what a kernel reads twice, or only in part, is not
known here. Of groups (experts) only as many count as uniform choices are expected to read.
Does not: time anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, evolve
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtcore.benchmark.roofline import ModelWork
    from vtcore.interfaces.batch import ScheduledBatch
    from vtcore.ops.launch import Launch
    from vtcore.planning import PlannedCore

_LOOK_UPS = frozenset({"index_select", "embedding", "gather", "index"})
"""Operations that read only as much of their first tensor as they return."""
_ALLOCATIONS = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
)
"""Operations that touch nothing."""
_WRITES = frozenset({"index_copy_", "index_put_", "scatter_", "scatter_add_", "index_add_", "index_fill_"})
"""Operations that write only as much of their first tensor as the others bring."""


@define
class Traffic:
    """What all calls of one name are given.

    Args:
        num_bytes: Weights and activations.
        cache_bytes: Caches, as far as the step's sequences fill them.
    """

    calls: int = 0
    num_bytes: float = 0
    cache_bytes: int = 0


class ByteCounter(TorchDispatchMode):
    """Adds up torch's operations while it is active, and launches that it is told of.

    Args:
        work: Whose groups are known.
        tokens: Of the step.
        caches: Their tensors.
    """

    def __init__(self, work: ModelWork, tokens: int, caches: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, Traffic] = {}
        self._caches = {_storage(tensor) for tensor in caches}
        # Groups -> the part of them that is read.
        self._read = {
            one.num_groups: work.groups_read(one.num_groups, tokens) / one.num_groups for one in work.grouped
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and count it, unless it only looks at a tensor in another way."""
        out = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(one.alias_info is not None and not one.alias_info.is_write for one in returns):
            return out
        given = [one for one in tree_leaves((args, dict(kwargs or {}))) if isinstance(one, Tensor)]
        results = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        self._add(func._schema.name, self._op_bytes(func.overloadpacket.__name__, given, results), 0)
        return out

    def launched(self, launch: Launch) -> None:
        """Count a kernel launch."""
        tensors = _distinct(arg for arg in launch.args if isinstance(arg, Tensor))
        cached = [one for one in tensors if _storage(one) in self._caches]
        own = sum(self._bytes(one) for one in tensors if _storage(one) not in self._caches)
        self._add(launch.kernel.__name__, own, sum(_num_bytes(one) for one in cached))

    def _op_bytes(self, name: str, given: list[Tensor], results: list[Tensor]) -> float:
        if name in _ALLOCATIONS:
            return 0
        if name in _LOOK_UPS:
            return sum(2 * _num_bytes(one) for one in results) + sum(_num_bytes(one) for one in given[1:])
        if name in _WRITES:
            return sum(2 * _num_bytes(one) for one in given[1:])
        return sum(self._bytes(one) for one in _distinct([*given, *results]))

    def _bytes(self, tensor: Tensor) -> float:
        part = self._read.get(tensor.shape[0], 1.0) if tensor.dim() == 3 else 1.0
        return part * _num_bytes(tensor)

    def _add(self, name: str, num_bytes: float, cache_bytes: int) -> None:
        one = self.found.setdefault(name, Traffic())
        one.calls += 1
        one.num_bytes += num_bytes
        one.cache_bytes += cache_bytes


@contextmanager
def counting(work: ModelWork, tokens: int) -> Iterator[dict[str, Traffic]]:
    """Count what torch runs on this thread, by operation.

    Args:
        tokens: Of each step.
    """
    with ByteCounter(work, tokens) as counter:
        yield counter.found


def meta_traffic(
    planned: PlannedCore, work: ModelWork, batch: ScheduledBatch, sequences: int, context: int
) -> dict[str, Traffic]:
    """What a GPU would be given in a step, by kernel and by torch's operation.

    Args:
        planned: Its config is for a GPU; no weights are read.
        batch: The step, of null rows.
        sequences, context: How many sequences of how many tokens fill the caches.
    """
    from vtcore.checkpoint.parameters import meta_parameters
    from vtcore.internals import Internals
    from vtcore.kv_cache.allocator import allocate_caches
    from vtcore.layers.dtypes import DTYPES
    from vtcore.model_build import build_model
    from vtcore.ops.launch import recording

    internals, plan = Internals(), planned.plan
    names = planned.stored.names().keys()
    parameters = meta_parameters(planned.arch, names, DTYPES[planned.config.model.dtype])
    pools = tuple(
        evolve(pool, num_units=sequences * (1 if pool.is_slot else -(-context // plan.block_size)))
        for pool in plan.pools
    )
    plan = evolve(plan, pools=pools, num_blocks=0)
    caches = allocate_caches(plan, internals.k_max, "meta")
    runner = build_model(planned, parameters, "meta", internals).runner(plan, caches)
    tokens = len(batch.uniform) + sum(len(row.ids) for row in batch.prefill)
    counter = ByteCounter(work, tokens, [held.data for pool in caches.pools for held in pool])
    with recording(counter.launched), counter:
        runner.forward(batch)
        runner.sample(batch.step, is_random=False)
    return counter.found


def _distinct(tensors: Iterable[Tensor]) -> Collection[Tensor]:
    """Each view once: an output that is an input too does not count twice."""
    found = {(_storage(one), one.storage_offset(), one.shape): one for one in tensors}
    return found.values()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
