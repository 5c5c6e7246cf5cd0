"""`vtcore pull`: a model on this machine, whole, and the directory it lies in.

Does not: load it, or write anything but that directory's path to stdout.
"""

from __future__ import annotations

import argparse
from typing import Any

from vtcore.checkpoint.locate import locate_checkpoint
from vtcore.checkpoint.sizes import size_text
from vtcore.checkpoint.source import open_checkpoint
from vtcore.cli.engine_flags import add_plugin_flags, given_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.terminal import say
from vtcore.plugins import registry_for


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "pull",
        help="download a model",
        description="Download a model, or say that it is whole; what a broken-off call has fetched is kept.",
    )
    parser.add_argument("model", metavar="MODEL", help="Hub id, or a checkpoint source's name or URI")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit; default main")
    parser.add_argument(
        "--download-dir", metavar="DIR", help="where models are kept; default: huggingface_hub's cache"
    )
    add_plugin_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Download, check that it is whole, print the directory."""
    given = given_from_args(args)
    options = given.options
    with others_print_to_stderr():
        registry = registry_for(options, given.environment)
        directory = locate_checkpoint(
            args.model, registry, revision=options.revision, download_dir=options.download_dir
        )
    open_checkpoint(directory)
    sizes = [file.stat().st_size for file in directory.iterdir() if file.is_file()]
    say(f"{args.model}: whole, {len(sizes)} files, {size_text(sum(sizes))}")
    print(directory)
    return 0
