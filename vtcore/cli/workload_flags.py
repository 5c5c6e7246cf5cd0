"""Flags of `vtcore simulate` that say which requests come: a trace file, or a workload to generate.

Does not: generate or read anything.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

from vtcore.config.shown import shown
from vtcore.config.text_values import parse_int
from vtcore.errors import UsageError
from vtcore.simulation.workloads import WORKLOADS, Lengths, Workload

_MAX_REQUESTS = 10_000_000
_MAX_TOKENS = 10_000_000
_MAX_SIGMA = 4.0
_MAX_SHARE = 1e9
_ONLY_FOR: Mapping[str, str] = {
    "turns": "multi-turn",
    "think_s": "multi-turn",
    "prefix_groups": "shared-prefix",
    "prefix_tokens": "shared-prefix",
    "burst_size": "bursty",
}
"""Flag -> the one kind of workload that it is for."""
_SHARED = ("requests", "rate", "prompt_tokens", "output_tokens", "tenants", "priorities")
_DEFAULTS: Mapping[str, Any] = {
    "requests": 1000,
    "rate": 2.0,
    "prompt_tokens": Lengths(mean=512.0, sigma=0.7),
    "output_tokens": Lengths(mean=128.0, sigma=0.7),
    "tenants": {},
    "priorities": {},
}


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--trace` and what describes a generated one."""
    group = parser.add_argument_group(
        "requests",
        "From a file, or generated with the seed of --seed. LENGTH is N, MIN-MAX (uniform) or MEAN:SIGMA "
        "(log-normal, SIGMA of the logarithm).",
    )
    add = group.add_argument
    add("--trace", metavar="FILE", help="JSON lines, one request each (docs/howto/simulate.md); '-' is stdin")
    add("--workload", metavar="KIND", choices=tuple(WORKLOADS), help=f"generate: {', '.join(WORKLOADS)}")
    add("--write-trace", metavar="FILE", help="save what was generated")
    add("--requests", metavar="N", type=_count(_MAX_REQUESTS), help="how many (default 1000)")
    add("--rate", metavar="R", type=_positive, help="requests per second on average (default 2)")
    add("--prompt-tokens", metavar="LENGTH", type=_lengths, help="of each prompt (default 512:0.7)")
    add("--output-tokens", metavar="LENGTH", type=_lengths, help="of each answer (default 128:0.7)")
    add("--tenants", metavar="NAME=SHARE,...", type=_shares, help="who sends which share of the requests")
    add("--priorities", metavar="N=SHARE,...", type=_priorities, help="which share has which priority")
    add("--turns", metavar="N", type=_count(1000), help="multi-turn: requests of a conversation (default 4)")
    add(
        "--think-s",
        metavar="S",
        type=_not_negative,
        help="multi-turn: mean seconds from an answer to the next turn (default 5)",
    )
    add(
        "--prefix-groups", metavar="N", type=_count(_MAX_REQUESTS), help="shared-prefix: how many (default 8)"
    )
    add("--prefix-tokens", metavar="N", type=_count(_MAX_TOKENS), help="shared-prefix: length (default 512)")
    add("--burst-size", metavar="N", type=_count(_MAX_REQUESTS), help="bursty: requests at once (default 16)")


def workload_from_args(args: argparse.Namespace, seed: int) -> Workload | None:
    """What is to be generated; None when a trace is to be read.

    Raises:
        UsageError: Both or neither are asked for, or a flag goes with another kind.
    """
    if (args.trace is None) == (args.workload is None):
        raise UsageError("give either --trace FILE or --workload KIND (see vtcore simulate --help)")
    given = {name: value for name in (*_SHARED, *_ONLY_FOR) if (value := getattr(args, name)) is not None}
    if args.trace is not None:
        flags = [_flag(name) for name in given] + ["--write-trace"] * (args.write_trace is not None)
        if flags:
            raise UsageError(f"{', '.join(flags)} goes with --workload, not with --trace; leave it out")
        return None
    wrong = [name for name in given if _ONLY_FOR.get(name, args.workload) != args.workload]
    if wrong:
        raise UsageError(
            *(f"{_flag(name)} goes with --workload {_ONLY_FOR[name]} only; leave it out" for name in wrong)
        )
    values = {**_DEFAULTS, **given}
    return Workload(
        kind=args.workload,
        num_requests=values.pop("requests"),
        prompt=values.pop("prompt_tokens"),
        output=values.pop("output_tokens"),
        seed=seed,
        **values,
    )


def parse_shares(text: str) -> dict[str, float]:
    """Read NAME=NUMBER,...; every number is above 0.

    Raises:
        ArgumentTypeError: Another text, or a name twice.
    """
    shares: dict[str, float] = {}
    for item in text.split(","):
        name, equals, share = item.strip().rpartition("=")
        if not equals or name in shares:
            raise argparse.ArgumentTypeError(f"{shown(item)} is no NAME=NUMBER, or names a name twice")
        shares[name] = _positive(share)
    return shares


_shares = parse_shares


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _priorities(text: str) -> dict[int, float]:
    try:
        return {parse_int(name): share for name, share in parse_shares(text).items()}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number from {low:g} to {high:g}")
    return value


def _positive(text: str) -> float:
    return _number(text, 1e-9, _MAX_SHARE)


def _not_negative(text: str) -> float:
    return _number(text, 0.0, _MAX_SHARE)


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


def _lengths(text: str) -> Lengths:
    count = _count(_MAX_TOKENS)
    mean, colon, sigma = text.partition(":")
    if colon:
        return Lengths(mean=_number(mean, 1, _MAX_TOKENS), sigma=_number(sigma, 0, _MAX_SIGMA))
    low, dash, high = text.partition("-")
    lengths = Lengths(low=count(low), high=count(high if dash else low))
    if lengths.low > lengths.high:
        raise argparse.ArgumentTypeError(f"{shown(text)} has MIN above MAX; exchange them")
    return lengths
