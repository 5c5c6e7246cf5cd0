"""`vtcore simulate`: scheduler policies side by side, on a trace, in virtual time and without weights.

Does not: import torch, unless a MODEL is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import fields

from vtcore.cli.engine_flags import add_engine_flags, given_from_args, print_notes
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.terminal import say
from vtcore.cli.workload_flags import add_workload_flags, parse_shares, workload_from_args
from vtcore.config.text_values import parse_mapping
from vtcore.errors import ConfigError, HostError, UsageError

if TYPE_CHECKING:
    from vtcore.config.layers import GivenOptions
    from vtcore.simulation.cost_model import CostModel
    from vtcore.simulation.geometry import Geometry
    from vtcore.simulation.simulate import NamedPolicy, PolicyRun
    from vtcore.simulation.trace import TraceRequest

STDIO = "-"
_NO_PART: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "tokenizer",
            "skip_tokenizer_init",
            "served_model_name",
            "chat_template",
            "default_chat_template_kwargs",
            "generation_config",
            "override_generation_config",
        ),
        "there is no text and no sampling",
    ),
    "policy_time_limit_ms": "real time plays no part",
    "scheduling_policy": "--policy names the policies to compare",
}
"""Engine flag that a simulation has no use for -> why. In a file of options they do no harm."""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="compare scheduler policies on a trace, without weights",
        description="Replay requests through the real scheduler, pools and policies, in virtual time.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="whose pools are simulated; config.json is enough. Default: a plain decoder",
    )
    add = parser.add_argument_group("simulation").add_argument
    add("--policy", metavar="NAME,...", help="installed policies to compare; default fcfs")
    add(
        "--tenant-weights",
        metavar="NAME=WEIGHT,...",
        type=parse_shares,
        help="what each tenant is due, for the fairness index (default 1 each)",
    )
    add("--depth", type=int, choices=(1, 2), default=1, help="steps in flight (default 1)")
    add("--json", metavar="FILE", help="write the report; '-' prints it instead of the table")
    add("--plot", metavar="FILE.png", help="draw the distributions (needs vtcore[plot])")
    shape = parser.add_argument_group(
        "plain decoder", "Without MODEL: what --kv-cache-memory-bytes is divided by, beside --dtype."
    ).add_argument
    shape("--num-layers", metavar="N", type=int, help="layers (default 32)")
    shape("--num-kv-heads", metavar="N", type=int, help="key/value heads of each (default 8)")
    shape("--head-dim", metavar="N", type=int, help="width of a head (default 128)")
    cost = parser.add_argument_group("step times").add_argument
    cost(
        "--cost",
        metavar="JSON",
        action="append",
        help='seconds: {"fixed_s": 0.005, "per_prefill_token_s": 3e-5, "per_decode_row_s": 2e-5, '
        '"per_context_token_s": 4e-8, "host_s": 0}; what is left out is assumed',
    )
    cost("--cost-file", metavar="FILE", help="the same from a JSON file; --cost wins key by key")
    cost(
        "--measure",
        action="store_true",
        help="fit them to real steps of MODEL on this machine first; the variable OMP_NUM_THREADS sets "
        "torch's threads where other processes hold cores",
    )
    cost("--write-cost", metavar="FILE", help="save them for --cost-file")
    add_workload_flags(parser)
    add_engine_flags(parser)


def needs_stdout(args: argparse.Namespace) -> bool:
    """Not where a file takes the report."""
    return args.json in (None, STDIO)


def run(args: argparse.Namespace) -> int:
    """Make the requests, run each policy, report."""
    _refuse_what_plays_no_part(args)
    given = given_from_args(args)
    print_notes(given)

    from vtcore.simulation.cost_model import write_cost_model
    from vtcore.simulation.plot import check_can_plot, plot
    from vtcore.simulation.report import build_report, report_text, table
    from vtcore.simulation.summary import summarize
    from vtcore.simulation.trace_file import write_trace
    from vtcore.simulation.whole_file import write_whole

    if args.policy is not None:
        # The policies are named by another flag here than elsewhere; errors say which.
        args.typed_flags["scheduling_policy"] = "--policy"
    if args.plot is not None:
        check_can_plot(args.plot)
    _check_places(args)
    with _interruptible("the requests were made"):
        requests, about = _requests(args, given)
    weights = _weights(args, requests)
    configs = _policy_configs(args, given)
    with others_print_to_stderr():
        geometry = _geometry(args, given)
        policies = _prepare(geometry, configs, requests)
        with _interruptible("step times were found"):
            cost = _cost(args, given)
        if args.write_cost is not None:
            with _writing("--write-cost"):
                write_cost_model(cost, args.write_cost)
        if args.write_trace is not None:
            with _writing("--write-trace"):
                write_trace(requests, args.write_trace)
        runs = _run_all(geometry, policies, requests, cost, args.depth)
    report = build_report(
        geometry,
        cost,
        about,
        args.depth,
        [{**summarize(run, weights), "policy_config": dict(configs[run.name])} for run in runs],
    )
    print(report_text(report).rstrip("\n") if args.json == STDIO else table(report))
    if args.json not in (None, STDIO):
        with _writing("--json"):
            write_whole(args.json, [report_text(report).encode()])
    if args.plot is not None:
        with _writing("--plot"):
            plot(runs, report, args.plot)
    return 0


def _refuse_what_plays_no_part(args: argparse.Namespace) -> None:
    given = [name for name in _NO_PART if getattr(args, name, None) is not None]
    if given:
        raise UsageError(
            *(
                f"{args.typed_flags[name]} plays no part in a simulation: {_NO_PART[name]}; leave it out"
                for name in given
            )
        )


def _check_places(args: argparse.Namespace) -> None:
    """A long simulation must not end in a file that cannot be written."""
    from vtcore.simulation.whole_file import check_place

    for name in ("write_trace", "write_cost", "json", "plot"):
        path = getattr(args, name)
        if path is not None and (name, path) != ("json", STDIO):
            with _writing("--" + name.replace("_", "-")):
                check_place(path)


def _requests(args: argparse.Namespace, given: GivenOptions) -> tuple[Sequence[TraceRequest], dict[str, Any]]:
    """The trace, and what the report says of it."""
    from vtcore.simulation.trace_file import name_of, read_trace
    from vtcore.simulation.workloads import generate_trace

    workload = workload_from_args(args, given.options.seed or 0)
    if workload is None:
        requests = read_trace(args.trace)
        return requests, {
            "about": f"{len(requests)} requests of {name_of(args.trace)}",
            "num_requests": len(requests),
        }
    requests = generate_trace(workload)
    about = f"{len(requests)} {workload.kind} requests, {workload.rate:g}/s, seed {workload.seed}"
    return requests, {"about": about, "num_requests": len(requests)}


def _weights(args: argparse.Namespace, requests: Sequence[TraceRequest]) -> Mapping[str, float]:
    weights: Mapping[str, float] = args.tenant_weights or {}
    unknown = sorted(set(weights) - {request.tenant for request in requests})
    if unknown:
        raise UsageError(f"--tenant-weights: no request is of tenant {unknown[0]!r}; leave it out")
    return weights


def _policy_configs(args: argparse.Namespace, given: GivenOptions) -> dict[str, Mapping[str, Any]]:
    """Policy -> its own settings."""
    from vtcore.config.resolve import DEFAULT_POLICY
    from vtcore.config.text_values import parse_texts

    config = given.options.policy_config or {}
    try:
        names = parse_texts(args.policy) if args.policy is not None else ()
    except ValueError as error:
        raise UsageError(f"--policy: {error}") from None
    names = names or (given.options.scheduling_policy or DEFAULT_POLICY,)
    if len(names) == 1:
        return {names[0]: config}
    form = f'for several policies write {{"{names[0]}": {{...}}, "{names[1]}": {{...}}}}'
    problems = []
    for name, value in config.items():
        if name not in names:
            problems.append(f"$.policy_config.{name}: no policy of the comparison has this name; {form}")
        elif not isinstance(value, Mapping):
            problems.append(f"$.policy_config.{name}: it is no JSON object; {form}")
    if problems:
        raise ConfigError(*problems)
    return {name: config.get(name, {}) for name in names}


def _geometry(args: argparse.Namespace, given: GivenOptions) -> Geometry:
    from vtcore.simulation.geometry import DecoderShape, plan_model, plan_plain_decoder

    names = [one.name for one in fields(DecoderShape)]
    shape = {name: value for name in names if (value := getattr(args, name)) is not None}
    flags = ["--" + name.replace("_", "-") for name in shape]
    if given.options.model is not None:
        if flags:
            raise UsageError(f"{flags[0]} is for a simulation without MODEL, whose shape its config says")
        return plan_model(given.options, given.sources, given.environment, args.depth)
    wrong = [
        f"--{name.replace('_', '-')}: {value} is below 1; raise it"
        for name, value in shape.items()
        if value < 1
    ]
    if wrong:
        raise UsageError(*wrong)
    return plan_plain_decoder(
        given.options, given.sources, given.environment, DecoderShape(**shape), args.depth
    )


def _prepare(
    geometry: Geometry, configs: Mapping[str, Mapping[str, Any]], requests: Sequence[TraceRequest]
) -> tuple[NamedPolicy, ...]:
    from vtcore.simulation.simulate import prepare_policies
    from vtcore.simulation.trace import check_trace_fits

    policies = prepare_policies(geometry, configs, requests)
    check_trace_fits(requests, geometry.plan.max_model_len, geometry.vocab_size)
    return policies


def _cost(args: argparse.Namespace, given: GivenOptions) -> CostModel:
    from vtcore.simulation.cost_model import cost_model_from, read_cost_model

    data: dict[str, Any] = {}
    source = "as given"
    if args.measure:
        if args.cost is not None or args.cost_file is not None:
            raise UsageError("--measure and --cost or --cost-file exclude each other; leave one out")
        if given.options.model is None:
            raise UsageError("--measure needs a MODEL, whose steps are measured; give one, or --cost")
        from vtcore.simulation.measure import measure_cost_model

        return measure_cost_model(given)
    if args.cost_file is not None:
        data = read_cost_model(args.cost_file)
        source = f"of {args.cost_file}"
    for text in args.cost or ():
        try:
            data |= parse_mapping(text)
        except ValueError as error:
            raise UsageError(f"--cost: {error}") from None
    return cost_model_from(data, source)


def _run_all(
    geometry: Geometry,
    policies: Sequence[NamedPolicy],
    requests: Sequence[TraceRequest],
    cost: CostModel,
    depth: int,
) -> list[PolicyRun]:
    from vtcore.simulation.simulate import simulate

    runs = []
    for policy in policies:
        start = time.monotonic()
        with _interruptible(f"{policy.name} ran"):
            runs.append(simulate(geometry, policy, requests, cost, depth=depth))
        say(f"{policy.name}: {len(requests)} requests in {time.monotonic() - start:.1f} s")
    return runs


@contextmanager
def _interruptible(doing: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted while {doing}; no report is written")
        raise


@contextmanager
def _writing(flag: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {flag} is not written")
        raise
    except OSError as error:
        raise HostError(
            f"{flag}: {error.filename} cannot be written: {error.strerror or error}; choose another place"
        ) from error
