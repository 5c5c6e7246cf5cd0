"""What a scheduler policy costs: time per schedule() under each built-in one, interleaved in one run.

Does not: assert anything or run a model. `10k waiting` is a scheduler of 256 running requests in which, each
step, one ends and one is admitted. `128 waiting` is only the choice of who is next, views included, among
128 prompts of 8192 tokens, of which the cache has nothing, a common half, or all. "cold": no request was
looked up before; "warm": the cache is as it was; "changing": it gained a block; "evicting": it lost one too;
"gaps": a block is cached whose predecessor is not. "hybrid" has a state every 2048 tokens besides.

Usage: python bench/policies.py [--rounds 400] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from vtcore.interfaces.batch import EngineRequest, RowParams, RowResult, StepResult
from vtcore.interfaces.scheduler_policy import PolicyContext, SchedulerPolicy
from vtcore.kv_cache.block_hash import root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore.kv_cache.state_pool import StatePool
from vtcore.plugins import build_registry
from vtcore.scheduling.commit import commit
from vtcore.scheduling.frame import Frame
from vtcore.scheduling.limits import SchedulerLimits
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.request_state import RequestState
from vtcore.scheduling.scheduler import Scheduler
from vtcore.scheduling.waiting import WaitingQueue

NUM_RUNNING, NUM_WAITING, BLOCK = 256, 10_000, 32
NUM_PROMPTS, PROMPT = 128, 8192


def memory_of(num_blocks: int, max_num_seqs: int, max_model_len: int, num_states: int = 0) -> RequestMemory:
    """A pool of blocks, with `num_states` one of states too; prefix caching is on."""
    blocks = FullAttentionSpec(layers=("a",), block_size=BLOCK, num_kv_heads=1, head_dim=8, dtype="float32")
    states = RecurrentStateSpec(layers=("s",), block_size=BLOCK, state=(("s", (4,), "float32"),))
    plan = plan_memory(
        (blocks, states) if num_states else (blocks,),
        PlanLimits(
            block_size=BLOCK,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_model_len_pinned=True,
            max_query=8192,
            num_checkpoints=num_states,
        ),
    )
    return RequestMemory(plan, True, root_hash(), 0)


class Turnover:
    """A full scheduler with a long queue, in which one request ends and one starts each step."""

    def __init__(self, policy: SchedulerPolicy) -> None:
        self.random = Random(0)
        self.added = 0
        memory = memory_of(NUM_RUNNING * 64, NUM_RUNNING, 2048)
        limits = SchedulerLimits(max_num_seqs=NUM_RUNNING, max_num_batched_tokens=8192, max_model_len=2048)
        guard = PolicyGuard(policy, time.monotonic, memory, starvation_s=1e9)
        self.scheduler = Scheduler(limits, memory, guard, time.monotonic)
        for _ in range(NUM_RUNNING + NUM_WAITING):
            self.add()
        while len(self.scheduler.running) < NUM_RUNNING:
            self.step()

    def add(self) -> None:
        """Queue a short prompt with one of ten priorities."""
        prompt = tuple(self.random.randrange(50_000) for _ in range(40))
        self.scheduler.add(
            EngineRequest(
                id=str(self.added),
                prompt_token_ids=prompt,
                params=RowParams(),
                max_tokens=1800,
                arrival_s=time.monotonic(),
                priority=self.random.randrange(10),
            )
        )
        self.added += 1

    def step(self) -> float:
        """Seconds that schedule() took."""
        start = time.perf_counter()
        frame = self.scheduler.schedule()
        taken = time.perf_counter() - start
        assert frame is not None
        commit(self.scheduler, frame, result_of(frame))
        return taken

    def turn(self) -> float:
        """One ends, one arrives, and a step in which one is admitted."""
        self.scheduler.finish(self.scheduler.running[self.random.randrange(NUM_RUNNING)].id)
        self.add()
        assert len(self.scheduler.waiting) == NUM_WAITING + 1
        taken = self.step()
        assert len(self.scheduler.running) == NUM_RUNNING
        return taken


def result_of(frame: Frame) -> StepResult:
    """What a device would answer."""
    rows = (
        RowResult(int(frame.rows[i]), request.computed, (1,) if frame.emits[i] else ())
        for i, request in enumerate(frame.requests)
    )
    return StepResult(frame.step, tuple(rows))


def bench_turnover(policies: Mapping[str, Callable[[], SchedulerPolicy]], rounds: int) -> dict[str, Any]:
    """Microseconds per schedule() with 10k waiting, policies taking turns."""
    runs = {name: Turnover(make()) for name, make in policies.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run.turn())
    figures = {name: spread(taken) for name, taken in times.items()}
    base = figures["fcfs"]
    for figure in figures.values():
        figure["ratio_of_medians"] = figure["median_us"] / base["median_us"]
        figure["ratio_of_minima"] = figure["min_us"] / base["min_us"]
    return figures


class Choice:
    """128 waiting prompts and a cache that holds nothing, a common half, or all of each."""

    def __init__(self, policy: SchedulerPolicy, cached: str, hybrid: bool) -> None:
        num_cached = {"nothing": 0, "half": PROMPT // 2 // BLOCK, "all": PROMPT // BLOCK}[cached]
        every = 2048 // BLOCK
        self.memory = memory_of(
            (num_cached if cached == "half" else NUM_PROMPTS * num_cached) + 512,
            NUM_PROMPTS,
            PROMPT + 256,
            num_states=NUM_PROMPTS * (PROMPT // BLOCK // every) if hybrid else 0,
        )
        self.policy = policy
        self.waiting = WaitingQueue()
        self.requests: list[RequestState] = []
        random = Random(1)
        common = [random.randrange(50_000) for _ in range(PROMPT // 2)]
        for index in range(NUM_PROMPTS):
            own = [random.randrange(50_000) for _ in range(PROMPT)]
            prompt = common + own[PROMPT // 2 :] if cached == "half" else own
            req = EngineRequest(
                id=str(index),
                prompt_token_ids=tuple(prompt),
                params=RowParams(),
                max_tokens=8,
                arrival_s=float(index),
            )
            request = RequestState(req, list(prompt), len(prompt) + 8)
            self.memory.update_hashes(request)
            self.requests.append(request)
            # As in service, the hash in the cache is another object than the waiting request's.
            hashes = [bytes(bytearray(block_hash)) for block_hash in request.hashes[:num_cached]]
            for pool in self.memory.pools:
                is_states = isinstance(pool, StatePool)
                parent = b""
                units: list[int] = []
                for block, block_hash in enumerate(hashes):
                    if block_hash not in pool.by_hash and (not is_states or block % every == every - 1):
                        found = pool.take_checkpoint() if isinstance(pool, StatePool) else pool.allocate(1)[0]
                        assert found is not None
                        pool.publish(found, block_hash, parent)
                        units.append(found)
                    parent = block_hash
                pool.free(reversed(units))
        self.restart()
        for request in self.requests:
            self.waiting.push(request)

    def restart(self) -> None:
        """Forget every look-up."""
        self.guard = PolicyGuard(self.policy, time.monotonic, self.memory, starvation_s=1e9)
        for request in self.requests:
            request.order_key = self.guard.order_key(request)

    def gain(self, evict: bool, parent: bytes | None = b"") -> None:
        """The cache gains a block; with `evict`, it loses one first."""
        pool = self.memory.pools[0]
        held = [pool.allocate(1)]
        while evict and pool._free:
            held.append(pool.allocate(len(pool._free)))
        if evict:
            held.append(pool.allocate(1))
        pool.publish(held[-1][0], os.urandom(32), parent)
        for units in held:
            pool.free(units)

    def choose(self) -> float:
        """Seconds until the first candidate is known."""
        ctx = PolicyContext(
            now_s=time.monotonic(),
            free_blocks=self.memory.num_free,
            budget=8192,
            block_size=BLOCK,
            prefix_caching=True,
            num_waiting=len(self.waiting),
            cache_generation=self.memory.generation,
        )
        start = time.perf_counter()
        next(self.guard.candidates(self.waiting, ctx))
        return time.perf_counter() - start


def bench_choice(make: Callable[[], SchedulerPolicy], rounds: int) -> dict[str, Any]:
    """Microseconds per choice among 128 prompts of 8192 tokens."""
    figures = {}
    for hybrid in (False, True):
        for cached in ("nothing", "half", "all"):
            choice = Choice(make(), cached, hybrid)
            cases: dict[str, Callable[[], object]] = {
                "cold": choice.restart,
                "warm": lambda: None,
                "changing": partial(choice.gain, evict=False),
                "evicting": partial(choice.gain, evict=True),
                "gaps": partial(choice.gain, evict=False, parent=None),
            }
            for case, before in cases.items():
                taken = []
                for _ in range(rounds):
                    before()
                    taken.append(choice.choose())
                figures[f"{'hybrid, ' * hybrid}{cached} cached, {case}"] = spread(taken)
    return figures


def spread(seconds: list[float]) -> dict[str, float]:
    """Minimum and median in microseconds."""
    return {"min_us": min(seconds) * 1e6, "median_us": statistics.median(seconds) * 1e6}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    registry = build_registry(entry_points=False)
    policies = {name: registry.load(registered) for name, registered in registry.policies.items()}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    report: dict[str, Any] = {"machine": machine, "load_before": os.getloadavg()[0]}
    print(f"{machine}, load {report['load_before']:.2f}; minimum and median in us")
    print(f"schedule() with {NUM_RUNNING} running and {NUM_WAITING} waiting, one admitted")
    report["waiting_10k"] = turnover = bench_turnover(policies, args.rounds)
    for name, figure in turnover.items():
        print(
            f"  {name:32s} {figure['min_us']:9.1f} {figure['median_us']:9.1f}   "
            f"{figure['ratio_of_medians']:.3f} of fcfs"
        )
    print(f"lpm, {NUM_PROMPTS} waiting prompts of {PROMPT} tokens")
    report["waiting_128"] = choices = bench_choice(policies["lpm"], args.rounds // 4)
    for name, figure in choices.items():
        print(f"  {name:32s} {figure['min_us']:9.1f} {figure['median_us']:9.1f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
