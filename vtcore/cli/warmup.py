"""`vtcore warmup`: compile a model's kernels into the cache, without weights, and with --target without a
GPU.

`--json` prints one object: `built`, `cached`, `seconds`, `directory`, `target` (null for this machine's GPU)
and `plans`, the GPU whose measured plans say which kernels serve (null where rules do).
Does not: capture graphs or measure; the engine's own start does.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from attrs import evolve

from vtcore.cli.engine_flags import add_engine_flags, given_from_args
from vtcore.cli.interruption import say_interrupted
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
    parser.add_argument(
        "--device-name",
        metavar="NAME",
        help="with --target: GPU whose measured plans are followed, as torch names it, 'NVIDIA H200'; one "
        "that was not measured goes by rules; default: this machine's GPU if it is of the target, else the "
        "only measured one of it",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Compile everything that serving with these options can launch; returns the exit code."""
    try:
        return _warm_up(args)
    except KeyboardInterrupt as interrupt:
        return say_interrupted(interrupt, "nothing is compiled")


def _warm_up(args: argparse.Namespace) -> int:
    from vtcore.gpu_start import RecordError, record_launches
    from vtcore.loader import plan_core
    from vtcore.ops.compile_target import check_target
    from vtcore.ops.compiled import compile_launches
    from vtcore.ops.tuned import choose_device, device_name, has_file, tuned_for

    if args.target is not None:
        check_target(args.target)
        device = choose_device(args.target, args.device_name)
    elif args.device_name is not None:
        raise ConfigError(
            f"--device-name: {args.device_name!r} without --target; this machine's GPU goes by its own "
            f"plans, so leave it out, or add --target"
        )
    else:
        device = device_name()
    given = given_from_args(args)
    options = _for_gpu(given.options)
    with others_print_to_stderr():
        planned = plan_core(options, sources=given.sources, environment=given.environment)
        if args.target is None:
            _check_here()
        prepare_kernel_cache(given.environment.cache_dir)
        try:
            with tuned_for(device):
                launches = record_launches(planned)
        except RecordError as error:
            raise ConfigError(str(error)) from error
        try:
            report = compile_launches(launches, target=args.target)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"{interrupt}; the same command goes on from there") from interrupt
    plans = device if has_file(device) else None
    found = {
        "built": report.num_built,
        "cached": report.num_cached,
        "seconds": round(report.elapsed_s, 1),
        "directory": report.directory,
        "target": args.target,
        "plans": plans,
    }
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['built']} kernels compiled and {found['cached']} found in {found['directory']}, in "
            f"{found['seconds']} s, for {args.target or 'this GPU'}, "
            + (f"as measured on {plans}" if plans else f"by rules: nothing was measured on {device}")
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
