"""A tiny runner for an architecture's tests: its model over tensors in memory, steps made by hand.

For caches whose units are blocks kept as long as the request, or slots; any number of groups.
Does not: schedule, sample or reuse engine code that is not about the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from vtcore.checkpoint.format import InMemoryFormat
from vtcore.checkpoint.parameters import LoadedParameters, load_parameters
from vtcore.interfaces.kv_cache_spec import Slot, Whole
from vtcore.interfaces.model_arch import BuildContext, CacheContext, ForwardOutput, Model, ModelArch
from vtcore.interfaces.step import LayerCache, PagedPool, PrefillSpan, SlotPool, StepInputs
from vtcore.layers.dtypes import DTYPES, acc_dtype
from vtcore.layers.linear import LinearPerGroup, PlainLinear, SingleRank
from vtcore.ops.dispatch import resolve_ops


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
    """One sequence: its blocks, its S state slots, the column that holds its state, its computed length."""

    blocks: list[int]
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
    """Caches poisoned with NaN, free ids, and steps over them."""

    arch: ModelArch
    model: Model
    dtype: torch.dtype
    block_size: int = 4
    num_blocks: int = 400
    num_slots: int = 40
    columns: int = 1
    free_blocks: list[int] = field(init=False)
    free_slots: list[int] = field(init=False)
    caches: dict[str, LayerCache] = field(init=False)
    slot_pools: list[bool] = field(init=False)
    last_step: StepInputs = field(init=False)

    def __attrs_post_init__(self) -> None:
        # Shuffled, so that nothing depends on neighbouring ids.
        generator = torch.Generator().manual_seed(7)
        self.free_blocks = (torch.randperm(self.num_blocks - 1, generator=generator) + 1).tolist()
        self.free_slots = (torch.randperm(self.num_slots - 1, generator=generator) + 1).tolist()
        name = {v: k for k, v in DTYPES.items()}[self.dtype]
        specs = self.arch.cache_specs(CacheContext(block_size=self.block_size, dtype=name))
        self.caches, self.slot_pools = {}, [isinstance(spec.lifetime, Slot) for spec in specs]
        for pool, spec in enumerate(specs):
            assert isinstance(spec.lifetime, Whole | Slot), f"{spec.kind} needs a pool that is not made here"
            units = self.num_slots if self.slot_pools[pool] else self.num_blocks
            for layer in spec.layers:
                tensors = {
                    key: torch.full((units, *t.shape), float("nan"), dtype=DTYPES[t.dtype])
                    for key, t in spec.tensors(self.columns - 1).items()
                }
                self.caches[layer] = LayerCache(pool, tensors)
        self.model.bind(self.caches)

    def slot_tensors(self) -> list[Tensor]:
        """Every state tensor of every linear layer."""
        return [
            t for cache in self.caches.values() if self.slot_pools[cache.pool] for t in cache.tensors.values()
        ]

    def admit(self) -> Row:
        """A new row whose first slot is zeroed; the other columns stay poisoned."""
        row = Row([], [self.free_slots.pop(0) for _ in range(self.columns)])
        for tensor in self.slot_tensors():
            tensor[row.slots[0]] = 0
        return row

    def release(self, row: Row) -> None:
        """Give everything back, poisoned."""
        for cache in self.caches.values():
            ids = row.slots if self.slot_pools[cache.pool] else row.blocks
            for tensor in cache.tensors.values():
                tensor[torch.tensor(ids, dtype=torch.int64)] = float("nan")
        self.free_blocks += row.blocks
        self.free_slots += row.slots

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
        query = len(uniform[0].ids) if uniform else 1
        lengths = [u.valid for u in uniform] + [len(p.ids) for p in prefill]
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans = []
        items: list[Uniform | Prefill] = [*uniform, *prefill]
        for index, item in enumerate(items):
            row, valid = item.row, lengths[index]
            while len(row.blocks) * self.block_size < row.computed + valid:
                row.blocks.append(self.free_blocks.pop(0))
            if isinstance(item, Prefill):
                spans.append(PrefillSpan(index, len(ids), len(item.ids), row.computed))
            for offset, token in enumerate(item.ids):
                position = row.computed + offset
                ids.append(token)
                positions.append(position)
                block = row.blocks[position // self.block_size] if offset < valid else 0
                slots.append(block * self.block_size + position % self.block_size if offset < valid else 0)
        width = max([len(r.blocks) for r in rows] + [1]) + 1
        table = torch.tensor([r.blocks + [0] * (width - len(r.blocks)) for r in rows])
        writes = [t for t, slot in enumerate(slots) if slot]
        paged = PagedPool(
            self.block_size,
            None,
            table,
            torch.tensor(slots),
            None if len(writes) == len(slots) else torch.tensor(writes, dtype=torch.int64),
        )
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
            query_len_min=min((u.valid for u in uniform), default=query),
            context_max=max((u.row.computed + u.valid for u in uniform), default=0) + slack,
            pools=tuple(slot_view if is_slot else paged for is_slot in self.slot_pools),
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
