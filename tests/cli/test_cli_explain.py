"""`vtcore explain`: one code, all codes, and guesses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vtcore.cli.explain import read_explanations
from vtcore.cli.main import main


@pytest.mark.parametrize("word", ["VT201", "vt201", "201", " Vt201 "])
def test_a_code_may_be_written_in_several_ways(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    out = capsys.readouterr().out
    explanation = read_explanations()["VT201"]
    assert out.startswith("VT201: An option is wrong (configuration, exit code 2)\n")
    text = " ".join(out.split())
    assert explanation.what in text
    for item in (*explanation.causes, *explanation.remedies, explanation.example):
        assert item in text
    assert max(map(len, out.splitlines()[:-1])) <= 100


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(read_explanations())
    assert "VT302  exit 3  The GPU cannot be used" in lines


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("VT2001", "; did you mean 'VT201'"),
        ("VT999", "VT"),
        ("xyz", "; vtcore explain, without a code, lists them"),
        ("V", "; vtcore explain, without a code, lists them"),
        ("VT1", "; vtcore explain, without a code, lists them"),
        ("VT40", "; these begin so: VT400, VT401, VT402\n"),
        ("40", "; these begin so: VT400, VT401, VT402\n"),
    ],
)
def test_an_unknown_code_gets_a_guess(word: str, guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error[VT203]: no error has the code {word!r}")
    assert guess in err


def test_explaining_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom vtcore.cli.main import main\nassert main(['explain', '201']) == 0\n"
        "assert not {'torch', 'pluggy', 'yaml', 'tokenizers'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
