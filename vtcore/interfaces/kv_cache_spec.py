"""What one group of equal layers stores per request, as data known before any weight is loaded.

Does not: allocate, hold tensors or know a model. Contract and kit: docs/plugins.md, KV-cache spec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from attrs import frozen

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}
"""Bytes per element of each dtype name a `TensorSpec` may carry."""


@frozen
class Whole:
    """Units live as long as the request: block i covers tokens [i * block_size, (i + 1) * block_size)."""


@frozen
class Window:
    """As `Whole`, but only the last `tokens` positions are ever read.

    Args:
        tokens: Window length W in tokens, the query's own position included, >= 1.
    """

    tokens: int


@frozen
class Slot:
    """A fixed number of units per request, whatever its length (recurrent state)."""


Lifetime = Whole | Window | Slot


@frozen
class TensorSpec:
    """One tensor of one unit (block or slot) of one layer.

    Args:
        shape: Shape of a single unit, without the leading unit dimension.
        dtype: A key of `DTYPE_BYTES`.
        zeroed: Whether a slot is zeroed when a request is admitted.
    """

    shape: tuple[int, ...]
    dtype: str
    zeroed: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of one unit."""
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


@frozen(kw_only=True)
class KVCacheSpec(ABC):
    """One group of equal layers. Subclass it frozen, add the shape's data, register the kind.

    Args:
        layers: Names of the group's layers, in model order.
        block_size: Tokens per block; ignored by slots.
    """

    kind: ClassVar[str]
    """Registry name, owned by one distribution."""

    layers: tuple[str, ...]
    block_size: int

    @property
    @abstractmethod
    def lifetime(self) -> Lifetime:
        """Decides which pool the group draws from; groups of one lifetime share a pool."""

    @property
    @abstractmethod
    def rollback(self) -> frozenset[str]:
        """How drafts are undone: {"overwrite"} if paged, a subset of {"slots", "replay"} for slots.

        Empty means that the group cannot be rolled back; speculation is then refused.
        """

    @property
    def state_chunk(self) -> int:
        """Slots only: states are kept at multiples of so many tokens, >= 1; where the kernel stops anyway."""
        return 1

    @abstractmethod
    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        """Tensors of ONE unit of ONE layer when up to `k_max` drafts may be verified per step."""

    @abstractmethod
    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        """Upper bound of live units of one request of `num_tokens` tokens.

        Args:
            num_tokens: Positions that may be written, >= 1.
            max_query: Longest query of one step, in tokens.
            lookahead: Positions beyond the query that a drafter may write.
        """

    def needed(self, num_committed: int) -> range:
        """Block indices a query after `num_committed` tokens may read, beyond which none is freed.

        Blocks with an index below `range.start` become null at commit.
        """
        return range(-(-num_committed // self.block_size))

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        """Longest usable cached prefix, in blocks, at most `limit`; pure and monotone in `present`.

        Args:
            present: Whether block i is cached; of a slot pool, whether a state right after block i is.
        """
        for index in range(limit):
            if not present(index):
                return index
        return limit

    def cuts(self, start: int, end: int, grid: int) -> tuple[int, ...]:
        """Positions p, start < p < end, where a prefill chunk must end; asked at admission.

        Args:
            grid: Tokens between positions at which every pool can be cut; the block size.
        """
        return ()

    def window_bytes(self, k_max: int) -> int:
        """Bytes of kept inputs per row and layer that replay rollback needs; 0 without it."""
        return 0

    def unit_bytes(self, k_max: int) -> int:
        """Bytes of one unit over all layers of the group: the sum over tensors, declared once."""
        one_layer = sum(spec.num_bytes for spec in self.tensors(k_max).values())
        return one_layer * len(self.layers)
