"""What a report tells of the machine that made it."""

from __future__ import annotations

import pytest

from vtcore.benchmark.report import kernel_cache, without_folders


@pytest.mark.parametrize(
    ("cached_before", "compiled", "state"),
    [(0, 35, "cold"), (0, 0, "cold"), (56, 32, "partly warm"), (66, 0, "warm")],
)
def test_a_kernel_cache_is_warm_only_if_the_start_compiled_nothing(
    cached_before: int, compiled: int, state: str
) -> None:
    assert kernel_cache(cached_before, compiled) == state


def test_of_whole_paths_only_the_last_names_are_kept() -> None:
    report = {
        "command": [
            "/usr/bin/vtcore",
            "bench",
            "/data/models/9b",
            "--output=/data/out.json",
            "models/9b",
        ],
        "config": {"model.model": {"value": ["/data/models/9b"], "origin": "command line"}},
        "unit": "tok/s",
        "value": 1.5,
        "graphs": None,
    }
    assert without_folders(report) == {
        "command": ["vtcore", "bench", "9b", "--output=out.json", "models/9b"],
        "config": {"model.model": {"value": ["9b"], "origin": "command line"}},
        "unit": "tok/s",
        "value": 1.5,
        "graphs": None,
    }
