"""The kit's rules of an arch on a GPU: graphs, padding, batch mates and the CPU's float64 as the judge.

They run where torch sees a GPU and are skipped elsewhere. Each token is held to the reference's float64
logits, with the noise of the request's seed added, after the very tokens before it.
Does not: judge speed.

Source: tau and the margin rule are the design's eighth law.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen

from vtcore.config.env import read_environment
from vtcore.config.options import UserOptions
from vtcore.engine.core import AddRequest, FinishRequest
from vtcore.interfaces.batch import EngineRequest, RowParams, TokenLogprobs
from vtcore.interfaces.kv_cache_spec import Whole
from vtcore.internals import Internals
from vtcore.loader import LoadedCore, load_core
from vtcore.ops.dispatch import CORE_OPS
from vtcore.sampling.noise import Purpose, gumbel
from vtcore.testing.arch_precision import TAU
from vtcore.testing.arch_subject import ArchSubject
from vtcore.testing.invariants import check_idle, check_invariants
from vtcore.testing.kit import since

_MAX_LEN = 160
"""Model length of the rules' engines, in tokens; some requests reach it."""
_LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130)
"""Prompt lengths: around the edges of blocks and chunks."""
_OF_10_000 = 1
"""Tokens in 10,000 that may differ in float32, within tau."""

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@frozen
class _Planned:
    """One request of a schedule: when it comes, and when it is aborted (None: never)."""

    request: EngineRequest
    arrival: int
    abort: int | None

    @property
    def most_tokens(self) -> int:
        """Output tokens when nothing aborts it: what it asks for, as far as the model length allows."""
        return min(self.request.max_tokens, _MAX_LEN - len(self.request.prompt_token_ids))


@frozen
class _Given:
    """What a request of a schedule gave.

    Args:
        tokens: Of an aborted request those that it got.
        reason: Why it ended; "abort" where it was aborted before anything else ended it.
    """

    planned: _Planned
    tokens: Sequence[int]
    reason: str | None


@frozen
class _Logged:
    """A request's output among others.

    Args:
        num_cached: Prompt tokens that were found in the cache.
        most_running: Requests that ran at once, itself included, at most.
    """

    logprobs: Sequence[TokenLogprobs]
    num_cached: int
    most_running: int


class ArchGpu(ArchSubject):
    """Through the real engine on the first GPU.

    Attributes:
        num_gpu_schedules: Random schedules that each mode runs, and bfloat16 a quarter of. The rules want to
            see requests preempted, aborted and at the model length, which few schedules show.
    """

    num_gpu_schedules: ClassVar[int] = 200

    @pytest.mark.gpu
    @needs_gpu
    @since("0.1")
    def test_on_a_gpu_graphs_and_batch_mates_leave_every_requests_own_output(self) -> None:
        """Captured and eager steps, many at once and one at a time, keep to float64's tokens in float32."""
        modes: dict[str, dict[str, Any]] = {
            "graphs": {},
            "eager": {"enforce_eager": True, "async_scheduling": False},
            "alone": {"max_num_seqs": 1},
        }
        for mode, changes in modes.items():
            loaded = self._load("float32", **changes)
            given = [
                one
                for seed in range(self.num_gpu_schedules)
                for one in self._run(loaded, seed, alone=mode == "alone")
            ]
            self._check_canaries(loaded)
            graphs, counters = loaded.runner.graphs, loaded.core.scheduler.counters
            if mode == "graphs":
                assert graphs is not None, "no graph was captured"
                assert graphs.num_replays > 0, "no graph was replayed"
                has_blocks = Whole in self.lifetimes()
                assert counters.preemptions > 0 or not has_blocks, "nothing was preempted"
            if mode == "eager":
                assert graphs is None, "an eager engine captured graphs"
            loaded.close()
            seen = self._judge(given, "float32", has_aborts=mode != "alone")
            allowed = _OF_10_000 * seen["tokens"] / 10_000
            assert seen["beyond"] == 0, f"{mode}: tokens differ by more than tau: {dict(seen)}"
            assert seen["within"] <= allowed, f"{mode}: too many tokens differ: {dict(seen)}"

    @pytest.mark.gpu
    @needs_gpu
    @since("0.1")
    def test_on_a_gpu_naive_ops_serve_too(self, caplog: pytest.LogCaptureFixture) -> None:
        """With every op in torch, as an author has it who puts a kernel aside: float64's tokens in float32.

        Ops that wait for values on the host cannot be captured; the engine then says so, and runs eagerly.
        """
        loaded = self._load("float32")
        ops = {**CORE_OPS, **loaded.arch.ops()}
        loaded.close()
        loaded = self._load("float32", op_overrides={name: "naive" for name in ops if "naive" in ops[name]})
        if loaded.runner.graphs is None:
            assert "steps run without graphs" in caplog.text
        given = [
            one
            for seed in range(self.num_gpu_schedules // 10)
            for one in self._run(loaded, seed, alone=False)
        ]
        self._check_canaries(loaded)
        loaded.close()
        seen = self._judge(given, "float32", has_aborts=True)
        assert seen["beyond"] + seen["within"] == 0, f"tokens differ: {dict(seen)}"

    @pytest.mark.gpu
    @needs_gpu
    @since("0.1")
    def test_on_a_gpu_bfloat16_keeps_to_its_measured_bound(self) -> None:
        """Tokens that differ from float64's are counted; in proportion there are no more than on a CPU."""
        assert self.bfloat16_bound is not None, "declare bfloat16_bound, see the CPU's rule"
        loaded = self._load("bfloat16")
        given = [
            one
            for seed in range(self.num_gpu_schedules // 4)
            for one in self._run(loaded, seed, alone=False, is_greedy=True)
        ]
        self._check_canaries(loaded)
        loaded.close()
        seen = self._judge(given, "bfloat16", has_aborts=True)
        share = seen["tokens"] / 480
        assert seen["within"] <= self.bfloat16_bound.within * share, dict(seen)
        assert seen["beyond"] <= self.bfloat16_bound.beyond * share, dict(seen)

    @pytest.mark.gpu
    @needs_gpu
    @since("0.1")
    def test_on_a_gpu_batch_invariant_logits_are_the_same_bits_in_any_batch(self) -> None:
        """Alone, cold among 32 at any place, and after a hit on prompt tokens: equal log probabilities, bit
        for bit."""
        request = EngineRequest(
            id="it",
            prompt_token_ids=tuple((7 * i * i + 3) % self.vocab_size() for i in range(130)),
            params=RowParams(temperature=0.0, logprobs=5),
            max_tokens=20,
        )
        sizes: dict[str, Any] = {"batch_invariant": True, "max_num_seqs": 32, "num_blocks": 400}
        for dtype in ("float32", "bfloat16"):
            loaded = self._load(dtype, **sizes, enable_prefix_caching=False)
            alone = self._logprobs(loaded, request, 0)
            assert len(alone.logprobs) == request.max_tokens, f"{len(alone.logprobs)} tokens"
            for count, place in ((31, 0), (31, 17), (31, 31), (5, 5)):
                found = self._logprobs(loaded, request, count, place)
                assert found.num_cached == 0, f"{found.num_cached} tokens are cached without a cache"
                assert found.most_running == count + 1, f"{found.most_running} of {count + 1} ran at once"
                what = f"{dtype}: {count} batch mates, {place} of them before it,"
                assert found.logprobs == alone.logprobs, f"{what} change bits"
            loaded.close()
            loaded = self._load(dtype, **sizes, enable_prefix_caching=True)
            cold = self._logprobs(loaded, request, 3, 1)
            assert cold.num_cached == 0, f"{cold.num_cached} tokens were cached before anything ran"
            assert cold.logprobs == alone.logprobs, f"{dtype}: keeping prefixes changes bits"
            for count, place in ((0, 0), (3, 1), (31, 31)):
                found = self._logprobs(loaded, request, count, place)
                assert found.num_cached > 0, f"{count} batch mates: the same prompt was not found again"
                what = f"{dtype}: a prefix hit of {found.num_cached} tokens among {count} batch mates"
                assert found.logprobs == alone.logprobs, f"{what} changes bits"
            loaded.close()

    @pytest.mark.gpu
    @needs_gpu
    @since("0.1")
    def test_on_a_gpu_nothing_is_compiled_while_serving(self) -> None:
        """Batches of 1 to 9 rows, prompts of every length around blocks and chunks: no kernel is built."""
        from vtcore.ops.compile_count import num_compiles

        loaded = self._load("bfloat16", max_num_seqs=9)
        before = num_compiles()
        for seed in range(12):
            self._run(loaded, seed, alone=False)
        assert num_compiles() == before, f"{num_compiles() - before} kernels were compiled while serving"
        loaded.close()

    @classmethod
    def _load(cls, dtype: str, **changes: Any) -> LoadedCore:
        options: dict[str, Any] = {
            "device": "cuda",
            "dtype": dtype,
            "max_model_len": _MAX_LEN,
            "block_size": 16,
            "num_blocks": 24,
            "max_num_seqs": 5,
            "max_num_batched_tokens": 192,
        } | changes
        if Whole not in cls.lifetimes():
            # The number of rows alone sizes windows and slots.
            del options["num_blocks"]
        loaded = load_core(
            UserOptions(**options),
            hf_config=cls.hf_config,
            tensors=cls.tensors(),
            registry=cls.registry(),
            environment=read_environment(),
            internals=Internals(check=check_invariants),
        )
        for cache in loaded.caches.values():
            for tensor in cache.tensors.values():
                tensor.fill_(float("nan"))
        return loaded

    @classmethod
    def _check_canaries(cls, loaded: LoadedCore) -> None:
        for layer, cache in loaded.caches.items():
            for name, tensor in cache.tensors.items():
                assert bool(tensor[0].isnan().all()), f"the null unit of {layer}.{name} was written"
        tables = loaded.runner.tables
        for column in (tables.last_token, tables.computed, tables.limit, tables.cur_slot, tables.history):
            assert not bool(column[0].any()), "the null row was written"

    @classmethod
    def _schedule(cls, seed: int, is_greedy: bool) -> list[_Planned]:
        random, vocab_size = Random(seed), cls.vocab_size()
        found = []
        for index in range(random.randint(2, 7)):
            length = random.choice(_LENGTHS)
            params = RowParams(temperature=random.choice((0.0, 0.0, 0.7, 1.0)), seed=seed + index)
            request = EngineRequest(
                id=f"{seed}-{index}",
                prompt_token_ids=tuple(random.randrange(vocab_size) for _ in range(length)),
                params=RowParams(temperature=0.0) if is_greedy else params,
                max_tokens=random.choice((1, 2, 9, 20, _MAX_LEN)),
            )
            arrival = random.randrange(12)
            found.append(
                _Planned(request, arrival, arrival + random.randrange(9) if random.random() < 0.15 else None)
            )
        return found

    @classmethod
    def _run(cls, loaded: LoadedCore, seed: int, *, alone: bool, is_greedy: bool = False) -> list[_Given]:
        """Run a schedule; alone, a request comes when the one before has ended, and none is aborted."""
        core, schedule = loaded.core, cls._schedule(seed, is_greedy)
        tokens: dict[str, list[int]] = {planned.request.id: [] for planned in schedule}
        reasons: dict[str, str] = {}
        waiting = sorted(schedule, key=lambda planned: planned.arrival)
        step = 0
        while waiting or core.has_work:
            while waiting and (alone or waiting[0].arrival <= step) and not (alone and core.has_work):
                core.inbox.append(AddRequest(waiting.pop(0).request))
            for planned in () if alone else schedule:
                if planned.abort == step:
                    core.inbox.append(FinishRequest(planned.request.id, reason="abort"))
                    reasons.setdefault(planned.request.id, "abort")
            if core.has_work:
                for update in core.step():
                    tokens[update.id] += update.tokens
                    if update.finish_reason is not None:
                        reasons[update.id] = update.finish_reason
            step += 1
        check_idle(core)
        ids = [planned.request.id for planned in schedule]
        return [_Given(planned, tokens[i], reasons.get(i)) for planned, i in zip(schedule, ids, strict=True)]

    @classmethod
    def _judge(cls, several: Iterable[_Given], dtype: str, has_aborts: bool) -> Counter[str]:
        """Hold each request's number of tokens to its own, which no mode changes, and count.

        Returns:
            "tokens"; "within" and "beyond" tau of float64's; requests "aborted" and at the model length,
            "full".
        """
        seen: Counter[str] = Counter(tokens=0, within=0, beyond=0, aborted=0, full=0)
        for given in several:
            planned, count = given.planned, len(given.tokens)
            request, most = planned.request, planned.most_tokens
            if given.reason == "abort":
                assert count <= most, f"{request.id}: {count} tokens, though {most} are the most"
            else:
                # No schedule has tokens that stop.
                assert given.reason == "length", f"{request.id}: ended by {given.reason}"
                assert count == most, f"{request.id}: {count} tokens, not {most}"
            within, beyond = cls._exempted(request, given.tokens, dtype)
            seen.update(tokens=count, within=within, beyond=beyond, aborted=given.reason == "abort")
            seen["full"] += len(request.prompt_token_ids) + count == _MAX_LEN
        assert seen["tokens"] > 0, "no token was judged"
        assert seen["full"] > 0, "no request reached the model length"
        assert has_aborts == (seen["aborted"] > 0), f"{seen['aborted']} requests were aborted"
        return seen

    @classmethod
    def _exempted(cls, request: EngineRequest, tokens: Sequence[int], dtype: str) -> tuple[int, int]:
        """Tokens that are not float64's own, within and beyond tau."""
        if not tokens:
            return 0, 0
        ids = [*request.prompt_token_ids, *tokens]
        start = len(request.prompt_token_ids)
        scores = cls.reference_logits(ids[:-1])[start - 1 :]
        scale = request.params.temperature or 1.0
        if request.params.temperature:
            seeds = torch.full((len(tokens),), request.params.seed)
            positions = torch.arange(start, len(ids))
            noise = gumbel(seeds, positions, torch.arange(scores.shape[1]), Purpose.TARGET)
            scores = scores + scale * noise
        gap = scores.max(1).values - scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        return int(((gap > 0) & (gap <= TAU[dtype])).sum()), int((gap > TAU[dtype]).sum())

    @classmethod
    def _mates(cls, count: int) -> list[EngineRequest]:
        """Requests that run long enough to meet whoever comes after them."""
        return [
            EngineRequest(
                id=f"mate-{i}",
                prompt_token_ids=tuple((i + 5 * j) % cls.vocab_size() for j in range(1 + 7 * i % 60)),
                params=RowParams(temperature=1.0, seed=i),
                max_tokens=30 + i,
            )
            for i in range(count)
        ]

    @classmethod
    def _logprobs(cls, loaded: LoadedCore, request: EngineRequest, count: int, place: int = 0) -> _Logged:
        """Run the request after `place` of its `count` batch mates and before the others."""
        core, mates = loaded.core, cls._mates(count)
        for other in (*mates[:place], request, *mates[place:]):
            core.inbox.append(AddRequest(other))
        found: list[TokenLogprobs] = []
        num_cached = most_running = 0
        has_ended = False
        while core.has_work:
            for update in core.step():
                if update.id == request.id:
                    found += update.logprobs
                    num_cached = max(num_cached, update.num_cached_tokens)
                    has_ended = update.finish_reason is not None
            if not has_ended:
                most_running = max(most_running, len(core.scheduler.running))
        return _Logged(found, num_cached, most_running)
