"""Where the time of a step goes: what the device ran in it, by name and by the op that it belongs to.

On a GPU each kernel counts, those of replayed graphs too, as CUPTI timed it; on a CPU, each of torch's
operations. Beside the times stand the bytes of what traffic.py counts.
Does not: time anything else while the profiler runs; the step's length is measured before.
"""

from __future__ import annotations

import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch.profiler import ProfilerActivity, profile

from vtcore.benchmark.figures import Progress
from vtcore.benchmark.subject import Demand, Needs, decoding_tokens, prompt_demand
from vtcore.benchmark.traffic import Traffic, counting, meta_traffic
from vtcore.execution.warm_up import null_batch

if TYPE_CHECKING:
    from vtcore.benchmark.roofline import Ceilings
    from vtcore.benchmark.subject import Subject
    from vtcore.planning import PlannedCore

_PREFILLS = 4
"""Prompts of each length that are profiled, and as many that are timed before."""
_OTHER_RUNS = "the device is busy for longer than the step takes: the two are measured in different runs"
_LIBRARIES: tuple[tuple[str, str], ...] = (
    (r"memcpy|memset", "copies"),
    (r"cudnn|fmha|flash", "library attention"),
    (r"gemm|gemv|cublas|cutlass|nvjet|splitk|aten::(mm|addmm|bmm|linear|_weight|mkldnn|matmul)", "products"),
    (r"at::native|aten::|elementwise|reduce_kernel", "torch"),
)
"""Pattern of a name that no op of ours has -> its group. Source: names that CUPTI and torch give."""


@frozen(kw_only=True)
class KernelPlan:
    """What is looked at.

    Args:
        context: Tokens of each sequence before the decode steps, >= 1.
        batches: Rows of the decode steps.
        prefills: Tokens of the prompts that are computed, each alone.
        steps: Decode steps that are profiled, and as many that are timed before, >= 1.
    """

    context: int
    batches: tuple[int, ...]
    prefills: tuple[int, ...]
    steps: int

    def needs(self, budget: int) -> Needs:
        """What the engine must hold."""
        batch = max(self.batches)

        def tokens_of(context: int) -> int:
            # Steps that are timed, profiled, and one that is counted.
            return context + decoding_tokens(batch, context, 2 * self.steps + 1, budget)

        def lower(most: int) -> str:
            context = bisect_right(range(1, self.context), most, key=tokens_of)
            if context:
                return f"lower --context-tokens to {context}"
            return "lower --context-tokens, --steps and --batch-sizes"

        tokens = tokens_of(self.context)
        who = f"--context-tokens {self.context} and {tokens - self.context} decoded after them are"
        demands = (
            Demand(who=who, tokens=tokens, lower=lower),
            *(prompt_demand("--prefill-tokens", one) for one in self.prefills),
        )
        return Needs(
            batch=batch,
            batch_tokens=tokens,
            longest=max(one.tokens for one in demands),
            demands=demands,
        )


@frozen
class KernelTime:
    """One name's share of a step.

    Args:
        calls: For each step.
        micros: For each step.
    """

    name: str
    group: str
    calls: float
    micros: float


@frozen(kw_only=True)
class StepProfile:
    """One kind of step.

    Args:
        batch: Sequences.
        tokens: Query tokens of all of them.
        step_us: From step to step, without the profiler.
        kernels: The longest first; measured in runs of their own, with the profiler.
        traffic: By kernel or operation; None until it is counted.
        is_decode: Whether each sequence has one query token, after a context.
    """

    batch: int
    tokens: int
    step_us: float
    kernels: tuple[KernelTime, ...]
    traffic: Mapping[str, Traffic] | None
    is_decode: bool

    def as_json(self, roof_us: float, ops: Mapping[str, str]) -> dict[str, Any]:
        """JSON types; shares are of the time in which the device worked.

        Args:
            roof_us: Least time of the step.
            ops: Kernel function -> its op.
        """
        busy = sum(one.micros for one in self.kernels)
        micros: dict[str, float] = {}
        for one in self.kernels:
            micros[one.group] = micros.get(one.group, 0.0) + one.micros
        groups = {
            name: {"us": round(us, 2), "share": round(us / busy, 4)}
            for name, us in sorted(micros.items(), key=lambda item: -item[1])
        }
        kernels = [
            {
                "name": one.name,
                "group": one.group,
                "calls": round(one.calls, 2),
                "us": round(one.micros, 2),
                "share": round(one.micros / busy, 4),
                **_bytes_json([found] if (found := (self.traffic or {}).get(one.name)) else []),
            }
            for one in self.kernels
        ]
        for name, group in groups.items():
            of_group = [one for key, one in (self.traffic or {}).items() if group_of(key, ops) == name]
            group |= _bytes_json(of_group)
        return {
            "batch": self.batch,
            "tokens": self.tokens,
            "step_us": round(self.step_us, 2),
            "busy_us": round(busy, 2),
            "roof_us": round(roof_us, 2),
            "groups": groups,
            "kernels": kernels,
            **({"note": _OTHER_RUNS} if busy > self.step_us else {}),
        }


def _bytes_json(found: Iterable[Traffic]) -> dict[str, int]:
    """Nothing where nothing was counted."""
    several = list(found)
    if not several:
        return {}
    return {
        "bytes": round(sum(one.num_bytes for one in several)),
        "cache_bytes": sum(one.cache_bytes for one in several),
    }


def profile_steps(
    subject: Subject, plan: KernelPlan, planned: PlannedCore | None, progress: Progress
) -> dict[str, StepProfile]:
    """Look at each batch's decode step and at each prompt; after an interrupt, what was done.

    Args:
        planned: As the engine was planned, on a GPU; None on a CPU.

    Raises:
        KeyboardInterrupt: Nothing was done.
    """
    profiles: dict[str, StepProfile] = {}
    with progress.interruptible():
        for batch in plan.batches:
            with progress.measuring([name := f"decode_b{batch}"]):
                profiles[name] = one = _decode(subject, plan, planned, batch)
            progress.say(f"batch {batch}: {one.step_us:.1f} us a decode step")
        for length in plan.prefills:
            with progress.measuring([name := f"prefill_{length}"]):
                profiles[name] = one = _prefill(subject, planned, length)
            progress.say(f"prompt of {length} tokens: {one.step_us:.1f} us")
    return profiles


def roof_us(subject: Subject, plan: KernelPlan, profiled: StepProfile, ceilings: Ceilings) -> float:
    """Least time of one of these steps."""
    if profiled.is_decode:
        context = plan.context + 2 * plan.steps
        return 1e6 * subject.work.decode_step(profiled.batch, context).seconds(ceilings)
    return 1e6 * subject.work.prefill_seconds(1, profiled.tokens, subject.budget, ceilings)


def _decode(subject: Subject, plan: KernelPlan, planned: PlannedCore | None, batch: int) -> StepProfile:
    traffic: Mapping[str, Traffic]
    with subject.decoding(batch, plan.context, 2 * plan.steps + 1) as engine:

        def steps() -> None:
            for _ in range(plan.steps):
                engine.step(final_only=True)

        step_us, kernels = _timed_and_profiled(subject, steps, plan.steps)
        if planned is None:
            with counting(subject.work, batch) as traffic:
                engine.step(final_only=True)
    if planned is not None:
        traffic = meta_traffic(planned, subject.work, null_batch(batch, 0), batch, plan.context)
    return StepProfile(
        batch=batch, tokens=batch, step_us=step_us, kernels=kernels, traffic=traffic, is_decode=True
    )


def _prefill(subject: Subject, planned: PlannedCore | None, length: int) -> StepProfile:
    """One prompt to its first token; in several steps where it is longer than the budget."""

    def prompts() -> None:
        for prompt in subject.prompts(_PREFILLS, length):
            subject.run([prompt], 1, 0.0)

    prompts()
    step_us, kernels = _timed_and_profiled(subject, prompts, _PREFILLS)
    traffic: Mapping[str, Traffic] | None = None
    if planned is None:
        with counting(subject.work, length) as traffic:
            subject.run(subject.prompts(1, length), 1, 0.0)
    elif length <= subject.budget:
        # A longer prompt's chunks see what was cached before, which no null row has.
        traffic = meta_traffic(planned, subject.work, null_batch(0, 0, [length]), 1, length)
    return StepProfile(
        batch=1, tokens=length, step_us=step_us, kernels=kernels, traffic=traffic, is_decode=False
    )


def _timed_and_profiled(
    subject: Subject, run: Callable[[], None], count: int
) -> tuple[float, tuple[KernelTime, ...]]:
    """Microseconds of each of `count` steps that `run` makes, and its kernels."""
    synchronize(subject)
    started = time.perf_counter()
    run()
    synchronize(subject)
    step_us = 1e6 * (time.perf_counter() - started) / count
    activity = ProfilerActivity.CUDA if subject.is_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:
        run()
        synchronize(subject)
    return step_us, kernel_times(profiler.key_averages(), count, subject.is_gpu, kernel_ops(sys.modules))


def synchronize(subject: Subject) -> None:
    """Wait for the device."""
    if subject.is_gpu:
        torch.cuda.synchronize()


def kernel_times(
    events: Iterable[Any], steps: int, is_gpu: bool, ops: Mapping[str, str]
) -> tuple[KernelTime, ...]:
    """Sum a profile's events by name, the longest first.

    Args:
        events: As `torch.profiler.profile.key_averages` gives them.
        steps: That were profiled.
        ops: Kernel function -> its op.
    """
    found = []
    for event in events:
        if is_gpu:
            is_device = event.device_type.name == "CUDA"
            micros = event.self_device_time_total if is_device else 0.0
        else:
            micros = event.self_cpu_time_total if event.key.startswith("aten::") else 0.0
        if micros > 0:
            name = str(event.key)
            found.append(KernelTime(name, group_of(name, ops), event.count / steps, micros / steps))
    return tuple(sorted(found, key=lambda one: -one.micros))


def group_of(name: str, ops: Mapping[str, str]) -> str:
    """The op of a kernel, or what kind of library kernel it is.

    Args:
        ops: Kernel function -> its op.
    """
    if name in ops:
        return ops[name]
    return next((group for pattern, group in _LIBRARIES if re.search(pattern, name.lower())), "other")


def kernel_ops(modules: Mapping[str, Any]) -> dict[str, str]:
    """Name of each Triton function that is loaded -> the op in whose folder it stands.

    Args:
        modules: As `sys.modules`.
    """
    return dict(_kernels(modules))


def _kernels(modules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for module_name, module in list(modules.items()):
        _, is_op, rest = module_name.partition(".ops.")
        if not is_op or module is None:
            continue
        for value in list(vars(module).values()):
            # A jitted function holds the Python one; a plain function, and data, have no such attribute.
            inner = getattr(value, "fn", None)
            own = getattr(inner, "__module__", None)
            if callable(inner) and own == module_name:
                yield inner.__name__, rest.split(".")[0]
