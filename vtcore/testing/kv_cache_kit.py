"""The conformance kit of a KV-cache spec: subclass `KVCacheSpecConformance` in the plugin's tests.

Does not: run the author's kernels. Rules of the spec alone are judged on random lives over real pools; the
others by a toy model that keeps token ids in the spec's own tensors, through the real engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, ClassVar

from attrs import evolve

from vtcore.interfaces.batch import RowParams
from vtcore.interfaces.kv_cache_spec import KVCacheSpec, Slot
from vtcore.interfaces.registry_entries import ArchEntry, KVCacheSpecEntry
from vtcore.kv_cache.allocator import allocate_caches
from vtcore.kv_cache.planner import plan_memory
from vtcore.plugins import build_registry
from vtcore.registry import PluginRegistry
from vtcore.testing import toy_plugin
from vtcore.testing.draw_case import draw_case
from vtcore.testing.kit import ConformanceKit, since
from vtcore.testing.kit_modules import plugin_module
from vtcore.testing.kv_cache_lives import limits_of, lives_of, reads_of
from vtcore.testing.schedule_case import CaseRequest, ScheduleCase
from vtcore.testing.schedules import ScheduledModel, run_schedule
from vtcore.testing.spec_arch import SpecArch, SpecReference

_VOCAB = 12
_ARCH = "kit_spec_model"
_LONG = tuple(7 * index % 11 for index in range(60))
"""A prompt of fifteen blocks."""


class KVCacheSpecConformance(ConformanceKit):
    """The rules of docs/plugins.md, KV-cache spec.

    Attributes:
        block_sizes: Tokens per block that the spec is made with.
        k_max: Drafts verified per step at most; a spec without rollback is run without drafts.
        num_trials: Random situations of each kind.
        num_schedules: Random runs of a toy model.
    """

    hook = "kv_cache_specs"
    block_sizes: ClassVar[Sequence[int]] = (1, 3, 4)
    k_max: ClassVar[int] = 3
    num_trials: ClassVar[int] = 40
    num_schedules: ClassVar[int] = 20

    @classmethod
    def make_spec(cls, layers: tuple[str, ...], block_size: int) -> KVCacheSpec:
        """The spec for layers and a block size; the author gives it."""
        raise NotImplementedError(f"{cls.__qualname__} defines no make_spec(cls, layers, block_size)")

    @classmethod
    def specs(cls) -> list[KVCacheSpec]:
        """One of each block size, of two layers."""
        return [cls.make_spec(("layers.0", "layers.1"), block_size) for block_size in cls.block_sizes]

    @classmethod
    def drafts(cls) -> int:
        """`k_max`, or 0 if the toy model cannot roll the spec back."""
        return cls.k_max if cls.specs()[0].rollback & {"overwrite", "slots"} else 0

    @since("0.1")
    def test_planned_bytes_are_allocated_bytes(self) -> None:
        """The bytes that are planned are the bytes that are allocated, for every k up to `k_max`."""
        for spec in self.specs():
            for k in range(self.drafts() + 1):
                plan = plan_memory([spec], limits_of(spec, 2 * spec.block_size, k_max=k))
                caches = allocate_caches(plan, k, "cpu").layers
                assert set(caches) == set(spec.layers), "a layer has no cache tensors"
                tensors = [tensor for cache in caches.values() for tensor in cache.tensors.values()]
                assert len(tensors) >= len(spec.layers), "a layer has no cache tensors"
                allocated = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                planned = plan.cache_bytes
                assert allocated == planned, f"k_max={k}: {planned} bytes are planned, {allocated} allocated"

    @since("0.1")
    def test_cuts_are_ascending_and_inside_the_chunk(self) -> None:
        """Cut points are ascending and lie strictly inside the chunk."""
        for spec, random in self._trials():
            start = random.randrange(200)
            end = start + random.randrange(1, 200)
            cuts = spec.cuts(start, end, random.choice((1, 2, 3, 64)) * spec.block_size)
            assert list(cuts) == sorted(set(cuts)), f"cuts {cuts} are not ascending"
            assert all(start < cut < end for cut in cuts), f"cuts {cuts} are not inside ({start}, {end})"

    @since("0.2")
    def test_state_chunk_is_a_positive_int(self) -> None:
        """`state_chunk` is an int, at least 1; only slots may say more than 1."""
        for spec in self.specs():
            chunk = spec.state_chunk
            assert type(chunk) is int, f"state_chunk is {chunk!r}, no int"
            assert chunk >= 1, f"state_chunk is {chunk}, below 1"
            assert chunk == 1 or isinstance(spec.lifetime, Slot), f"state_chunk is {chunk} for blocks"

    @since("0.1")
    def test_hit_only_shortens_and_is_pure_and_monotone(self) -> None:
        """A hit only shortens, is pure, monotone, and leaves nothing to read that is not cached."""
        for spec, random in self._trials():
            limit = random.randrange(12)
            few = {block for block in range(limit) if random.random() < 0.7}
            many = few | {block for block in range(limit) if random.random() < 0.5}
            length = _hit(spec, few, limit)
            assert 0 <= length <= limit, f"a hit of {length} blocks is longer than its limit {limit}"
            assert _hit(spec, few, limit) == length, "hit is not pure: the same question gets another answer"
            assert _hit(spec, few, length) == length, "hit is not stable: its own answer gets shorter"
            assert _hit(spec, many, limit) >= length, "hit is not monotone: more cached blocks, shorter hit"
            assert _hit(spec, set(range(limit)), limit) == limit, "a wholly cached prefix is no full hit"
            if limit:
                assert _hit(spec, few, limit - 1) <= length, (
                    "hit is not monotone: a lower limit, a longer hit"
                )
            read = {p // spec.block_size for p in reads_of(spec, length * spec.block_size)} - {length}
            if length and isinstance(spec.lifetime, Slot):
                read = {length - 1}
            missing = read - few
            assert not missing, (
                f"after a hit of {length} blocks, blocks {sorted(missing)} are read but not cached"
            )

    @since("0.1")
    def test_what_is_read_is_never_freed(self) -> None:
        """`needed` covers every position that a query may read, and what is freed is never read again."""
        for spec in self.specs():
            start = 0
            for length in range(1, 12 * spec.block_size):
                needed = spec.needed(length)
                assert needed.start >= start, (
                    f"needed({length}) starts at {needed.start}, block {start - 1} was freed"
                )
                reads = [p // spec.block_size for p in reads_of(spec, length) if p < length]
                assert not reads or (needed.start <= min(reads) and max(reads) < needed.stop), (
                    f"needed({length}) is {needed} but blocks {min(reads)} to {max(reads)} are read"
                )
                start = needed.start
        for spec, random in self._trials():
            for _units in lives_of(spec, random, self.drafts()):
                pass

    @since("0.1")
    def test_max_units_is_never_exceeded(self) -> None:
        """No request ever holds more than `max_units`, through chunks, drafts, rollback and the end."""
        for spec, random in self._trials():
            for held, allowed in lives_of(spec, random, self.drafts(), reads=False):
                assert held <= allowed, f"a request holds {held} units, max_units says {allowed}"

    @since("0.1")
    def test_the_null_unit_is_neither_read_nor_written(self) -> None:
        """A model over the spec meets id 0 of no pool, in mixed steps of chunks and single tokens."""
        for budget in (3, 64):
            requests = (*_requests(4), CaseRequest(prompt=_LONG, max_tokens=12))
            self._run(ScheduleCase(requests=requests, budget=budget, vocab_size=_VOCAB, seed=budget))

    @since("0.1")
    def test_every_unit_comes_back_after_an_abort(self) -> None:
        """Requests that are aborted at any point leave nothing behind, with and without memory to spare."""
        for num_blocks in (None, 40):
            requests = tuple(
                evolve(request, abort_after=index % 3, arrival=index)
                for index, request in enumerate(_requests(6))
            )
            self._run(
                ScheduleCase(requests=requests, num_blocks=num_blocks, vocab_size=_VOCAB, depth=2, budget=7)
            )

    @since("0.1")
    def test_drafts_of_any_number_leave_no_trace(self) -> None:
        """Right and wrong drafts, k = 0 to `k_max` a step, change no output; without rollback, only k = 0."""
        for k in range(1, self.drafts() + 1):
            for drafter in ("half", "junk"):
                self._run(
                    ScheduleCase(
                        requests=_requests(3),
                        drafter=drafter,
                        captured_k=tuple(range(k + 1)),
                        ks=(k, 0, k, 1),
                        vocab_size=_VOCAB,
                        depth=2,
                    )
                )

    @since("0.1")
    def test_warm_equals_cold(self) -> None:
        """With prefix caching, shared beginnings and second turns give what they give without."""
        first = _requests(4)
        again = tuple(evolve(request, arrival=30) for request in first)
        turns = tuple(
            evolve(request, follows=index, prompt=(index,), arrival=1) for index, request in enumerate(first)
        )
        long = tuple(CaseRequest(prompt=(*_LONG, i), max_tokens=2, arrival=9 * i) for i in range(3))
        for requests, budget in ((first + again + turns, 5), (long, 64)):
            case = ScheduleCase(
                requests=requests, prefix_caching=True, num_blocks=80, budget=budget, vocab_size=_VOCAB
            )
            hits = self._run(case)["hits"]
            # A state is kept only where its kernel stops anyway, which short prompts may not reach.
            if self.specs()[0].state_chunk == 1:
                assert hits > 0, f"no request of {len(requests)} hit the prefix that others left in the cache"

    @since("0.1")
    def test_any_schedule_gives_each_requests_own_output(self) -> None:
        """Law 8: whatever is scheduled beside it, mixed with full layers or alone, a request is itself."""
        drafters: tuple[str | None, ...] = (None, "oracle", "half", "junk") if self.drafts() else (None,)
        for seed in range(self.num_schedules):
            case = draw_case(
                Random(seed).choice, vocab_sizes=(_VOCAB,), drafters=drafters, block_sizes=self.block_sizes
            )
            self._run(case, is_mixed=bool(seed % 2))

    @classmethod
    def _trials(cls) -> Iterator[tuple[KVCacheSpec, Random]]:
        for spec in cls.specs():
            random = Random(0)
            for _ in range(cls.num_trials):
                yield spec, random

    @classmethod
    def _run(cls, case: ScheduleCase, is_mixed: bool = True) -> Counter[str]:
        spec = cls.make_spec(("probe",), case.block_size)
        reference = SpecReference(_VOCAB, (), 0, spec, is_mixed, max(case.captured_k))
        config: dict[str, Any] = {"model_type": _ARCH, "vocab_size": _VOCAB, "is_mixed": is_mixed}
        model = ScheduledModel(
            cls._spec_registry(),
            config,
            {},
            reference,
            has_blocks=reference.has_blocks,
            has_states=isinstance(spec.lifetime, Slot),
        )
        return run_schedule(case, model=model).counters

    @classmethod
    def _spec_registry(cls) -> PluginRegistry:
        """The kit's registry with the toy model and, if no plugin offers it, the spec's kind."""

        def build() -> PluginRegistry:
            spec = type(cls.specs()[0])
            arch = type("KitSpecArch", (SpecArch,), {"make_spec": staticmethod(cls.make_spec)})

            def entries(name: str) -> list[ArchEntry | KVCacheSpecEntry]:
                offered: list[ArchEntry | KVCacheSpecEntry] = [
                    ArchEntry(name=_ARCH, model_types=(_ARCH,), implementation=f"{name}:Arch")
                ]
                if spec.kind not in known:
                    offered.append(KVCacheSpecEntry(name=spec.kind, implementation=f"{name}:Spec"))
                return offered

            known = {*cls.registry().kv_cache_specs, *build_registry((toy_plugin,), False).kv_cache_specs}
            module = plugin_module(entries, {"Arch": arch, "Spec": spec})
            return build_registry(extra=(toy_plugin, *cls.modules(), module), entry_points=False)

        found: PluginRegistry = cls.once("spec_registry", build)
        return found


def _requests(count: int) -> tuple[CaseRequest, ...]:
    """Prompts that share a beginning, of lengths around block edges."""
    beginning = (3, 1, 4, 1, 5, 9, 2, 6, 5)
    return tuple(
        CaseRequest(
            prompt=(*beginning[: 3 + 3 * (index % 3)], *range(index)),
            max_tokens=6 + index,
            params=RowParams(temperature=float(index % 2), seed=index),
            arrival=index // 2,
        )
        for index in range(count)
    )


def _hit(spec: KVCacheSpec, present: set[int], limit: int) -> int:
    def is_present(block: int) -> bool:
        assert 0 <= block < limit, f"hit asks for block {block} outside 0..{limit - 1}"
        return block in present

    return spec.hit(is_present, limit)
