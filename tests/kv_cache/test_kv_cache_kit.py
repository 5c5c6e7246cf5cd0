"""The specs that exist keep to the kit; each planted fault fails exactly the rule meant for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import count
from typing import ClassVar

import attrs
import pytest

from vtcore import builtin
from vtcore.errors import PluginError
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, TensorSpec
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore.testing.kit import failing_rules
from vtcore.testing.kv_cache_kit import KVCacheSpecConformance
from vtcore.testing.toy_arch import ToyBlocks, ToyState, ToyWindow


class TestFullAttention(KVCacheSpecConformance):
    plugin = builtin
    num_schedules = 8

    @classmethod
    def make_spec(cls, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        return FullAttentionSpec(
            layers=layers, block_size=block_size, num_kv_heads=2, head_dim=3, dtype="float32"
        )


class TestRecurrentState(KVCacheSpecConformance):
    plugin = builtin
    num_schedules = 8
    chunk = 1

    @classmethod
    def make_spec(cls, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        state = (("conv", (3, 2), "bfloat16"), ("delta", (2, 2), "float32"))
        return RecurrentStateSpec(layers=layers, block_size=block_size, state=state, chunk=cls.chunk)


class TestRecurrentStateInChunks(TestRecurrentState):
    chunk = 6


class TestShortWindow(KVCacheSpecConformance):
    window = 1
    num_schedules = 6

    @classmethod
    def make_spec(cls, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        return ToyWindow(layers=layers, block_size=block_size, window=cls.window)


@pytest.mark.slow
class TestWindowOfABlock(TestShortWindow):
    window = 4


class TestWindow(TestShortWindow):
    window = 5


@pytest.mark.slow
class TestLongWindow(TestShortWindow):
    window = 9


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


class StateInNoSlot(ToyState):
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


class ChunksOfBlocks(ToyBlocks):
    @property
    def state_chunk(self) -> int:
        return 4


class StateChunkOfZero(ToyState):
    @property
    def state_chunk(self) -> int:
        return 0


class NeedsTooLittleLater(ToyWindow):
    """Right as far as short requests go."""

    def needed(self, num_committed: int) -> range:
        needed = super().needed(num_committed)
        return range(needed.start + (num_committed > 62), needed.stop)


class NeedsTooLittleOfSmallBlocks(ToyWindow):
    def needed(self, num_committed: int) -> range:
        needed = super().needed(num_committed)
        return range(needed.start + (num_committed > 12 and self.block_size == 1), needed.stop)


class HitsNothingOfALongPrompt(ToyBlocks):
    def hit(self, present: Callable[[int], bool], limit: int) -> int:
        return 0 if limit > 12 else super().hit(present, limit)


class NoRoomBesideDrafts(ToyBlocks):
    """With drafts a block has fewer bytes than positions."""

    def tensors(self, k_max: int) -> Mapping[str, TensorSpec]:
        return {"ids": TensorSpec((self.block_size - bool(k_max),), "uint8")}


class TakesUnits(ToyWindow):
    """What is in one process can be reached: the pools behind the question."""

    def needed(self, num_committed: int) -> range:
        frame = sys._getframe(1)
        while frame.f_back is not None and not isinstance(frame.f_locals.get("self"), RequestMemory):
            frame = frame.f_back
        if num_committed > 8 and isinstance(memory := frame.f_locals.get("self"), RequestMemory):
            for pool in memory.pools:
                pool.allocate(pool.num_free > 0)
        return super().needed(num_committed)


BYTES = "test_planned_bytes_are_allocated_bytes"
CUTS = "test_cuts_are_ascending_and_inside_the_chunk"
CHUNK = "test_state_chunk_is_a_positive_int"
HIT = "test_hit_only_shortens_and_is_pure_and_monotone"
NEEDED = "test_what_is_read_is_never_freed"
MAX_UNITS = "test_max_units_is_never_exceeded"
NULL = "test_the_null_unit_is_neither_read_nor_written"
ABORT = "test_every_unit_comes_back_after_an_abort"
DRAFTS = "test_drafts_of_any_number_leave_no_trace"
WARM = "test_warm_equals_cold"
SCHEDULES = "test_any_schedule_gives_each_requests_own_output"


def kit(spec: KVCacheSpec, num_schedules: int = 2) -> type[KVCacheSpecConformance]:
    # A kind of its own, which the kit registers.
    name = type(spec).__name__
    kind = type(name, (type(spec),), {"kind": name})

    def make_spec(cls: object, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        fields = {one.name: getattr(spec, one.name) for one in attrs.fields(type(spec))}
        made: KVCacheSpec = kind(**{**fields, "layers": layers, "block_size": block_size})
        return made

    return type(
        f"Test{name}",
        (KVCacheSpecConformance,),
        {"make_spec": classmethod(make_spec), "k_max": 1, "num_schedules": num_schedules},
    )


ENGINE = frozenset({NULL, ABORT, DRAFTS, WARM, SCHEDULES})
"""Rules that run the real engine."""
NONE: frozenset[str] = frozenset()

FAULTS: list[tuple[KVCacheSpec, str, str, frozenset[str]]] = [
    (blocks(OneLayerCounted), BYTES, "the sum over its tensors", ENGINE | {NEEDED, MAX_UNITS}),
    (blocks(CutsAtTheStart), CUTS, "not inside", NONE),
    (blocks(ChunksOfBlocks), CHUNK, "for blocks", NONE),
    (blocks(HitAllOrNothing), HIT, "a lower limit, a longer hit", NONE),
    (blocks(NeedsNoLastBlock), NEEDED, "are read", NONE),
    (window(NeedsTooLittle), NEEDED, "are read", (ENGINE - {ABORT}) | {HIT}),
    (blocks(WholeOneShort), MAX_UNITS, "max_units says", NONE),
    (window(NeedsTooLittleLater), NULL, "null block", NONE),
    (window(TakesUnits), ABORT, "reference counts", ENGINE | {NEEDED, MAX_UNITS}),
    (blocks(NoRoomBesideDrafts), DRAFTS, "no tensor with a byte per position", NONE),
    (blocks(HitsNothingOfALongPrompt), WARM, "no request of 3 hit", NONE),
    (window(NeedsTooLittleOfSmallBlocks), SCHEDULES, "null block", NONE),
]

MORE_FAULTS: list[tuple[KVCacheSpec, str, str]] = [
    (blocks(DraftSpaceUncounted), BYTES, "the sum over its tensors"),
    (StateChunkOfZero(layers=("a",), block_size=4), CHUNK, "below 1"),
    (window(WindowOneShort), MAX_UNITS, "max_units says"),
    (window(WindowWithoutFlight), MAX_UNITS, "max_units says"),
    (StateInNoSlot(layers=("a",), block_size=4), MAX_UNITS, "is 0, not an integer"),
    (window(NeedsTooLittle), NEEDED, "are read"),
    (window(NeedsAFreedBlock), NEEDED, "was freed"),
    (blocks(HitBeyondTheLimit), HIT, "longer than its limit|no full hit"),
    (blocks(HitWithAHole), HIT, "read but not cached|not stable"),
    (blocks(HitThatShrinksWithMore), HIT, "hit is not"),
    (blocks(HitThatCounts), HIT, "not pure|no full hit"),
    (HitBesideTheWindow(layers=("a",), block_size=4, window=7), HIT, "read but not cached"),
    (blocks(HitThatAsksTooFar), HIT, "asks for block"),
    (blocks(CutsBackwards), CUTS, "not ascending"),
]


@pytest.mark.parametrize(
    ("fault", "meant", "message", "also"),
    FAULTS,
    ids=lambda v: "" if isinstance(v, str | frozenset) else type(v).__name__,
)
def test_a_planted_fault_fails_the_rule_meant_for_it(
    fault: KVCacheSpec, meant: str, message: str, also: frozenset[str]
) -> None:
    # Small blocks are drawn late.
    failed = failing_rules(kit(fault, 18 if meant == SCHEDULES else 2))
    assert failed.keys() == also | {meant}
    assert message in failed[meant]


def test_every_rule_of_the_kit_has_a_planted_fault() -> None:
    rules = {rule.name for rule in KVCacheSpecConformance.rules()}
    assert {meant for _, meant, _, _ in FAULTS} == rules


@pytest.mark.parametrize(("fault", "rule", "message"), MORE_FAULTS, ids=lambda v: type(v).__name__)
def test_a_rule_catches_every_form_of_its_fault(fault: KVCacheSpec, rule: str, message: str) -> None:
    # What the core itself refuses is its own error.
    with pytest.raises((AssertionError, PluginError), match=message):
        getattr(kit(fault)(), rule)()


def test_an_author_without_make_spec_is_told_what_to_define() -> None:
    empty = type("TestEmpty", (KVCacheSpecConformance,), {})
    with pytest.raises(
        NotImplementedError, match=r"TestEmpty defines no make_spec\(cls, layers, block_size\)"
    ):
        getattr(empty(), BYTES)()
