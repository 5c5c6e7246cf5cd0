"""Runs the command line in a process whose environment names a hub and a home of its own.

Does not: judge what comes out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

_FOREIGN = ("HF_", "HUGGINGFACE_", "VTCORE_", "VT_", "XDG_", "TQDM_")

# Many commands in one process, because a process takes longer than all of them.
_MANY = """
import contextlib, io, json, sys
from vtcore.cli.main import main
done = []
for argv in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


@frozen
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


@frozen
class Shell:
    """Runs vtcore as a user would, against one hub, with a home of its own.

    Args:
        home: HF_HOME; also the directory where commands run.
    """

    home: Path
    hub_url: str

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
        }
        return {
            **kept,
            "HOME": str(self.home),
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": self.hub_url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "OMP_NUM_THREADS": "1",
            **more,
        }

    def start(self, *argv: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "vtcore.cli.main", *argv],
            env=self.environment(more),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, **more: str) -> Done:
        with self.start(*argv, **more) as process:
            out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)

    def run_many(self, commands: Sequence[Sequence[str]], **more: str) -> list[Done]:
        """One after the other in one process."""
        process = subprocess.run(
            [sys.executable, "-c", _MANY, json.dumps(commands)],
            env=self.environment(more),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        answers: list[Any] = json.loads(process.stdout.splitlines()[-1])
        return [Done(*answer) for answer in answers]
