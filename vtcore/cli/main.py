"""The command `vtcore`: picks the subcommand's module and turns errors into one line each.

Does not: import a command that was not asked for, so that light commands stay light.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module

try:
    import vtcore
    from vtcore.cli.flag_words import errors_as_typed
    from vtcore.cli.interruption import interrupted_code, termination_as_interrupt
    from vtcore.cli.parser import DEBUG_FLAG, CommandParser
    from vtcore.cli.terminal import check_stdout, guarded_output, say
    from vtcore.errors import ConfigError, UsageError, VtcoreError
    from vtcore.suggest import did_you_mean
except KeyboardInterrupt:
    # Ctrl-C before `main` can catch it; the code is that of `interruption`, which may be what was broken off.
    sys.exit(130)

COMMANDS: Mapping[str, tuple[str, str]] = {
    "generate": ("vtcore.cli.generate", "generate text from a prompt or a file of prompts"),
    "chat": ("vtcore.cli.chat", "talk to a model"),
    "check": ("vtcore.cli.check", "show what a model and its options resolve to, without loading weights"),
    "pull": ("vtcore.cli.pull", "download a model"),
    "simulate": ("vtcore.cli.simulate", "compare scheduler policies on a trace, without weights"),
    "warmup": ("vtcore.cli.warmup", "compile a model's kernels before its first start"),
    "bench": ("vtcore.cli.bench", "measure a model on this machine, beside what is possible"),
    "doctor": ("vtcore.cli.doctor", "find what is wrong with this machine and installation"),
    "plugins": ("vtcore.cli.plugins", "list installed plugins and what is wrong with them"),
    "explain": ("vtcore.cli.explain", "explain an error's code"),
    "make-checkpoint": ("vtcore.cli.make_checkpoint", "write a checkpoint of random weights"),
}
"""Command -> (module with `add_parser(subparsers)` and `run(args) -> int`, one line of help).

A module whose command may do without stdout has `needs_stdout(args) -> bool`.
"""

VLLM_COMMANDS: Mapping[str, str] = {
    "serve": "use generate, chat, or the class LLM in Python",
    "complete": "use generate",
    "run-batch": "use generate --input FILE --output FILE",
    "collect-env": "use doctor",
}
"""Command of vLLM that is none here -> what does its work."""

EXIT_HOST = 3
"""An OSError that nobody turned into an error of vtcore. Other exit codes: `VtcoreError.exit_code`."""
EXIT_INTERNAL = 4
"""A fault of vtcore's or a plugin's own."""
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
    if wanted is not None and wanted in VLLM_COMMANDS:
        raise UsageError(f"{wanted} is not served yet; {VLLM_COMMANDS[wanted]} (see vtcore --help)")
    if wanted is not None and wanted not in COMMANDS:
        raise UsageError(f"no command {wanted!r}{did_you_mean(wanted, COMMANDS)} (see vtcore --help)")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, about) in COMMANDS.items():
        if name == wanted:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=about)
    args = parser.parse_args(argv)
    command = import_module(COMMANDS[args.command][0])
    if getattr(command, "needs_stdout", _always)(args):
        check_stdout()
    with errors_as_typed(args.typed_flags, args.flag_names):
        code: int | None = command.run(args)
    return code or 0


def _always(args: object) -> bool:
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Without the program's name; None reads the process's own.

    Returns:
        0 or the command's own code; 2, 3 or 4 for an error (`VtcoreError.exit_code`); 130 when interrupted,
        143 by SIGTERM; 141 when stdout was closed.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with termination_as_interrupt(), guarded_output():
            code = run(words)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return interrupted_code()
    except Exception as error:
        if DEBUG_FLAG in words:
            say(traceback.format_exc().rstrip("\n"))
        return _report(error)
    return code


def _report(error: Exception) -> int:
    """Print an error and return its exit code."""
    problems: Sequence[str] = (str(error),)
    if isinstance(error, ConfigError | UsageError):
        problems = error.problems
    if isinstance(error, VtcoreError):
        code, exit_code = error.code, error.exit_code
    elif isinstance(error, OSError):
        code, exit_code = "VT301", EXIT_HOST
        where = f"{error.filename}: " if error.filename else ""
        problems = (f"{where}{error.strerror or error}",)
    else:
        code, exit_code = "VT400", EXIT_INTERNAL
        problems = (
            f"a fault of vtcore or a plugin: {type(error).__name__}: {error}; run it again with {DEBUG_FLAG} "
            f"and report the traceback",
        )
    for problem in problems:
        say(f"error[{code}]: {problem}")
    say(f"more: vtcore explain {code}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
