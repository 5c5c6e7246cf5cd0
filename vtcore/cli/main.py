"""The command `vtcore`: picks the subcommand's module and turns errors into one line each.

Does not: import a command that was not asked for, so that light commands stay light.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import vtcore
from vtcore.cli.parser import CommandParser, UsageError
from vtcore.errors import ConfigError, VtcoreError
from vtcore.suggest import did_you_mean

COMMANDS: Mapping[str, tuple[str, str]] = {
    "generate": ("vtcore.cli.generate", "generate text from a prompt"),
    "make-checkpoint": ("vtcore.cli.make_checkpoint", "write a checkpoint of random weights"),
    "plugins": ("vtcore.cli.plugins", "list installed plugins and what is wrong with them"),
}
"""Command -> (module with `add_parser(subparsers)` and `run(args) -> int`, one line of help)."""

EXIT_ERROR = 2
"""An error that vtcore raised on purpose, a wrong command line included."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells report it."""
EXIT_BROKEN_PIPE = 141
"""The reader of stdout went away: 128 + SIGPIPE, as shells report it."""


def run(argv: Sequence[str]) -> int:
    """Parse and run one command.

    Args:
        argv: Without the program's name.

    Returns:
        The command's exit code.

    Raises:
        VtcoreError: Anything wrong with the command line or the run.
    """
    parser = CommandParser(
        prog="vtcore", description="An LLM inference engine whose models, schedulers and more are plugins."
    )
    parser.add_argument("--version", action="version", version=f"vtcore {vtcore.__version__}")
    wanted = next((word for word in argv if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise UsageError(f"no command {wanted!r}{did_you_mean(wanted, COMMANDS)} (see vtcore --help)")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, about) in COMMANDS.items():
        if name == wanted:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=about)
    args = parser.parse_args(argv)
    code: int | None = import_module(COMMANDS[args.command][0]).run(args)
    return code or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Without the program's name; None reads the process's own.

    Returns:
        0, the command's own code, 2 for an error, 130 when interrupted, 141 when stdout was closed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Generated text is any text; a terminal of fewer letters gets escapes rather than an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:] if argv is None else argv)
        # A closed pipe shows itself here rather than in the interpreter's last flush.
        if sys.stdout is not None:
            sys.stdout.flush()
    except ConfigError as error:
        return _report(*error.problems)
    except VtcoreError as error:
        return _report(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _report(f"{where}{error.strerror or error}")
    return code


def _report(*problems: str) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
