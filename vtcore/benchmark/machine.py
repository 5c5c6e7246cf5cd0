"""Where and with what a benchmark runs: versions, commit, GPU, clocks, the age of the process.

Does not: change a setting of the machine; what cannot be read is left out.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vtcore.config.env import read_host_variables
from vtcore.host.cache_dir import TRITON_FOLDER

_PACKAGES = ("vtcore", "torch", "triton", "transformers", "numpy")
_QUERY = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)
"""Fields of nvidia-smi --query-gpu; reading them changes nothing."""
_TIMEOUT_S = 10.0


def describe_machine(plugins: Collection[str] = ()) -> dict[str, Any]:
    """Versions and processor, JSON types.

    Args:
        plugins: Distributions whose versions belong to the report.
    """
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: found for name in (*_PACKAGES, *sorted(plugins)) if (found := _version(name))},
    }


def read_commit(root: Path) -> str | None:
    """The commit that a source tree stands at, with "+changes" if files differ; None where git knows none."""
    head = _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    if head is None:
        return None
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return head + ("+changes" if changed else "")


def read_clocks() -> dict[str, str]:
    """Name, driver, clocks, power and heat of the first GPU; empty where nvidia-smi does not answer."""
    answer = _output(["nvidia-smi", "-i", "0", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"])
    values = [] if answer is None else [value.strip() for value in answer.split(",")]
    return dict(zip(_QUERY, values, strict=True)) if len(values) == len(_QUERY) else {}


def process_age_s() -> float:
    """Seconds since the kernel started this process, the interpreter's own start included.

    Source: proc(5), /proc/pid/stat, field 22: start time after boot, in clock ticks.
    """
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    # The second field is the program's name in parentheses and may hold blanks.
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def count_kernels(cache_dir: Path) -> int:
    """Compiled kernels in Triton's cache.

    Args:
        cache_dir: `Environment.cache_dir`; the user's own `TRITON_CACHE_DIR` wins, as it does for Triton.
    """
    own = read_host_variables().triton_cache_dir
    folder = cache_dir / TRITON_FOLDER if own is None else Path(own)
    return sum(1 for _ in folder.glob("*/*.cubin"))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
