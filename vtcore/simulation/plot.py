"""A picture of a comparison: how times to the first token and latencies are distributed, and tenants' means.

Does not: need a display, or import matplotlib before a plot is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np

from vtcore.errors import HostError, UsageError
from vtcore.host.installed import pip_command
from vtcore.simulation.simulate import PolicyRun
from vtcore.simulation.whole_file import write_whole

_MAX_POINTS = 2000
"""Points of a curve; more cannot be seen."""


def check_can_plot(path: str) -> None:
    """Refuse before the simulation what would fail after it.

    Raises:
        UsageError: The name is not that of a PNG file.
        HostError: matplotlib is not installed.
    """
    if not path.lower().endswith(".png"):
        raise UsageError(f"--plot: {path} does not end in .png, and only PNG is drawn; name it so")
    if find_spec("matplotlib") is None:
        raise HostError(
            f"--plot needs matplotlib, which is not installed; {pip_command('install', 'vtcore[plot]')}"
        )


def plot(runs: Sequence[PolicyRun], report: Mapping[str, Any], path: str) -> None:
    """Draw a PNG file.

    Args:
        runs: In the order of the report's policies.

    Raises:
        OSError: The file cannot be written.
    """
    # Its own figure and no pyplot: no global state, no window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    first, whole, tenants = figure.subplots(1, 3)
    for run in runs:
        arrival = np.array(run.record.arrival_s)
        for axes, ends in ((first, run.record.first_s), (whole, run.record.last_s)):
            seconds = np.sort(np.array(ends) - arrival)
            picked = np.unique(np.linspace(0, seconds.size - 1, min(seconds.size, _MAX_POINTS)).astype(int))
            axes.step(seconds[picked], (picked + 1) / seconds.size, where="post", label=run.name)
    for axes, title in ((first, "time to first token"), (whole, "request latency")):
        axes.set(title=title, xlabel="seconds", ylabel="share of requests", ylim=(0, 1.02))
        axes.set_xscale("symlog", linthresh=0.1)
        axes.grid(alpha=0.3)
        axes.legend()
    names = list(report["policies"][0]["tenants"])
    places = np.arange(len(names))
    for index, policy in enumerate(report["policies"]):
        means = [policy["tenants"][name]["mean_latency_s"] for name in names]
        tenants.bar(places + index / (len(runs) + 1), means, 1 / (len(runs) + 1), label=policy["policy"])
    tenants.set(title="mean latency by tenant", ylabel="seconds")
    tenants.set_xticks(places, [name or "(none)" for name in names], rotation=30)
    tenants.legend()
    figure.suptitle(report["trace"]["about"])
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    write_whole(path, [picture.getvalue()])
