"""A tiny runner for an architecture's tests: its model over tensors in memory, steps made by hand.

For caches of any lifetime and any number of groups. Blocks wholly behind a window are given back and poisoned
once their positions are committed.
Does not: schedule, sample or reuse engine code that is not about the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, load_parameters
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Lifetime, Slot, Window
from vtcore.interfaces.model_arch import BuildContext, CacheContext, ForwardOutput, Model, ModelArch
from vtcore.interfaces.step import LayerCache, PagedPool, PrefillSpan, SlotPool, StepInputs
from vtcore.kv_cache.planner import group_by_lifetime
from vtcore.layers.dtypes import DTYPES, acc_dtype
from vtcore.layers.linear import LinearPerGroup, PlainLinear, SingleRank
from vtcore.ops.dispatch import resolve_ops
from vtcore.testing.late_executor import poison_value


def build_model(
    arch: ModelArch,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    aux_layers: tuple[int, ...] = (),
    max_position: int = 1024,
) -> Model:
    """The arch's model over checkpoint tensors, naive ops, no caches yet."""
    params = load_parameters(arch, InMemoryFormat(tensors), dtype, "cpu")
    model = arch.build(
        BuildContext(
            dtype=dtype,
            acc_dtype=acc_dtype(dtype),
            device="cpu",
            ops=resolve_ops("cpu", arch_ops=arch.ops()),
            linear=lambda name: PlainLinear(params.param(name)),
            grouped_linear=lambda name: _plain_products(params, name),
            param=params.param,
            parallel=SingleRank(),
            aux_layers=aux_layers,
            max_position=max_position,
        )
    )
    params.check_all_used()
    return model


def _plain_products(params: LoadedParameters, name: str) -> LinearPerGroup:
    blocks = params.param(name).chunk(params.num_groups[name])
    return LinearPerGroup([PlainLinear(block) for block in blocks], blocks[0].shape[0])


@define
class Row:
    """One sequence: its blocks by paged pool, its S state slots, the column of its state, its length.

    A block index is the same in each pool; 0 stands where a pool needs the block no more.
    """

    blocks: dict[int, list[int]]
    slots: list[int]
    column: int = 0
    computed: int = 0


@define
class Uniform:
    """A uniform row's query; `valid` tokens count, the rest is padding."""

    row: Row
    ids: list[int]
    valid: int


@define
class Prefill:
    """A prefill row's query."""

    row: Row
    ids: list[int]


@define
class Harness:
    """Poisoned caches, free ids, and steps over them.

    Attributes:
        caches: By layer. lifetimes: By pool, in the order of `StepInputs.pools`.
        free_blocks: By paged pool. free_slots: Shared by all slot groups.
    """

    arch: ModelArch
    model: Model
    dtype: torch.dtype
    block_size: int = 4
    num_blocks: int = 400
    num_slots: int = 40
    columns: int = 1
    free_blocks: dict[int, list[int]] = field(init=False)
    free_slots: list[int] = field(init=False)
    caches: dict[str, LayerCache] = field(init=False)
    lifetimes: list[Lifetime] = field(init=False)
    specs: list[tuple[KVCacheSpec, ...]] = field(init=False)
    last_step: StepInputs = field(init=False)

    def __attrs_post_init__(self) -> None:
        # Shuffled, so that nothing depends on neighbouring ids.
        generator = torch.Generator().manual_seed(7)
        name = {v: k for k, v in DTYPES.items()}[self.dtype]
        specs = self.arch.cache_specs(CacheContext(block_size=self.block_size, dtype=name))
        groups = group_by_lifetime(specs)
        self.lifetimes, self.specs = [life for life, _ in groups], [group for _, group in groups]
        self.free_slots = _shuffled(self.num_slots, generator)
        self.free_blocks = {pool: _shuffled(self.num_blocks, generator) for pool in self.paged}
        self.caches = {}
        for pool, group in enumerate(self.specs):
            units = self.num_blocks if pool in self.free_blocks else self.num_slots
            for spec in group:
                for layer in spec.layers:
                    tensors = {
                        key: torch.empty((units, *t.shape), dtype=DTYPES[t.dtype])
                        for key, t in spec.tensors(self.columns - 1).items()
                    }
                    self.caches[layer] = LayerCache(pool, tensors)
        for cache in self.caches.values():
            _poison(cache, slice(None))
        self.model.bind(self.caches)

    @property
    def paged(self) -> list[int]:
        """Pools of blocks."""
        return [pool for pool, life in enumerate(self.lifetimes) if not isinstance(life, Slot)]

    def is_slot(self, cache: LayerCache) -> bool:
        """Whether a layer's units are slots."""
        return cache.pool not in self.free_blocks

    def slot_tensors(self) -> list[Tensor]:
        """Every state tensor of every linear layer."""
        return [t for cache in self.caches.values() if self.is_slot(cache) for t in cache.tensors.values()]

    def admit(self) -> Row:
        """A new row whose first slot is zeroed; the other columns stay poisoned."""
        slots = [self.free_slots.pop(0) for _ in range(self.columns if self.slot_tensors() else 0)]
        row = Row({pool: [] for pool in self.paged}, slots or [0] * self.columns)
        for tensor in self.slot_tensors():
            tensor[row.slots[0]] = 0
        return row

    def units(self, row: Row, cache: LayerCache) -> list[int]:
        """Ids that a row holds for a layer."""
        return row.slots if self.is_slot(cache) else [unit for unit in row.blocks[cache.pool] if unit]

    def release(self, row: Row) -> None:
        """Give everything back, poisoned."""
        for cache in self.caches.values():
            _poison(cache, torch.tensor(self.units(row, cache), dtype=torch.int64))
        for pool, blocks in row.blocks.items():
            self.free_blocks[pool] += [unit for unit in blocks if unit]
        self.free_slots += [slot for slot in row.slots if slot]

    def snapshot(self) -> dict[str, dict[str, Tensor]]:
        """A copy of every cache tensor, by layer and name."""
        return {name: {k: t.clone() for k, t in c.tensors.items()} for name, c in self.caches.items()}

    def changed(self, before: Mapping[str, Mapping[str, Tensor]], besides: Row) -> list[str]:
        """Names (layer.tensor) of all that differs from a snapshot in units that `besides` does not hold."""
        found = []
        for layer, cache in self.caches.items():
            mine = set(self.units(besides, cache))
            for name, tensor in cache.tensors.items():
                others = torch.tensor([unit for unit in range(len(tensor)) if unit not in mine])
                now, then = (t[others].contiguous().view(torch.uint8) for t in (tensor, before[layer][name]))
                if not torch.equal(now, then):
                    found.append(f"{layer}.{name}")
        return found

    def commit(self, row: Row) -> None:
        """Give back and poison what no later query of a row may read."""
        for pool in self.paged:
            if row.computed:
                start = min(spec.needed(row.computed).start for spec in self.specs[pool])
                gone = [index for index, unit in enumerate(row.blocks[pool][:start]) if unit]
                units = torch.tensor([row.blocks[pool][index] for index in gone], dtype=torch.int64)
                for cache in self.caches.values():
                    if cache.pool == pool:
                        _poison(cache, units)
                self.free_blocks[pool] += units.tolist()
                for index in gone:
                    row.blocks[pool][index] = 0

    @torch.inference_mode()
    def step(
        self,
        uniform: Sequence[Uniform] = (),
        prefill: Sequence[Prefill] = (),
        slack: int = 0,
        run: Any = None,
    ) -> ForwardOutput:
        """One forward. Advances `computed` by the valid tokens; `accept` may take some back."""
        rows = [u.row for u in uniform] + [p.row for p in prefill]
        for row in rows:
            self.commit(row)
        query = len(uniform[0].ids) if uniform else 1
        lengths = [u.valid for u in uniform] + [len(p.ids) for p in prefill]
        ids: list[int] = []
        positions: list[int] = []
        writers: list[Row | None] = []
        spans = []
        items: list[Uniform | Prefill] = [*uniform, *prefill]
        for index, item in enumerate(items):
            row, valid = item.row, lengths[index]
            for pool, blocks in row.blocks.items():
                while len(blocks) * self.block_size < row.computed + valid:
                    blocks.append(self.free_blocks[pool].pop(0))
            if isinstance(item, Prefill):
                spans.append(PrefillSpan(index, len(ids), len(item.ids), row.computed))
            for offset, token in enumerate(item.ids):
                ids.append(token)
                positions.append(row.computed + offset)
                writers.append(row if offset < valid else None)
        slot_view = SlotPool(
            torch.tensor([r.slots[r.column] if n else 0 for r, n in zip(rows, lengths, strict=True)]),
            torch.tensor([r.slots if n else [0] * self.columns for r, n in zip(rows, lengths, strict=True)]),
        )
        self.last_step = StepInputs(
            ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            num_uniform=len(uniform),
            query_len=query,
            prefill=tuple(spans),
            computed=torch.tensor([r.computed for r in rows]),
            query_lens=torch.tensor(lengths),
            query_start=torch.tensor([0, *accumulate(len(item.ids) for item in items)]),
            query_len_min=min((u.valid for u in uniform), default=query),
            context_max=max((u.row.computed + u.valid for u in uniform), default=0) + slack,
            pools=tuple(
                slot_view
                if isinstance(life, Slot)
                else self._paged_pool(pool, life, rows, positions, writers)
                for pool, life in enumerate(self.lifetimes)
            ),
        )
        out = self.model.forward(self.last_step) if run is None else run(self.last_step)
        for row, valid in zip(rows, lengths, strict=True):
            row.computed += valid
        for checked in uniform:
            if checked.valid:
                checked.row.column = checked.valid - 1
        for chunk in prefill:
            chunk.row.column = 0
        return out

    def _paged_pool(
        self,
        pool: int,
        lifetime: Lifetime,
        rows: Sequence[Row],
        positions: Sequence[int],
        writers: Sequence[Row | None],
    ) -> PagedPool:
        width = max([len(row.blocks[pool]) for row in rows] + [1]) + 1
        table = [row.blocks[pool] + [0] * (width - len(row.blocks[pool])) for row in rows]
        slots = [
            0
            if row is None
            else row.blocks[pool][position // self.block_size] * self.block_size + position % self.block_size
            for position, row in zip(positions, writers, strict=True)
        ]
        writes = [token for token, row in enumerate(writers) if row is not None]
        return PagedPool(
            self.block_size,
            lifetime.tokens if isinstance(lifetime, Window) else None,
            torch.tensor(table),
            torch.tensor(slots),
            None if len(writes) == len(slots) else torch.tensor(writes, dtype=torch.int64),
        )

    def logits(
        self, uniform: Sequence[Uniform] = (), prefill: Sequence[Prefill] = (), slack: int = 0
    ) -> Tensor:
        """As `step`, then logits of every query token [T, V]."""
        with torch.inference_mode():
            return self.model.logits(self.step(uniform, prefill, slack).hidden)

    def run_sequence(self, ids: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """Logits of a whole sequence: prefill chunks of the given lengths, then decode one by one."""
        row = self.admit()
        out, done = [], 0
        for length in chunks:
            out.append(self.logits(prefill=[Prefill(row, list(ids[done : done + length]))]))
            done += length
        for token in ids[done:]:
            out.append(self.logits(uniform=[Uniform(row, [token], 1)]))
        self.release(row)
        return torch.cat(out)


def accept(item: Uniform, emitted: int) -> None:
    """Keep the first `emitted` >= 1 tokens of a verify query and drop the rest."""
    item.row.computed -= item.valid - emitted
    item.row.column = emitted - 1


def _shuffled(count: int, generator: torch.Generator) -> list[int]:
    """All ids but the null one, in any order."""
    ids: list[int] = (torch.randperm(count - 1, generator=generator) + 1).tolist()
    return ids


def _poison(cache: LayerCache, units: slice | Tensor) -> None:
    for tensor in cache.tensors.values():
        tensor[units] = poison_value(tensor)
