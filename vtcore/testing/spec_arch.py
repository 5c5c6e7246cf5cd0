"""A toy architecture that keeps token ids in the tensors of any KV-cache spec, whatever they are made for.

Does not: know what the tensors mean. A position's share of a block is an equal part of the unit's bytes; a
slot holds a hash of all tokens so far. What is read must be exact, or the output changes.

Shape letters: T query tokens, N logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot, Whole, Window
from vtcore.interfaces.model_arch import (
    BuildContext,
    CacheContext,
    ForwardOutput,
    ModelArch,
    ModelDims,
    ParamRule,
)
from vtcore.interfaces.step import LayerCache, PagedPool, SlotPool, StepInputs
from vtcore.testing.reference import ToyReference
from vtcore.testing.toy_arch import ToyBlocks
from vtcore.testing.toy_hash import fold, logits_of, mix

FULL_LAYER = "full"
"""A layer of the toy's own spec, beside those of the spec under test."""
SPEC_LAYERS = ("kit.0", "kit.1")
_MARKS = 200
"""Marks are 1..200: no byte of poisoned or zeroed memory."""

MakeSpec = Callable[[tuple[str, ...], int], KVCacheSpec]
"""(layers, block size) -> the spec under test."""


def mark_of(token: int, layer: int) -> int:
    """The byte that a layer keeps of a token."""
    return 1 + (token + 7 * layer) % _MARKS


def state_after(tokens: Sequence[int], layer: int, num_bytes: int) -> int:
    """The hash that a slot of `num_bytes` bytes holds after some tokens."""
    state = 0
    for token in tokens:
        state = next_state(state, mark_of(token, layer), num_bytes)
    return state


def next_state(state: int, mark: int, num_bytes: int) -> int:
    """The state after one more token."""
    return mix(state, mark) & ((1 << (8 * num_bytes)) - 1)


class SpecArch(ModelArch):
    """Two layers of the spec under test, and one full layer if the config says `is_mixed`."""

    make_spec: ClassVar[MakeSpec]

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        self._vocab_size = int(hf_config["vocab_size"])
        self._is_mixed = bool(hf_config["is_mixed"])
        self._spec: KVCacheSpec | None = None

    @property
    def dims(self) -> ModelDims:
        """A hidden value is one number."""
        return ModelDims(
            vocab_size=self._vocab_size,
            hidden_size=1,
            num_layers=len(SPEC_LAYERS) + self._is_mixed,
            max_position_embeddings=4096,
        )

    def default_token_budget(self, max_num_seqs: int) -> int:
        """64."""
        return 64

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """The full layer first, as a release with both has them."""
        full = ToyBlocks(layers=(FULL_LAYER,), block_size=ctx.block_size)
        self._spec = spec = type(self).make_spec(SPEC_LAYERS, ctx.block_size)
        return (full, spec) if self._is_mixed else (spec,)

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """None."""
        return ()

    def is_skipped(self, name: str) -> bool:
        """Nothing is."""
        return False

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """None."""
        return {}

    def build(self, ctx: BuildContext) -> SpecModel:
        """The model."""
        assert self._spec is not None, "the core asks for cache specs before it builds"
        return SpecModel(self._spec, self._is_mixed, self._vocab_size)


class SpecModel:
    """Hashes what it finds in the caches, one query token at a time."""

    def __init__(self, spec: KVCacheSpec, is_mixed: bool, vocab_size: int) -> None:
        self._lifetime = spec.lifetime
        self._is_zeroed = all(tensor.zeroed for tensor in spec.tensors(0).values())
        self._layers = ((FULL_LAYER,) if is_mixed else ()) + SPEC_LAYERS
        self._vocab_size = vocab_size
        self._caches: Mapping[str, LayerCache] = {}

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Keep the caches."""
        self._caches = {layer: caches[layer] for layer in self._layers}

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, 1], the ids themselves."""
        return ids.unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, 1] int64 -> [N, V] float64."""
        rows = [logits_of(value, self._vocab_size) for value in hidden[:, 0].tolist()]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), self._vocab_size)

    def forward(self, step: StepInputs) -> ForwardOutput:
        """[T] tokens -> hidden [T, 1] int64."""
        hidden = torch.zeros((len(step.ids), 1), dtype=torch.int64)
        lens = step.query_lens.tolist()
        rows = [(b, b * step.query_len, lens[b]) for b in range(step.num_uniform)]
        rows += [(span.index, span.offset, span.length) for span in step.prefill]
        for row, offset, length in rows:
            for index in range(length):
                value = 7
                for number, layer in enumerate(self._layers):
                    value = mix(value, self._layer_value(number, layer, step, row, offset, index))
                hidden[offset + index, 0] = value
        return ForwardOutput(hidden)

    def _layer_value(
        self, number: int, layer: str, step: StepInputs, row: int, offset: int, index: int
    ) -> int:
        cache, token = self._caches[layer], offset + index
        pool = step.pools[cache.pool]
        mark, position = mark_of(int(step.ids[token]), number), int(step.positions[token])
        if isinstance(pool, SlotPool):
            is_first = position == 0 and not self._is_zeroed
            return _advance(cache, pool, step, row, index, mark, is_first)
        write_mark(cache, pool, token, mark)
        start = 0
        if isinstance(self._lifetime, Window) and layer != FULL_LAYER:
            start = max(0, position + 1 - self._lifetime.tokens)
        return fold(read_marks(cache, pool, row, start, position + 1), 11)


def _advance(
    cache: LayerCache, pool: SlotPool, step: StepInputs, row: int, index: int, mark: int, is_first: bool
) -> int:
    uniform = row < step.num_uniform
    if index == 0:
        source = int(pool.read_slots[row])
    else:
        source = int(pool.write_slots[row, index - 1 if uniform else 0])
    target = int(pool.write_slots[row, index if uniform else 0])
    if source == 0 or target == 0:
        raise EngineError(f"row {row} meets the null slot")
    planes = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in cache.tensors.values()]
    num_bytes = min(7, *(plane.shape[1] for plane in planes))
    state = 0
    if not is_first:
        found = {bytes(plane[source].tolist()) for plane in planes}
        states = {int.from_bytes(content[:num_bytes], "little") for content in found}
        # Tensors of one slot that disagree were not written, copied or zeroed together.
        state = states.pop() if len(states) == 1 else fold(sorted(states))
    state = next_state(state, mark, num_bytes)
    content = state.to_bytes(num_bytes, "little")
    for plane in planes:
        width = plane.shape[1]
        plane[target] = torch.tensor(list((content * (1 + width // num_bytes))[:width]), dtype=torch.uint8)
    return state


def position_planes(cache: LayerCache, block_size: int) -> list[Tensor]:
    """Each tensor of a layer as bytes [units, block_size, bytes per position]; those with none are left out.

    Raises:
        EngineError: No tensor has a byte for every position of a block.
    """
    planes = []
    for tensor in cache.tensors.values():
        plane = tensor.view(len(tensor), -1).view(torch.uint8)
        share = plane.shape[1] // block_size
        if share:
            planes.append(plane[:, : share * block_size].view(len(tensor), block_size, share))
    if not planes:
        raise EngineError(f"a block of {block_size} tokens has no tensor with a byte per position")
    return planes


def write_mark(cache: LayerCache, pool: PagedPool | SlotPool, token: int, mark: int) -> None:
    """Fill the share of one query token's position.

    Raises:
        EngineError: Its block is the null block.
    """
    assert isinstance(pool, PagedPool)
    block, offset = divmod(int(pool.slot_mapping[token]), pool.block_size)
    if block == 0:
        raise EngineError(f"query token {token} writes through the null block")
    for plane in position_planes(cache, pool.block_size):
        plane[block, offset] = mark


def read_marks(cache: LayerCache, pool: PagedPool, row: int, start: int, end: int) -> list[int]:
    """Marks at positions [start, end) of a batch row, of every tensor; -1 where bytes differ.

    Raises:
        EngineError: One of the blocks is the null block.
    """
    positions = torch.arange(start, end)
    blocks = pool.block_table[row][positions // pool.block_size]
    if not bool((blocks > 0).all()):
        raise EngineError(f"batch row {row} reads positions {start} to {end - 1} through the null block")
    found: list[int] = []
    for plane in position_planes(cache, pool.block_size):
        marks = plane[blocks, positions % pool.block_size]
        low, high = marks.amin(1), marks.amax(1)
        found += torch.where(low == high, low.to(torch.int64), -1).tolist()
    return found


@frozen
class SpecReference(ToyReference):
    """What `SpecModel` gives, from scratch.

    Args:
        spec: The spec under test, of any block size; its tensors say how many marks are read.
    """

    spec: KVCacheSpec
    is_mixed: bool
    k_max: int

    @property
    def has_blocks(self) -> bool:
        """Whether there is a pool of blocks that live as long as the request."""
        return self.is_mixed or isinstance(self.spec.lifetime, Whole)

    def hidden(self, tokens: Sequence[int]) -> int:
        """Hidden value after `tokens`."""
        value = 7
        layers = ([FULL_LAYER] if self.is_mixed else []) + list(SPEC_LAYERS)
        for number, layer in enumerate(layers):
            value = mix(value, self._layer_value(number, layer, tokens))
        return value

    def _layer_value(self, number: int, layer: str, tokens: Sequence[int]) -> int:
        marks = [mark_of(token, number) for token in tokens]
        if layer == FULL_LAYER:
            return fold(marks, 11)
        sizes = [tensor.num_bytes for tensor in self.spec.tensors(self.k_max).values()]
        if isinstance(self.spec.lifetime, Slot):
            return state_after(tokens, number, min(7, *sizes))
        if isinstance(self.spec.lifetime, Window):
            marks = marks[-self.spec.lifetime.tokens :]
        return fold(marks * sum(size >= self.spec.block_size for size in sizes), 11)
