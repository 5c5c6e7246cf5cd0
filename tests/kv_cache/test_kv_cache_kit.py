"""The kit accepts the specs that exist, and each of its checks catches a spec that breaks its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any, ClassVar

import pytest

from vtcore.interfaces.kv_cache_spec import KVCacheSpec, TensorSpec
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore.testing import kv_cache_kit
from vtcore.testing.kv_cache_kit import check_spec
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow

FULL: dict[str, Any] = {"layers": ("a", "b"), "num_kv_heads": 2, "head_dim": 3, "dtype": "float32"}
SPECS: tuple[KVCacheSpec, ...] = (
    FullAttentionSpec(block_size=4, **FULL),
    FullAttentionSpec(block_size=1, **FULL),
    RecurrentStateSpec(
        layers=("a",), block_size=4, state=(("conv", (3, 2), "bfloat16"), ("delta", (2, 2), "float32"))
    ),
    ToyBlocks(layers=("a",), block_size=3),
    ToyState(layers=("a", "b"), block_size=4),
    *(
        ToyWindow(layers=("a",), block_size=block_size, window=window)
        for block_size in (1, 3, 4)
        for window in (1, 4, 5, 9)
    ),
)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_spec_that_exists_passes(spec: KVCacheSpec) -> None:
    check_spec(spec)


def window(cls: type[ToyWindow]) -> ToyWindow:
    return cls(layers=("a", "b"), block_size=4, window=5)


def blocks(cls: type[ToyBlocks]) -> ToyBlocks:
    return cls(layers=("a", "b"), block_size=4)


class OneLayerCounted(ToyBlocks):
    def unit_bytes(self, k_max: int) -> int:
        return super().unit_bytes(k_max) // 2


class DraftSpaceUncounted(ToyBlocks):
    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        return {"ids": TensorSpec((self.block_size + k_max,), "int64")}

    def unit_bytes(self, k_max: int) -> int:
        return super().unit_bytes(0)


class WholeOneShort(ToyBlocks):
    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        return max(1, super().max_units(num_tokens, max_query, lookahead) - 1)


class WindowOneShort(ToyWindow):
    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        return max(1, super().max_units(num_tokens, max_query, lookahead) - 1)


class WindowWithoutFlight(ToyWindow):
    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        return super().max_units(num_tokens, 1, lookahead)


class StateInTwoSlots(ToyState):
    def max_units(self, num_tokens: int, max_query: int, lookahead: int) -> int:
        return 0


class NeedsTooLittle(ToyWindow):
    def needed(self, num_committed: int) -> range:
        start = max(0, num_committed - self.window + 2) // self.block_size
        return range(start, -(-num_committed // self.block_size))


class NeedsAFreedBlock(ToyWindow):
    def needed(self, num_committed: int) -> range:
        everything = range(-(-num_committed // self.block_size))
        return everything if num_committed % 7 == 0 else super().needed(num_committed)


class NeedsNoLastBlock(ToyBlocks):
    def needed(self, num_committed: int) -> range:
        return range(num_committed // self.block_size)


class HitBeyondTheLimit(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return super().hit(present, limit) + 1


class HitWithAHole(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return sum(present(block) for block in range(limit))


class HitAllOrNothing(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return limit if all(present(block) for block in range(limit)) else 0


class HitThatShrinksWithMore(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        length = super().hit(present, limit)
        return length if length == limit or not present(limit - 1) else 0


class HitThatCounts(ToyBlocks):
    calls: ClassVar[count[int]] = count()

    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return max(0, super().hit(present, limit) - next(self.calls) % 2)


class HitBesideTheWindow(ToyWindow):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return max((block + 1 for block in range(limit) if present(block)), default=0)


class HitThatAsksTooFar(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        present(limit)
        return super().hit(present, limit)


class CutsAtTheStart(ToyBlocks):
    def cuts(self, start: int, end: int, grid: int) -> tuple[int, ...]:
        return tuple(p for p in range(start, end) if p % grid == 0)


class CutsBackwards(ToyBlocks):
    def cuts(self, start: int, end: int, grid: int) -> tuple[int, ...]:
        return tuple(reversed([p for p in range(start + 1, end) if p % grid == 0]))


FAULTS: list[tuple[KVCacheSpec, str, str]] = [
    (blocks(OneLayerCounted), "check_bytes", "bytes are planned"),
    (blocks(DraftSpaceUncounted), "check_bytes", "bytes are planned"),
    (blocks(WholeOneShort), "check_max_units", "max_units says"),
    (window(WindowOneShort), "check_max_units", "max_units says"),
    (window(WindowWithoutFlight), "check_max_units", "max_units says"),
    (StateInTwoSlots(layers=("a",), block_size=4), "check_max_units", "max_units says"),
    (window(NeedsTooLittle), "check_needed", "are read"),
    (window(NeedsTooLittle), "check_max_units", "freed block"),
    (window(NeedsAFreedBlock), "check_needed", "was freed"),
    (blocks(NeedsNoLastBlock), "check_needed", "are read"),
    (blocks(HitBeyondTheLimit), "check_hit", "longer than its limit|no full hit"),
    (blocks(HitWithAHole), "check_hit", "read but not cached|not stable"),
    (blocks(HitAllOrNothing), "check_hit", "a lower limit, a longer hit"),
    (blocks(HitThatShrinksWithMore), "check_hit", "hit is not"),
    (blocks(HitThatCounts), "check_hit", "not pure"),
    (HitBesideTheWindow(layers=("a",), block_size=4, window=7), "check_hit", "read but not cached"),
    (blocks(HitThatAsksTooFar), "check_hit", "asks for block"),
    (blocks(CutsAtTheStart), "check_cuts", "not inside"),
    (blocks(CutsBackwards), "check_cuts", "not ascending"),
]


@pytest.mark.parametrize(("spec", "check", "message"), FAULTS, ids=lambda v: type(v).__name__)
def test_a_planted_fault_is_caught_by_its_check(spec: KVCacheSpec, check: str, message: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "check_bytes": (3,),
        "check_cuts": (Random(1),),
        "check_hit": (Random(1),),
        "check_needed": (Random(1), 3),
        "check_max_units": (Random(1), 3),
    }
    with pytest.raises(AssertionError, match=message):
        getattr(kv_cache_kit, check)(spec, *arguments[check])


@pytest.mark.parametrize("spec", [fault for fault, _, _ in FAULTS], ids=lambda v: type(v).__name__)
def test_check_spec_catches_every_planted_fault(spec: KVCacheSpec) -> None:
    with pytest.raises(AssertionError):
        check_spec(spec)
