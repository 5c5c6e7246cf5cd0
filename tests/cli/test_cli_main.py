"""The command line: light commands, one line per error, exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import vtcore
from vtcore.cli import main as cli
from vtcore.cli.engine_flags import add_engine_flags, options_from_args
from vtcore.cli.parser import CommandParser
from vtcore.config.options import UserOptions
from vtcore.errors import ConfigError, EngineError, HostError, UsageError, VtcoreError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Install a command `act` whose body the test gives."""

    def install(body: Callable[[], int]) -> None:
        module = ModuleType("vtcore_test_command")

        def add_parser(subparsers: Any) -> None:
            subparsers.add_parser("act").add_argument("--length", type=int)

        module.__dict__.update(add_parser=add_parser, run=lambda args: body())
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "act": (module.__name__, "act")})

    return install


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"vtcore {vtcore.__version__}\n"


def test_help_names_every_command_and_imports_none() -> None:
    code = (
        "import sys\nfrom vtcore.cli.main import COMMANDS, main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {module for module, _ in COMMANDS.values()} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in cli.COMMANDS)


def test_a_config_error_is_one_line_per_problem(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        raise ConfigError("$.a: one", "$.b: two")

    command(body)
    assert cli.main(["act"]) == 2
    expected = "error[VT201]: $.a: one\nerror[VT201]: $.b: two\nmore: vtcore explain VT201\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (ConfigError("no luck"), 2, "error[VT201]: no luck\nmore: vtcore explain VT201\n"),
        (HostError("no disk"), 3, "error[VT301]: no disk\nmore: vtcore explain VT301\n"),
        (EngineError("no order"), 4, "error[VT401]: no order\nmore: vtcore explain VT401\n"),
        (VtcoreError("no idea"), 4, "error[VT400]: no idea\nmore: vtcore explain VT400\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            3,
            "error[VT301]: a.txt: No such file or directory\nmore: vtcore explain VT301\n",
        ),
        (
            ZeroDivisionError("by zero"),
            4,
            "error[VT400]: a fault of vtcore or a plugin: ZeroDivisionError: by zero; run it again with "
            "--debug and report the traceback\nmore: vtcore explain VT400\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_and_interrupts_have_no_traceback(
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    exit_code: int,
    text: str,
) -> None:
    def body() -> int:
        raise error

    command(body)
    assert cli.main(["act"]) == exit_code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    "argv", [["--debug", "act"], ["act", "--debug"], ["act", "--debug", "--length", "3"]], ids=" ".join
)
@pytest.mark.parametrize("error", [ConfigError("no luck"), ZeroDivisionError("by zero")])
def test_debug_anywhere_on_the_line_shows_the_traceback_before_the_sentence(
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    error: Exception,
) -> None:
    def body() -> int:
        raise error

    command(body)
    assert cli.main(argv) == (2 if isinstance(error, ConfigError) else 4)
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "in body" in err
    assert err.index("Traceback") < err.index("error[VT")


def test_the_commands_code_is_the_exit_code(command: Callable[[Callable[[], int]], None]) -> None:
    command(lambda: 5)
    assert cli.main(["act", "--length", "3"]) == 5


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["act", "--lenght", "3"], "error[VT203]: unknown flag '--lenght'; did you mean '--length'?"),
        (["act", "--len", "3"], "error[VT203]: unknown flag '--len'; did you mean '--length'?"),
        (["act", "--length", "x"], "error[VT203]: argument --length: invalid int value: 'x'"),
        (["act", "word"], "error[VT203]: unknown argument 'word'"),
        (["atc"], "error[VT203]: no command 'atc'; did you mean 'act'?"),
        ([], "error[VT203]: COMMAND is missing; give one of generate, chat, check, pull, "),
        (
            ["plugins"],
            "error[VT203]: ACTION is missing; give one of list, show, doctor, lock, new (see vtcore plugins",
        ),
        (["serve", "m"], "error[VT203]: serve is not served yet; use generate, chat, or the class LLM"),
        (["complete"], "error[VT203]: complete is not served yet; use generate (see vtcore --help)"),
        (["run-batch"], "error[VT203]: run-batch is not served yet; use generate --input FILE --output FILE"),
        (["collect-env"], "error[VT203]: collect-env is not served yet; use doctor"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_guess(
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    line: str,
) -> None:
    command(lambda: 0)
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.endswith("\nmore: vtcore explain VT203\n")
    assert err.count("\n") == 2


def test_a_closed_pipe_ends_quietly() -> None:
    code = (
        "import sys, types\nfrom vtcore.cli import main as cli\n"
        "m = types.ModuleType('m'); m.add_parser = lambda s: s.add_parser('act')\n"
        "m.run = lambda args: print('x' * 100 + '\\n' * 200000) or 0\n"
        "sys.modules['m'] = m; cli.COMMANDS = {'act': ('m', '')}\n"
        "sys.exit(cli.main(['act']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 141
    assert err == ""


def engine_parser() -> CommandParser:
    parser = CommandParser(prog="test")
    parser.add_argument("model")
    add_engine_flags(parser)
    return parser


def test_flags_become_options() -> None:
    argv = "some/dir --max-num-seqs 4 --no-enable-prefix-caching --dtype float64 --skip-tokenizer-init"
    argv += " --plugin a.py --plugin b.py --plugin-owner arch:a=dist --scheduling-policy any"
    assert options_from_args(engine_parser().parse_args(argv.split())) == UserOptions(
        model="some/dir",
        max_num_seqs=4,
        enable_prefix_caching=False,
        dtype="float64",
        skip_tokenizer_init=True,
        plugin_files=("a.py", "b.py"),
        plugin_owners={"arch:a": "dist"},
        scheduling_policy="any",
    )


def test_no_flags_ask_for_nothing() -> None:
    assert options_from_args(engine_parser().parse_args(["m"])) == UserOptions(model="m")
    assert options_from_args(argparse.Namespace(other=1)) == UserOptions()


def test_flag_values_are_checked_like_any_option() -> None:
    args = engine_parser().parse_args(["m", "--max-num-seqs", "0", "--dtype", "fp4"])
    with pytest.raises(ConfigError) as caught:
        options_from_args(args)
    assert {problem.split(":")[0] for problem in caught.value.problems} == {"$.dtype", "$.max_num_seqs"}


@pytest.mark.parametrize("pair", ["arch=dist", "arch:a", "arch:a="])
def test_an_owner_flag_of_another_form_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match=r"^\$\.plugin_owners: .* is no KIND:NAME=DISTRIBUTION"):
        options_from_args(engine_parser().parse_args(["m", "--plugin-owner", pair]))


def test_a_mistyped_engine_flag_gets_a_guess() -> None:
    with pytest.raises(UsageError, match="did you mean '--max-num-batched-tokens'"):
        engine_parser().parse_args(["m", "--max-num-batched-token", "3"])
