"""`vtcore plugins lock`: writes down which distribution serves each name, or checks such a file.

It prints the lock as JSON: `format`, `digest` and `rows` (objects with `kind`, `name`, `distribution`,
`version`, `plugin`, `source`, `implementation`). `--check FILE` prints one line, or fails with VT313.

Does not: import an implementation, or install what a lock names.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vtcore.cli.engine_flags import add_plugin_flags, given_from_args
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.errors import PluginLockError
from vtcore.plugin_lock import PluginLock, check_lock, lock_of
from vtcore.plugins import registry_for


def add_lock_parser(actions: Any) -> None:
    """Add the action `lock` to those of `vtcore plugins`."""
    parser = actions.add_parser("lock", help="write down which distribution serves each name, or check it")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--out", metavar="FILE", help="write the lock to FILE; default: to stdout")
    either.add_argument(
        "--check", metavar="FILE", help="fail unless the plugins are those of the lock in FILE"
    )
    add_plugin_flags(parser)


def run_lock(args: argparse.Namespace) -> int:
    """Write or check.

    Raises:
        PluginLockError: FILE is no lock, or the plugins are not those that it names.
    """
    given = given_from_args(args)
    with others_print_to_stderr():
        registry = registry_for(given.options, given.environment)
    if args.check is not None:
        lock = _read(Path(args.check))
        check_lock(lock, registry)
        print(f"{args.check}: all {len(lock.rows)} rows fit, digest {lock.digest()}")
    elif args.out is not None:
        Path(args.out).write_text(lock_of(registry).to_json() + "\n", encoding="utf-8")
    else:
        print(lock_of(registry).to_json())
    return 0


def _read(file: Path) -> PluginLock:
    try:
        # What is no UTF-8 is no JSON either, and is refused as such.
        return PluginLock.from_json(file.read_text(encoding="utf-8", errors="replace"))
    except PluginLockError as error:
        raise PluginLockError(f"{file}: {error}") from error
