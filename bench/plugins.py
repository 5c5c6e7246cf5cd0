"""What a hundred installed plugins cost at start: finding them, asking their hooks, freezing the registry.

Does not: import an implementation, and says how many were imported all the same.

Usage: python bench/plugins.py [--plugins 100] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

README_LINES = 200
"""Of the long description in each METADATA; real ones are of this order."""

PLUGIN = """
from vtcore import hookimpl
from vtcore.interfaces.registry_entries import ArchEntry

VTCORE_API = {{"archs": "0.1"}}


@hookimpl
def vtcore_register_archs():
    return [
        ArchEntry(
            name="bench_{i}",
            architectures=["Bench{i}ForCausalLM"],
            model_types=["bench_{i}"],
            implementation="vtcore_bench_{i}.arch:Arch",
            description="one of many",
        )
    ]
"""

MEASURE = """
import json, sys, time
import vtcore.plugins
start, cpu_start = time.perf_counter(), time.process_time()
registry = vtcore.plugins.build_registry()
cpu_s, wall_s = time.process_time() - cpu_start, time.perf_counter() - start
print(json.dumps({
    "wall_s": wall_s,
    "cpu_s": cpu_s,
    "archs": sum(name.startswith("bench_") for name in registry.archs),
    "implementations": sum(name.endswith(".arch") for name in sys.modules),
}))
"""


def write_distributions(root: Path, count: int) -> None:
    """Lay out `count` installed distributions, each with one arch.

    Args:
        root: Folder for sys.path.
        count: How many, at least 1.
    """
    long_text = "\n".join(f"Line {line} of the description: what it is for." for line in range(README_LINES))
    for i in range(count):
        package = root / f"vtcore_bench_{i}"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(PLUGIN.format(i=i))
        (package / "arch.py").write_text("raise RuntimeError('an implementation was imported')\n")
        info = root / f"vtcore_bench_{i}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: vtcore-bench-{i}\nVersion: 1.0\nSummary: one of many\n"
            f"Requires-Python: >=3.11\nRequires-Dist: vtcore>=0.1\n\n{long_text}\n"
        )
        (info / "entry_points.txt").write_text(f"[vtcore.plugins]\nbench_{i} = vtcore_bench_{i}.plugin\n")
        (info / "RECORD").write_text("")
        (info / "INSTALLER").write_text("pip\n")


def measure(root: Path) -> dict[str, Any]:
    """Build the registry once, in a fresh process, with what lies in `root` installed.

    Returns:
        `wall_s` and `cpu_s` of the build alone, `archs` found, `implementations` imported.
    """
    # Installed packages come with byte code; a machine that writes none would compile them each time.
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def bench(count: int, repeat: int) -> dict[str, Any]:
    """Measure `repeat` fresh processes after one that writes the byte code."""
    with tempfile.TemporaryDirectory() as folder:
        write_distributions(Path(folder), count)
        runs = [measure(Path(folder)) for _ in range(repeat + 1)][1:]
    return {
        "python": platform.python_version(),
        "plugins": count,
        "archs_found": runs[0]["archs"],
        "implementations_imported": max(run["implementations"] for run in runs),
        "min_ms": round(min(run["wall_s"] for run in runs) * 1e3, 1),
        "max_ms": round(max(run["wall_s"] for run in runs) * 1e3, 1),
        "min_cpu_ms": round(min(run["cpu_s"] for run in runs) * 1e3, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=100, help="how many distributions; default 100")
    parser.add_argument("--repeat", type=int, default=5, help="fresh processes; default 5")
    args = parser.parse_args()
    print(json.dumps(bench(args.plugins, args.repeat), indent=2))
