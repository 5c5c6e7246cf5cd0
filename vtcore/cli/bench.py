"""`vtcore bench`: latency, throughput and kernels of a model here, each figure beside its bound.

Does not: measure anything itself; `vtcore.benchmark` does.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vtcore.benchmark.figures import Progress
from vtcore.cli.engine_flags import add_engine_flags, given_from_args, print_notes
from vtcore.cli.interruption import interrupted_code, say_interrupted
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.terminal import say
from vtcore.config.shown import shown
from vtcore.config.text_values import parse_int
from vtcore.errors import HostError, UsageError

if TYPE_CHECKING:
    from vtcore.benchmark.ceilings import MeasuredCeilings
    from vtcore.benchmark.groups import GroupCount
    from vtcore.benchmark.subject import Needs, Subject
    from vtcore.config.layers import GivenOptions

STDIO = "-"
ACTIONS = ("latency", "throughput", "kernels")
_MAX_TOKENS = 10_000_000
_MAX_BATCH = 65_536
ROUTINGS = ("model", "skewed")
_CONFIG = "config.json"
_MODEL_HELP = "directory, checkpoint source or Hub id; with --load-format dummy a config.json is enough"


def add_parser(subparsers: Any) -> None:
    """Add the command and its three actions."""
    parser = subparsers.add_parser("bench", help="measure a model on this machine, beside what is possible")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    latency = actions.add_parser(
        "latency",
        help="time to a first token, decode and end-to-end rates, start, host time",
        description="Random prompts, prefix caching off; every cell is of the shortest of its runs.",
    )
    add = _add_shared(latency)
    add("--prompt-tokens", metavar="N", type=_count(_MAX_TOKENS), default=1024, help="default 1024")
    add("--output-tokens", metavar="N", type=_count(_MAX_TOKENS), default=129, help="at least 2, default 129")
    add(
        "--ttft-tokens",
        metavar="N,...",
        type=_counts(_MAX_TOKENS),
        default=(1024, 8192),
        help="prompts whose time to a first token is measured; default 1024,8192",
    )
    add(
        "--batch-sizes",
        metavar="N,...",
        type=_counts(_MAX_BATCH),
        default=(1, 32, 256),
        help="requests at once; default 1,32,256",
    )
    add("--repeats", metavar="N", type=_count(1000), default=5, help="runs of each cell at most; default 5")
    add(
        "--cell-seconds",
        metavar="S",
        type=_not_negative,
        default=20.0,
        help="no cell is run again once it has taken so long; default 20",
    )
    add("--temperature", metavar="X", type=_not_negative, default=0.0, help="default 0, greedy")
    add_engine_flags(latency)
    throughput = actions.add_parser(
        "throughput",
        help="output tokens per second of a closed loop",
        description="So many clients, each with one request at a time, beside an ideal schedule.",
    )
    add = _add_shared(throughput)
    add("--prompt-tokens", metavar="N", type=_count(_MAX_TOKENS), default=1024, help="default 1024")
    add("--output-tokens", metavar="N", type=_count(_MAX_TOKENS), default=128, help="default 128")
    add(
        "--clients",
        metavar="N,...",
        type=_counts(_MAX_BATCH),
        default=(1, 4, 16, 64, 256),
        help="requests at once; default 1,4,16,64,256",
    )
    add(
        "--requests",
        metavar="N",
        type=_count(_MAX_TOKENS),
        help="in all; default: twice the clients, at least 4",
    )
    add("--repeats", metavar="N", type=_count(1000), default=1, help="runs of each cell; default 1")
    add("--temperature", metavar="X", type=_not_negative, default=0.0, help="default 0, greedy")
    add_engine_flags(throughput)
    kernels = actions.add_parser(
        "kernels",
        help="where the time of a step goes, kernel by kernel",
        description="Profile decode steps and prompts: kernels on a GPU, torch's operations on a CPU.",
    )
    add = _add_shared(kernels)
    add("--context-tokens", metavar="N", type=_count(_MAX_TOKENS), default=1024, help="of each; default 1024")
    add(
        "--batch-sizes",
        metavar="N,...",
        type=_counts(_MAX_BATCH),
        default=(1, 256),
        help="rows; default 1,256",
    )
    add(
        "--prefill-tokens",
        metavar="N,...",
        type=_counts(_MAX_TOKENS),
        default=(1024,),
        help="prompts whose computing is looked at too; default 1024",
    )
    add("--steps", metavar="N", type=_count(1000), default=16, help="profiled steps; default 16")
    add_engine_flags(kernels)


def _add_shared(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    parser.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    add = parser.add_argument_group("benchmark").add_argument
    add("--output", metavar="FILE", help="write the report as JSON; '-' prints it instead of the table")
    add(
        "--routing",
        choices=ROUTINGS,
        default="model",
        help="of models with experts: as the weights say, or skewed, expert e as if 1/(1+e) as likely",
    )
    add("--commit", metavar="TEXT", help="the code's version in the report; default: as git says")
    return add


def needs_stdout(args: argparse.Namespace) -> bool:
    """Not where a file takes the report."""
    return args.output in (None, STDIO)


def run(args: argparse.Namespace) -> int:
    """Load, measure, report."""
    if args.model is not None and os.path.basename(args.model) == _CONFIG and os.path.isfile(args.model):
        args.model = os.path.dirname(args.model) or os.curdir
    given = given_from_args(args)
    print_notes(given)
    _check_sizes(args)
    if args.output not in (None, STDIO):
        _check_place(args.output)
    progress = Progress(say, say_interrupted, _num_cells(args))
    measure = {"latency": _latency, "throughput": _throughput, "kernels": _kernels}[args.action]
    try:
        with others_print_to_stderr():
            report = measure(args, given, progress)
    except KeyboardInterrupt as error:
        progress.interrupt(error)
        return interrupted_code()
    if progress.is_interrupted:
        report["interrupted"] = {"cells_measured": progress.done, "cells": progress.total}
    _show(args, report, progress)
    return interrupted_code() if progress.is_interrupted else 0


def _check_sizes(args: argparse.Namespace) -> None:
    if args.action == "latency" and args.output_tokens < 2:
        raise UsageError("--output-tokens: 1 is below 2, and a rate needs a second token; raise it")
    if args.action == "throughput" and (clients := max(args.clients)) > (args.requests or clients):
        raise UsageError(
            f"--clients {clients} is above --requests {args.requests}, so that some would have no request; "
            f"lower --clients to {args.requests}, or raise --requests to {clients}"
        )


def _num_cells(args: argparse.Namespace) -> int:
    if args.action == "latency":
        return len(args.ttft_tokens) + 2 * len(args.batch_sizes)
    return len(args.clients if args.action == "throughput" else args.batch_sizes + args.prefill_tokens)


def _show(args: argparse.Namespace, report: dict[str, Any], progress: Progress) -> None:
    from vtcore.benchmark.report import report_text, table
    from vtcore.simulation.whole_file import write_whole

    if args.output == STDIO:
        print(report_text(report).rstrip("\n"))
    else:
        print(table(report))
    if args.output in (None, STDIO):
        return
    path = args.output + (".partial" if progress.is_interrupted else "")
    with _writing():
        write_whole(path, [report_text(report).encode()])
    if progress.is_interrupted:
        say(f"what was measured is in {path}")


def _latency(args: argparse.Namespace, given: GivenOptions, progress: Progress) -> dict[str, Any]:
    from vtcore.benchmark.groups import count_groups, with_routing
    from vtcore.benchmark.latency import LatencyPlan, latency_figures, measure_latency
    from vtcore.benchmark.report import cells_json, start_json

    plan = LatencyPlan(
        prompt_tokens=args.prompt_tokens,
        ttft_tokens=args.ttft_tokens,
        output_tokens=args.output_tokens,
        batches=args.batch_sizes,
        temperature=args.temperature,
        repeats=args.repeats,
        cell_seconds=args.cell_seconds,
    )
    given = with_routing(given, args.routing)
    groups: dict[int, GroupCount] = {}
    with _subject(args, progress, given, plan.needs) as (subject, finish):
        measured = measure_latency(subject, plan, progress)
        start, ops = start_json(subject), subject.engine.loaded.arch.ops()
        about, ceilings, compiles = finish()
        with progress.interruptible():
            batches = () if progress.is_interrupted else plan.batches
            groups = count_groups(given, ops, args.routing, batches, say)
        distinct = {batch: one.distinct for batch, one in groups.items()}
        figures = latency_figures(subject, plan, measured, ceilings.ceilings, distinct)
    results = {
        "prompt_tokens": plan.prompt_tokens,
        "output_tokens": plan.output_tokens,
        "cells": cells_json(figures),
        "routing": args.routing,
        "groups": {str(batch): one.as_json() for batch, one in groups.items()},
        "start": start,
        "host": measured.host,
        "compiles_after_warm_up": compiles,
    }
    return _report(args, about, ceilings, results)


def _throughput(args: argparse.Namespace, given: GivenOptions, progress: Progress) -> dict[str, Any]:
    from vtcore.benchmark.groups import with_routing
    from vtcore.benchmark.report import cells_json
    from vtcore.benchmark.throughput import ThroughputPlan, measure_throughput, throughput_figures

    plan = ThroughputPlan(
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        clients=args.clients,
        requests=args.requests,
        temperature=args.temperature,
        repeats=args.repeats,
    )
    with _subject(args, progress, with_routing(given, args.routing), plan.needs) as (subject, finish):
        seconds = measure_throughput(subject, plan, progress)
        about, ceilings, compiles = finish()
        figures = throughput_figures(subject, plan, seconds, ceilings.ceilings)
    results = {
        "prompt_tokens": plan.prompt_tokens,
        "output_tokens": plan.output_tokens,
        "routing": args.routing,
        "cells": cells_json(figures),
        "compiles_after_warm_up": compiles,
    }
    return _report(args, about, ceilings, results)


def _kernels(args: argparse.Namespace, given: GivenOptions, progress: Progress) -> dict[str, Any]:
    from vtcore.benchmark.groups import with_routing
    from vtcore.benchmark.kernels import KernelPlan, kernel_ops, profile_steps, roof_us
    from vtcore.benchmark.subject import TOKEN_BUDGET

    plan = KernelPlan(
        context=args.context_tokens, batches=args.batch_sizes, prefills=args.prefill_tokens, steps=args.steps
    )
    given = with_routing(given, args.routing)
    budget = given.options.max_num_batched_tokens or TOKEN_BUDGET
    with _subject(args, progress, given, plan.needs(budget)) as (subject, finish):
        planned = subject.plan_again() if subject.is_gpu else None
        profiles = profile_steps(subject, plan, planned, progress)
        about, ceilings, compiles = finish()
        steps = {
            name: one.as_json(roof_us(subject, plan, one, ceilings.ceilings), kernel_ops(sys.modules))
            for name, one in profiles.items()
        }
    results = {
        "context_tokens": plan.context,
        "routing": args.routing,
        "steps": steps,
        "compiles_after_warm_up": compiles,
    }
    return _report(args, about, ceilings, results)


Finish = Callable[[], "tuple[dict[str, Any], MeasuredCeilings, int]"]
"""Ends the measured part: what the engine was, the ceilings, kernels compiled since the start."""


@contextmanager
def _subject(
    args: argparse.Namespace, progress: Progress, given: GivenOptions, needs: Needs
) -> Iterator[tuple[Subject, Finish]]:
    import torch

    from vtcore.benchmark.ceilings import measure_ceilings
    from vtcore.benchmark.report import about_subject
    from vtcore.benchmark.subject import load_subject, smaller_sizes
    from vtcore.ops.compile_count import num_compiles, start_counting

    subject = load_subject(given, needs)
    if subject.is_gpu:
        start_counting()
    before = num_compiles()
    say(f"loaded {subject.start_s:.1f} s after the start of the process, on {subject.device}")
    if not subject.is_gpu and (smaller := smaller_sizes(args.action, args.typed_flags)):
        say(f"the default sizes are for a GPU; on a CPU this is quicker: {smaller}")

    def finish() -> tuple[dict[str, Any], MeasuredCeilings, int]:
        compiles = num_compiles() - before
        about = about_subject(subject)
        device, dtype = subject.device, getattr(torch, about["config"]["model.dtype"]["value"])
        # Closed first: a GPU's memory is full while an engine lives.
        subject.engine.close()
        gc.collect()
        say("measuring what the device can do ...")
        ceilings: MeasuredCeilings | None = None
        with progress.interruptible():
            ceilings = measure_ceilings(device, dtype)
        # After an interrupt once more: without ceilings there is no report.
        return about, ceilings or measure_ceilings(device, dtype), compiles

    try:
        yield subject, finish
    finally:
        subject.engine.close()


def _report(
    args: argparse.Namespace, about: dict[str, Any], ceilings: MeasuredCeilings, results: dict[str, Any]
) -> dict[str, Any]:
    from pathlib import Path

    import vtcore
    from vtcore.benchmark.machine import read_commit
    from vtcore.benchmark.report import build_report

    commit = args.commit or read_commit(Path(vtcore.__file__).parent)
    return build_report(args.action, sys.argv, commit, about, ceilings, results)


def _check_place(path: str) -> None:
    from vtcore.simulation.whole_file import check_place

    if (folder := os.path.dirname(path)) and not os.path.exists(folder):
        raise HostError(f"--output: the folder {folder} does not exist; make it or give another")
    with _writing():
        check_place(path)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(
            f"--output: {error.filename} cannot be written: {error.strerror or error}; choose another place"
        ) from error


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of at least 0")
    return value


def _count(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = parse_int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not from 1 to {most}")
        return value

    return read


def _counts(most: int) -> Callable[[str], tuple[int, ...]]:
    one = _count(most)

    def read(text: str) -> tuple[int, ...]:
        # Each once, in order: a cell has one name.
        return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return read
