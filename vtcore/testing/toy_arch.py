"""A tiny architecture for engine tests: token ids as KV, a hash as recurrent state, no weights.

Does not: approximate a language model. It runs through the real loader, runner, pools and scheduler; what it
reads from a cache must be exact, or its output changes.

Shape letters: T query tokens, N logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from vtcore.errors import EngineError
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Lifetime, Slot, TensorSpec, Whole, Window
from vtcore.interfaces.model_arch import (
    BuildContext,
    CacheContext,
    ForwardOutput,
    ModelArch,
    ModelDims,
    ParamRule,
)
from vtcore.interfaces.step import LayerCache, PagedPool, SlotPool, StepInputs
from vtcore.testing.toy_hash import fold, logits_of, mix

POISON = -987654321
"""What tests write into units that nobody holds."""


@frozen(kw_only=True)
class ToyBlocks(KVCacheSpec):
    """Token ids in blocks that live as long as the request."""

    kind: ClassVar[str] = "toy_blocks"

    @property
    def lifetime(self) -> Lifetime:
        """Every position is read."""
        return Whole()

    @property
    def rollback(self) -> frozenset[str]:
        """Rejected positions are overwritten."""
        return frozenset({"overwrite"})

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """One id per position."""
        return {"ids": TensorSpec((self.block_size,), "int64")}

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Blocks that cover everything."""
        return -(-(num_tokens + lookahead) // self.block_size)


@frozen(kw_only=True)
class ToyWindow(ToyBlocks):
    """Token ids of the last `window` positions."""

    kind: ClassVar[str] = "toy_window"

    window: int

    @property
    def lifetime(self) -> Lifetime:
        """Only the last `window` positions are read."""
        return Window(self.window)

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Blocks of the window, of what is in flight and of the look-ahead."""
        span = self.window - 1 + max_query + lookahead
        return min(-(-span // self.block_size) + 1, -(-(num_tokens + lookahead) // self.block_size))

    def needed(self, num_committed: int) -> range:
        """Blocks that the last window - 1 positions lie in, and all later ones."""
        start = max(0, num_committed - self.window + 1) // self.block_size
        return range(start, -(-num_committed // self.block_size))

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        """The longest prefix whose last window - 1 positions are all there."""
        for blocks in range(limit, 0, -1):
            if all(present(i) for i in self.needed(blocks * self.block_size)):
                return blocks
        return 0


@frozen(kw_only=True)
class ToyState(KVCacheSpec):
    """One hash per request.

    Args:
        chunk: Tokens between positions where a state may be kept.
    """

    kind: ClassVar[str] = "toy_state"

    chunk: int = 1

    @property
    def lifetime(self) -> Lifetime:
        """One slot per request and state column."""
        return Slot()

    @property
    def rollback(self) -> frozenset[str]:
        """A slot per verified token."""
        return frozenset({"slots"})

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """The hash."""
        return {"hash": TensorSpec((1,), "int64", zeroed=True)}

    @property
    def state_chunk(self) -> int:
        """As given."""
        return self.chunk

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        """The longest prefix at whose end a state is kept."""
        return next((blocks for blocks in range(limit, 0, -1) if present(blocks - 1)), 0)

    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """One."""
        return 1


class ToyArch(ModelArch):
    """Reads `vocab_size`, `max_position_embeddings`, `parts`, `window`, `state_chunk` from the config."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        self._config = hf_config
        self.parts: tuple[str, ...] = tuple(hf_config.get("parts", ("whole", "state")))
        self.window = int(hf_config.get("window", 5))
        self.state_chunk = int(hf_config.get("state_chunk", 1))

    @classmethod
    def checkpoint_config(cls, size: str, vocab_size: int) -> Mapping[str, Any]:
        """Raises: ValueError, always: a toy has no checkpoint form."""
        raise ValueError(f"size {size!r} is not known: the toy architecture has no checkpoint form")

    @property
    def dims(self) -> ModelDims:
        """From the config."""
        return ModelDims(
            vocab_size=int(self._config.get("vocab_size", 16)),
            hidden_size=1,
            num_layers=1,
            max_position_embeddings=int(self._config.get("max_position_embeddings", 4096)),
        )

    def default_token_budget(self, max_num_seqs: int) -> int:
        """64, small enough that chunks are usual."""
        return 64

    def cache_specs(self, ctx: CacheContext) -> tuple[KVCacheSpec, ...]:
        """One group per part."""
        specs: dict[str, KVCacheSpec] = {
            "whole": ToyBlocks(layers=("whole",), block_size=ctx.block_size),
            "window": ToyWindow(layers=("window",), block_size=ctx.block_size, window=self.window),
            "state": ToyState(layers=("state",), block_size=ctx.block_size, chunk=self.state_chunk),
        }
        return tuple(specs[part] for part in self.parts)

    def param_rules(self, names: Collection[str]) -> tuple[ParamRule, ...]:
        """None."""
        return ()

    def is_skipped(self, name: str) -> bool:
        """Nothing is."""
        return False

    def ops(self) -> Mapping[str, Mapping[str, str]]:
        """None."""
        return {}

    def build(self, ctx: BuildContext) -> ToyModel:
        """The model."""
        return ToyModel(self.parts, self.window, self.dims.vocab_size)


class ToyModel:
    """Hashes what it finds in the caches, one query token at a time, in plain Python."""

    def __init__(self, parts: Iterable[str], window: int, vocab_size: int) -> None:
        self._parts = tuple(parts)
        self._window = window
        self._vocab_size = vocab_size
        self._caches: Mapping[str, LayerCache] = {}

    def bind(self, caches: Mapping[str, LayerCache]) -> None:
        """Keep the caches of its parts."""
        self._caches = {part: caches[part] for part in self._parts}

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, 1], the ids themselves."""
        return ids.unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, 1] int64 -> [N, V] float64."""
        rows = [logits_of(value, self._vocab_size) for value in hidden[:, 0].tolist()]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), self._vocab_size)

    def forward(self, step: StepInputs) -> ForwardOutput:
        """[T] tokens -> hidden [T, 1] int64; writes every valid token's id and state."""
        hidden = torch.zeros((len(step.ids), 1), dtype=torch.int64)
        lens = step.query_lens.tolist()
        rows = [(b, b * step.query_len, lens[b]) for b in range(step.num_uniform)]
        rows += [(span.index, span.offset, span.length) for span in step.prefill]
        for row, offset, length in rows:
            for index in range(length):
                values = {part: self._part(part, step, row, offset, index) for part in self._parts}
                state = 7
                for part in ("whole", "window", "state"):
                    if part in values:
                        state = mix(state, values[part])
                hidden[offset + index, 0] = state
        return ForwardOutput(hidden)

    def _part(self, part: str, step: StepInputs, row: int, offset: int, index: int) -> int:
        cache = self._caches[part]
        pool = step.pools[cache.pool]
        token = offset + index
        if isinstance(pool, SlotPool):
            return self._advance(cache, pool, step, row, index, int(step.ids[token]))
        write_ids(cache, pool, token, int(step.ids[token]))
        end = int(step.positions[token]) + 1
        start = 0 if part == "whole" else max(0, end - self._window)
        return fold(read_ids(cache, pool, row, start, end), 11 if part == "whole" else 13)

    def _advance(
        self, cache: LayerCache, pool: SlotPool, step: StepInputs, row: int, index: int, token_id: int
    ) -> int:
        uniform = row < step.num_uniform
        # A verified row's state moves from column to column; a chunk's stays in column 0 after its start.
        if index == 0:
            source = int(pool.read_slots[row])
        else:
            source = int(pool.write_slots[row, index - 1 if uniform else 0])
        target = int(pool.write_slots[row, index if uniform else 0])
        if source == 0 or target == 0:
            raise EngineError(f"row {row} meets the null slot")
        state = mix(int(cache["hash"][source, 0]), token_id)
        cache["hash"][target, 0] = state
        return state


def write_ids(cache: LayerCache, pool: object, token: int, value: int) -> None:
    """Write one query token's id.

    Raises:
        EngineError: Its block is the null block.
    """
    assert isinstance(pool, PagedPool)
    slot = int(pool.slot_mapping[token])
    if slot < pool.block_size:
        raise EngineError(f"query token {token} writes through the null block")
    cache["ids"].view(-1)[slot] = value


def read_ids(cache: LayerCache, pool: object, row: int, start: int, end: int) -> list[int]:
    """Ids at positions [start, end) of a batch row.

    Raises:
        EngineError: One of the blocks is the null block.
    """
    assert isinstance(pool, PagedPool)
    table, ids = pool.block_table[row].tolist(), cache["ids"]
    found = []
    for position in range(start, end):
        block = table[position // pool.block_size]
        if block == 0:
            raise EngineError(f"batch row {row} reads position {position} through the null block")
        found.append(int(ids[block, position % pool.block_size]))
    return found
