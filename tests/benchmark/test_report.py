"""What a report tells of the machine that made it."""

from __future__ import annotations

from vtcore.benchmark.report import without_folders


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
