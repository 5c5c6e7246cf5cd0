"""`vtcore warmup`: compile a model's kernels into the cache, without weights, and with --target without a
GPU.

`--json` prints one object: `built`, `cached`, `seconds`, `directory`, `target` (null for this machine's GPU).
Does not: capture graphs or measure; the engine's own start does.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from attrs import evolve

from vtcore.cli.engine_flags import add_engine_flags, given_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError
from vtcore.host.preflight import prepare_kernel_cache

_DEVICE = "cuda"


def add_parser(subparsers: Any) -> None:
    """Add `warmup`."""
    parser = subparsers.add_parser(
        "warmup",
        help="compile a model's kernels before its first start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="directory, checkpoint source or Hub id; config.json is enough"
    )
    parser.add_argument("--target", help="GPU to compile for, as sm_90; default: this machine's")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compile everything that serving with these options can launch; returns the exit code."""
    from vtcore.gpu_start import record_launches
    from vtcore.loader import plan_core
    from vtcore.ops.compile_target import check_target
    from vtcore.ops.compiled import compile_launches

    if args.target is not None:
        check_target(args.target)
    given = given_from_args(args)
    options = _for_gpu(given.options)
    with others_print_to_stderr():
        planned = plan_core(options, sources=given.sources, environment=given.environment)
        if args.target is None:
            _check_here()
        prepare_kernel_cache(given.environment.cache_dir)
        report = compile_launches(record_launches(planned), target=args.target)
    found = {
        "built": report.num_built,
        "cached": report.num_cached,
        "seconds": round(report.elapsed_s, 1),
        "directory": report.directory,
        "target": args.target,
    }
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['built']} kernels compiled and {found['cached']} found in {found['directory']}, in "
            f"{found['seconds']} s, for {args.target or 'this GPU'}"
        )
    return 0


def _for_gpu(options: UserOptions) -> UserOptions:
    """The options of a GPU start that reads no weights."""
    if (options.device or "auto").partition(":")[0] not in ("auto", _DEVICE):
        raise ConfigError(
            f"$.device: {options.device!r} has no kernels to compile; leave it out, or give {_DEVICE}"
        )
    device = options.device if options.device not in (None, "auto") else _DEVICE
    return evolve(options, device=device, load_format=options.load_format or "dummy")


def _check_here() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("--target: torch sees no GPU here; say which to compile for, as --target sm_90")
