"""Every error that a command line can reach: one message, the documented exit code, nothing on stdout."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import broken
import pytest
from error_cases import CHECKPOINTS, Case
from error_cases_of_options import MACHINE, OPTIONS
from error_cases_of_requests import REQUESTS
from fake_hub import FakeModel, running_hub
from hub_shell import Shell

import vtcore
from vtcore.cli.main import main
from vtcore.cli.make_checkpoint import make_checkpoint

TABLES = {"checkpoint": CHECKPOINTS, "option": OPTIONS, "request": REQUESTS, "machine": MACHINE}
CASES = {f"{table}: {name}": case for table, cases in TABLES.items() for name, case in cases.items()}

HUB = {
    "gone": "VT226",
    "branch": "VT227",
    "gated": "VT228",
    "cut": "VT229",
    "huge": "VT303",
    "down": "VT304",
}
"""Model of the fake hub -> code. test_hub_refusals.py has the sentences."""
OFFLINE = "VT305"

UNREACHABLE = {
    "VT400": "what nobody foresaw: a seam where it could be provoked gets an error of its own",
    "VT402": "a command closes its engine as the last thing it does",
}
"""Codes that no command line leads to, and why."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "model"
    make_checkpoint("qwen3_5_dense", "tiny", directory)
    return directory


@pytest.fixture
def workplace(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a checkpoint that may be broken, and a module of bad implementations."""
    (tmp_path / "model").mkdir()
    for file in tiny.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "vtcore_bad_parts.py").write_text(broken.MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vtcore_bad_parts", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("VTCORE_", "VT_")):
            monkeypatch.delenv(name)
    return tmp_path


def prepare(case: Case, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.breaks is not None:
        case.breaks(workplace / "model")
    for file, text in case.files.items():
        (workplace / file).write_text(text)
    if case.patch is not None:
        case.patch(monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.StringIO(case.stdin))


def check_message(err: str, case: Case) -> None:
    """One sentence per problem, the pointer to more, and nothing else."""
    *sentences, more, end = err.split("\n")
    assert (more, end) == (f"more: vtcore explain {case.code}", "")
    assert len(sentences) == case.num_problems
    assert all(line.startswith(f"error[{case.code}]: ") for line in sentences)
    text, place = "\n".join(sentences), -1
    for part in case.parts:
        place = text.find(part, place + 1)
        assert place >= 0, (part, text)
    for line in sentences:
        assert not line.endswith((".", ":", ";", ",", " ")), line
        assert len(line) < 700, line
        for junk in ("Traceback", "[Errno", "object at 0x", "  ", "codec can't", "$.", "\t"):
            assert junk not in line.replace("c.toml: $.", ""), (junk, line)


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_message_and_the_documented_exit_code(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    prepare(case, workplace, monkeypatch)
    exit_code = main(case.argv)
    out, err = capsys.readouterr()
    assert (exit_code, out) == (int(case.code[2]), ""), err
    check_message(err, case)


@pytest.mark.parametrize("name", ["checkpoint: truncated", "option: number", "machine: arch raises"])
def test_debug_puts_the_traceback_before_the_message(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    prepare(case, workplace, monkeypatch)
    assert main([*case.argv, "--debug"]) == int(case.code[2])
    out, err = capsys.readouterr()
    trace, _, rest = err.partition(f"error[{case.code}]: ")
    assert out == ""
    assert trace.startswith("Traceback (most recent call last):\n")
    check_message(f"error[{case.code}]: {rest}", case)


def test_no_weight_is_read_where_config_and_flags_tell(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("vtcore.loader.load_parameters", refuse)
    early = [case for name, case in CASES.items() if name in KNOWN_EARLY]
    assert len(early) == len(KNOWN_EARLY)
    assert main(["generate", "model", "--prompt", "x"]) == 4, "the guard is not where weights are loaded"
    for case in early:
        capsys.readouterr()
        prepare(case, workplace, monkeypatch)
        assert main(case.argv) == int(case.code[2]), capsys.readouterr().err


KNOWN_EARLY = (
    "request: logprobs",
    "request: no tokenizer wanted",
    "request: min above max",
    "request: input absent",
    "request: output strange",
    "request: line key",
    "option: chat template",
    "option: blocks",
    "option: memory",
    "option: policy unknown",
    "machine: policy fails",
    "checkpoint: no tokenizer",
)


def test_ctrl_c_is_130_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("print('ready', flush=True)\nimport time\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "vtcore.cli.main", "check", "model", "--plugin", "slow.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 130


def test_ctrl_c_while_the_program_is_imported_is_130_without_a_word(tmp_path: Path) -> None:
    # Found before vtcore's own, so that the interrupt comes while main.py imports what it needs.
    (tmp_path / "attrs.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", "from vtcore.cli.main import main"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_error_of_the_hub_stops_generate_too(tiny: Path, tmp_path: Path) -> None:
    whole = {file.name: file.read_bytes() for file in tiny.iterdir()}
    short = {broken.SHARD: len(whole[broken.SHARD]) + 1}
    with running_hub() as hub:
        hub.models.update(
            {
                "org/branch": FakeModel(whole),
                "org/gated": FakeModel(whole, token="hf_other"),
                "org/cut": FakeModel(whole, claimed_sizes=short),
                "org/huge": FakeModel(whole, claimed_sizes={broken.SHARD: 10**17}),
                "org/down": FakeModel(whole, status=500),
            }
        )
        shell = Shell(tmp_path, hub.url)
        more = {"branch": ["--revision", "v9"]}
        found = shell.run_many(
            [["generate", f"org/{name}", "--prompt", "x", *more.get(name, ())] for name in HUB]
        )
        found.append(shell.run("generate", "org/never", "--prompt", "x", HF_HUB_OFFLINE="1"))
    for code, done in zip([*HUB.values(), OFFLINE], found, strict=True):
        assert (done.code, done.out) == (int(code[2]), ""), done.err
        *notes, error, pointer = done.err.splitlines()
        assert error.startswith(f"error[{code}]: ")
        assert pointer == f"more: vtcore explain {code}"
        assert not any("Traceback" in line or line.startswith("error[") for line in notes)


def test_every_code_is_reached_or_has_a_reason() -> None:
    documented = tomllib.loads((Path(vtcore.__file__).parent / "data" / "errors.toml").read_text())
    reached = {case.code for case in CASES.values()} | {*HUB.values(), OFFLINE}
    assert reached.isdisjoint(UNREACHABLE)
    assert reached | set(UNREACHABLE) == set(documented)
