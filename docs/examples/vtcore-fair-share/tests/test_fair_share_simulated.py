"""One tenant sends ten times as much as each of three others: what `vtcore simulate` says of it.

Virtual time is deterministic, so that the figures are the same everywhere; the README shows them.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from vtcore.cli.main import main

README = Path(__file__).parents[1] / "README.md"
LIGHT = ("a", "b", "c")


def simulate(out: Path, *words: str) -> dict[str, Any]:
    """Policy -> its part of the report."""
    assert main(["simulate", *words, "--json", str(out)]) == 0
    return {one["policy"]: one for one in json.loads(out.read_text())["policies"]}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the README's own command."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    command = next(line for line in text.splitlines() if line.strip().startswith("vtcore simulate"))
    return simulate(tmp_path_factory.mktemp("simulated") / "report.json", *shlex.split(command)[2:])


def test_who_asks_for_ten_times_as_much_gets_no_more_than_the_others(report: dict[str, Any]) -> None:
    assert report["fcfs"]["jain_index"] < 0.5
    assert report["fair_share"]["jain_index"] > 0.9


def test_the_light_tenants_wait_less_than_a_tenth_and_the_heavy_one_not_twice_as_long(
    report: dict[str, Any],
) -> None:
    fcfs, fair = (report[name]["tenants"] for name in ("fcfs", "fair_share"))
    for tenant in LIGHT:
        assert fair[tenant]["p90_ttft_s"] < fcfs[tenant]["p90_ttft_s"] / 10
    assert fair["heavy"]["p90_ttft_s"] < 2 * fcfs["heavy"]["p90_ttft_s"]


def test_fairness_costs_no_throughput(report: dict[str, Any]) -> None:
    fcfs, fair = report["fcfs"], report["fair_share"]
    assert fair["total_tokens_per_s"] > 0.97 * fcfs["total_tokens_per_s"]
    assert (fair["breaches"], fair["output_tokens"]) == (0, fcfs["output_tokens"])


def test_the_readme_shows_what_the_command_prints(report: dict[str, Any]) -> None:
    rows = {"fairness (Jain)": lambda one: f"{one['jain_index']:.3f}"}
    for tenant in ("heavy", *LIGHT):
        rows[f"TTFT p90 of {tenant} ms"] = lambda one, tenant=tenant: (
            f"{1000 * one['tenants'][tenant]['p90_ttft_s']:,.1f}"
        )
    shown = [" ".join(line.split()) for line in README.read_text(encoding="utf-8").splitlines()]
    for name, cell in rows.items():
        row = f"{name} {cell(report['fcfs'])} {cell(report['fair_share'])}"
        assert row in shown, f"README.md: run its command and show the new figures; {row!r} is not there"


def test_tenants_that_all_ask_for_too_much_are_served_by_weight(tmp_path: Path) -> None:
    weights = {"a": 1, "b": 2, "c": 4}
    words = ["--workload", "poisson", "--requests", "200", "--rate", "1000", "--max-num-seqs", "8"]
    words += ["--num-blocks", "1000", "--tenants", "a=1,b=1,c=1", "--policy", "fair_share,fcfs"]
    words += ["--prompt-tokens", "100-200", "--output-tokens", "10-30"]
    words += ["--policy-config", json.dumps({"fair_share": {"weights": weights, "output_cost": 1}})]
    report = simulate(tmp_path / "report.json", *words, "--tenant-weights", "a=1,b=2,c=4")
    assert report["fair_share"]["jain_index"] > 0.97
    assert report["fcfs"]["jain_index"] < 0.8
