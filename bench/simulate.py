"""How long `vtcore simulate` takes for each policy: 10,000 requests, minimum of several runs, load noted.

Does not: assert anything, or say anything about a model; the seconds are those of the scheduler's own code.

Usage: python bench/simulate.py [--requests 10000] [--repeat 5] [--policy fcfs,lpm] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from vtcore.config.env import read_environment
from vtcore.config.options import UserOptions
from vtcore.simulation.cost_model import CostModel
from vtcore.simulation.geometry import DecoderShape, plan_plain_decoder
from vtcore.simulation.simulate import prepare_policies, simulate
from vtcore.simulation.summary import summarize
from vtcore.simulation.workloads import Lengths, Workload, generate_trace

OPTIONS = UserOptions(max_num_seqs=64, num_blocks=4096)
"""A GPU's worth of rows, and a cache that holds them."""


def workload_of(num_requests: int) -> Workload:
    """Prompts of 512 tokens behind a prefix of as many, answers of 128, at a rate that fills the rows."""
    return Workload(
        kind="shared-prefix",
        num_requests=num_requests,
        rate=20.0,
        prompt=Lengths(mean=512.0, sigma=0.7),
        output=Lengths(mean=128.0, sigma=0.7),
        tenants={"a": 3.0, "b": 1.0},
        priorities={0: 1.0, 1: 3.0},
    )


def main() -> None:
    """Run and print one line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--policy", default="fcfs,priority,lpm")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    geometry = plan_plain_decoder(OPTIONS, {}, read_environment(), DecoderShape())
    trace = generate_trace(workload_of(args.requests))
    figures: dict[str, Any] = {"requests": args.requests, "machine": platform.machine(), "policies": {}}
    for policy in prepare_policies(geometry, {name: {} for name in args.policy.split(",")}, trace):
        walls, cpus, loads = [], [], []
        for _ in range(args.repeat):
            wall, cpu = time.perf_counter(), time.process_time()
            run = simulate(geometry, policy, trace, CostModel())
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            loads.append(os.getloadavg()[0])
        summary = summarize(run, {})
        figures["policies"][policy.name] = {
            "wall_s": min(walls),
            "cpu_s": min(cpus),
            "load": loads,
            "steps": summary["num_steps"],
            "output_tokens": summary["output_tokens"],
        }
        print(
            f"{policy.name}: {min(walls):.1f} s wall, {min(cpus):.1f} s CPU (minimum of {args.repeat}; load "
            f"{min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores), {summary['num_steps']} steps, "
            f"{summary['output_tokens']:,} tokens"
        )
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
