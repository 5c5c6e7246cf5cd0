"""CPU figures: generation against transformers, and the host's own costs, interleaved in one run.

Does not: assert anything; a shared machine's absolute times mean little, ratios within one run mean more.

Usage: python bench/cpu.py [--size small] [--repeat 5] [--json OUT] [--only generate|host]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vtcore import LLM, SamplingParams
from vtcore.cli.make_checkpoint import make_checkpoint
from vtcore.interfaces.batch import EngineRequest, RowParams, RowResult, StepResult
from vtcore.kv_cache.block_hash import extend_hashes, root_hash
from vtcore.kv_cache.planner import PlanLimits, plan_memory
from vtcore.kv_cache.pool import UnitPool
from vtcore.kv_cache.request_memory import RequestMemory
from vtcore.kv_cache.specs import FullAttentionSpec, RecurrentStateSpec
from vtcore.scheduling.commit import commit
from vtcore.scheduling.limits import SchedulerLimits
from vtcore.scheduling.policies.fcfs import FcfsPolicy
from vtcore.scheduling.policy_guard import PolicyGuard
from vtcore.scheduling.scheduler import Scheduler

NUM_IN, NUM_OUT, NUM_THREADS = 128, 64, 2
MIXED = (16, 48, 80, 112, 128, 160, 192, 224)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def prompts_of(lengths: tuple[int, ...], vocab_size: int) -> list[list[int]]:
    """Random prompts; equal for both engines."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def bench_generate(model_dir: Path, repeat: int) -> dict[str, Any]:
    """Tokens per second of both engines for each batch, their turns alternating."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(NUM_THREADS)
    hf = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    hf.eval()
    llm = LLM(str(model_dir), dtype="float32", max_model_len=512)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUT, ignore_eos=True)
    vocab_size = llm.engine.loaded.arch.dims.vocab_size
    figures: dict[str, Any] = {}
    for name, lengths in {
        "batch 1": (NUM_IN,),
        "batch 8": (NUM_IN,) * 8,
        "batch 8, mixed lengths": MIXED,
    }.items():
        prompts = prompts_of(lengths, vocab_size)
        ids, mask = _left_padded(prompts)

        def run_hf(ids: torch.Tensor = ids, mask: torch.Tensor = mask) -> None:
            with torch.inference_mode():
                hf.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=NUM_OUT,
                    min_new_tokens=NUM_OUT,
                    do_sample=False,
                    pad_token_id=0,
                )

        def run_vtcore(prompts: list[list[int]] = prompts) -> None:
            llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)

        run_hf()
        run_vtcore()
        pairs = [(timed(run_hf), timed(run_vtcore)) for _ in range(repeat)]
        tokens = NUM_OUT * len(prompts)
        figures[name] = {
            "transformers_tokens_per_s": tokens / min(p[0] for p in pairs),
            "vtcore_tokens_per_s": tokens / min(p[1] for p in pairs),
            "ratio_of_minima": min(p[0] for p in pairs) / min(p[1] for p in pairs),
            "ratio_median": statistics.median(p[0] / p[1] for p in pairs),
        }
        print(f"{name:24s} {_line(figures[name])}", flush=True)
    llm.close()
    return figures


def _left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def _line(figure: dict[str, float]) -> str:
    return (
        f"transformers {figure['transformers_tokens_per_s']:7.1f} tok/s, vtcore "
        f"{figure['vtcore_tokens_per_s']:7.1f} tok/s, ratio {figure['ratio_of_minima']:.2f} of minima, "
        f"{figure['ratio_median']:.2f} median"
    )


def bench_host(repeat: int) -> dict[str, Any]:
    """Host costs in microseconds, minimum over `repeat` rounds."""
    figures: dict[str, Any] = {}
    scheduler = _full_scheduler(num_running=256, num_waiting=10_000)
    schedules, commits = [], []
    for _ in range(max(repeat, 5) * 20):
        frame = None

        def run_schedule() -> None:
            nonlocal frame
            frame = scheduler.schedule()

        schedules.append(timed(run_schedule))
        assert frame is not None
        assert len(frame.batch.uniform) == 256
        result = _result(frame)
        commits.append(timed(lambda frame=frame, result=result: commit(scheduler, frame, result)))
    figures["schedule_256_running_10k_waiting_us"] = _spread(schedules)
    figures["commit_256_us"] = _spread(commits)
    tokens = list(range(8192))
    root = root_hash()
    pool = UnitPool(300)
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, 32, root)
    for unit, block_hash in zip(pool.allocate(256), hashes, strict=True):
        pool.publish(unit, block_hash)

    def hash_and_match() -> None:
        own: list[bytes] = []
        extend_hashes(own, tokens, 32, root)
        assert all(pool.find(h) is not None for h in own)

    figures["hash_and_match_8k_us"] = _spread([timed(hash_and_match) for _ in range(max(repeat, 5) * 10)])
    for name, spread in figures.items():
        print(f"{name:40s} min {spread['min']:8.1f}  median {spread['median']:8.1f} us", flush=True)
    return figures


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"min": min(seconds) * 1e6, "median": statistics.median(seconds) * 1e6}


def _full_scheduler(num_running: int, num_waiting: int) -> Scheduler:
    specs = (
        FullAttentionSpec(layers=("a",), block_size=32, num_kv_heads=1, head_dim=8, dtype="float32"),
        RecurrentStateSpec(layers=("s",), block_size=32, state=(("s", (4,), "float32"),)),
    )
    plan = plan_memory(
        specs,
        PlanLimits(
            block_size=32,
            num_blocks=num_running * 64,
            max_num_seqs=num_running,
            max_model_len=2048,
            max_model_len_pinned=True,
            max_query=8192,
        ),
    )
    memory = RequestMemory(plan, False, root_hash(), 0)
    limits = SchedulerLimits(
        max_num_seqs=num_running, max_num_batched_tokens=8192, max_model_len=plan.max_model_len
    )
    scheduler = Scheduler(limits, memory, PolicyGuard(FcfsPolicy(), time.monotonic, memory), time.monotonic)
    for index in range(num_running + num_waiting):
        prompt = tuple(range(20 + index % 13))
        scheduler.add(
            EngineRequest(id=str(index), prompt_token_ids=prompt, params=RowParams(), max_tokens=1800)
        )
    while len(scheduler.running) < num_running or not all(scheduler.rows.uniform[1:]):
        frame = scheduler.schedule()
        assert frame is not None
        commit(scheduler, frame, _result(frame))
    return scheduler


def _result(frame: Any) -> StepResult:
    rows = []
    for index, request in enumerate(frame.requests):
        tokens = (1,) if frame.emits[index] else ()
        rows.append(RowResult(int(frame.rows[index]), request.computed, tokens))
    return StepResult(frame.step, tuple(rows))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="small")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("generate", "host"))
    args = parser.parse_args()
    load = os.getloadavg()[0]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    report: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "load_before": load}
    print(f"{machine}, torch {torch.__version__}, load {load:.2f}")
    if args.only != "host":
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / args.size
            make_checkpoint("qwen3_5_dense", args.size, directory)
            report["generate"] = bench_generate(directory, args.repeat)
    if args.only != "generate":
        report["host"] = bench_host(args.repeat)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
